"""Holds the state of the people at the console: their inputs and message rates."""

from __future__ import annotations

from dataclasses import dataclass

from real.console.control.commands import STILL
from real.teleop.takeover import HandInput
from robots.errors import HandoffError

MOST_REFUSALS = 10
"""Largest number of refused connections in a period that are written down one by one."""
REFUSAL_SECONDS = 10.0
"""Length of a period [s]."""


@dataclass
class Person:
    """A person at an open page."""

    name: str
    address: str
    last_heard: float
    """Time of the page's last inputs [s]."""
    visible: bool = True
    """Whether the browser shows the page."""
    down: frozenset[str] = frozenset()
    """Actions whose keys or buttons are down."""
    hand: HandInput = STILL
    """Motion that the newest inputs ask for."""
    sequence: int = -1
    """Number of the newest inputs."""
    ending: float | None = None
    """Time since which the person holds the key that ends the session [s]; None if they do not."""
    window_start: float = 0.0
    """Start of the second in which messages are being counted [s]."""
    window_messages: int = 0
    """Number of messages in that second."""

    def count_message(self, now: float) -> int:
        """Counts a message at time `now` [s]; returns the number of messages in the present
        second."""
        if now - self.window_start >= 1.0:
            self.window_start = now
            self.window_messages = 0
        self.window_messages += 1
        return self.window_messages


class RefusalCount:
    """Refused connections, of which at most `MOST_REFUSALS` are written down in a period, so that
    nobody fills the disk with them."""

    def __init__(self) -> None:
        self._began = 0.0
        self._count = 0

    def counts(self, now: float) -> bool:
        """Counts a refusal at time `now` [s]; whether it is to be written down."""
        self._count += 1
        if self._count == 1:
            self._began = now
        return self._count <= MOST_REFUSALS

    def left_out(self, now: float) -> int:
        """At the end of a period, number of its refusals that were not written down."""
        if not self._count or now - self._began < REFUSAL_SECONDS:
            return 0
        left_out = max(0, self._count - MOST_REFUSALS)
        self._count = 0
        return left_out


class FloodedError(HandoffError):
    """A page sent more messages than `ArbiterConfig.messages` allows."""
