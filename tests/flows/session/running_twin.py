"""Runs `handoff twin` in a thread, and connects franky to it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flows.session.standalone_twin import StandaloneTwin, run_twins
from flows.session.twin_faults import Fault


@contextmanager
def running(options: StandaloneTwin, faults: tuple[Fault, ...] = ()) -> Iterator[dict[str, Any]]:
    """The twin in a thread; what it said and showed."""
    heard: dict[str, Any] = {"said": [], "shown": []}
    ready, ended = threading.Event(), threading.Event()

    def say(text: str) -> None:
        heard["said"].append(text)
        if "Ctrl-C" in text:
            ready.set()

    thread = threading.Thread(
        target=run_twins,
        args=(options, faults),
        kwargs={"say": say, "show": heard["shown"].append, "ended": ended.is_set},
    )
    thread.start()
    assert ready.wait(60.0)
    try:
        yield heard
    finally:
        ended.set()
        thread.join(30.0)


def connected(host: str) -> Any:
    import franky

    robot = franky.Robot(host, realtime_config=franky.RealtimeConfig.Ignore)
    robot.relative_dynamics_factor = 0.05
    return robot
