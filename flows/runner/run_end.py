"""Tells the threads that wait for stages that their run has ended."""

from __future__ import annotations

import threading

from robots.errors import HandoffError

RUN_ENDED = threading.Event()
"""Set when a run ends before its stages; the threads that wait for the stages then end their
processes."""


def stop_if_ended(name: str) -> None:
    """Stops waiting for a stage whose run has ended.

    Raises:
        HandoffError: the run has ended.
    """
    if RUN_ENDED.is_set():
        raise HandoffError(f"stage {name}: stopped because its run ended.")
