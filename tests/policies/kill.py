"""Runs a training in a separate process, which is killed with SIGKILL at a given progress call."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

from tests.forked_process import forked_process_context


def run_until_killed(call: int, train: Callable[..., Any], *arguments: Any) -> None:
    """Calls `train(*arguments, progress)` in a child process, which dies at progress call number
    `call`."""
    process = forked_process_context().Process(target=_train, args=(call, train, arguments))
    process.start()
    process.join(120)
    assert process.exitcode == -signal.SIGKILL


def _train(call: int, train: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    left = call

    def progress(done: int, total: int, note: str = "") -> None:
        nonlocal left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)

    train(*arguments, progress)
