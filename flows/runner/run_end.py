"""Tells the threads that wait for stages that their run has ended, and the person that it is being
stopped."""

from __future__ import annotations

import sys
import threading

from robots.errors import HandoffError
from robots.processes import END_SECONDS

RUN_ENDED = threading.Event()
"""Set when a run ends before its stages; the threads that wait for the stages then end their
processes."""


def interrupt_run() -> None:
    """Ends a run whose stages go on, as after Ctrl-C, and says so before their processes are waited
    for; once per run."""
    if not RUN_ENDED.is_set():
        RUN_ENDED.set()
        words = f"stopping: what is running saves its state, for up to {END_SECONDS:.0f} s"
        print(words, file=sys.stderr, flush=True)  # noqa: T201  above the bars of the display


def stop_if_ended(name: str) -> None:
    """Stops waiting for a stage whose run has ended.

    Raises:
        HandoffError: the run has ended.
    """
    if RUN_ENDED.is_set():
        raise HandoffError(f"stage {name}: stopped because its run ended.")
