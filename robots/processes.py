"""Processes that must not outlive who started them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from multiprocessing.connection import wait


def end_with_parent() -> None:
    """Ends this process by SIGTERM once the one that started it is gone, however that went.

    By a signal, so that a terminal is put right and a learner saves. Does nothing in a process that
    `multiprocessing` did not start.
    """
    if multiprocessing.parent_process() is not None:
        threading.Thread(target=_follow, name="parent", daemon=True).start()


def _follow() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    wait([parent.sentinel])
    os.kill(os.getpid(), signal.SIGTERM)
