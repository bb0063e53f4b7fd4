"""Holds the state of the people at the console: their inputs, message rates and label."""

from __future__ import annotations

from dataclasses import dataclass

from real.console.commands import STILL
from real.teleop.takeover import HandInput
from robots.errors import HandoffError
from robots.interfaces import Label

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


@dataclass
class PendingLabel:
    """A label that can still be undone."""

    label: Label
    person: str
    until: float
    """Time at which the label takes effect [s]."""
    resume: bool = True
    """Whether the arm resumes once the label takes effect."""


class EpisodeLabel:
    """The label of the running episode: pending while it can be undone, then final."""

    def __init__(self) -> None:
        self.pending: PendingLabel | None = None
        self.final = Label.NONE
        """The last label that took effect."""
        self.number = 0
        """Number of labels that took effect since the robot's process connected."""

    def reset(self) -> None:
        """Forgets all labels, for a new connection of the robot's process."""
        self.pending = None
        self.final = Label.NONE
        self.number = 0

    def commit(self) -> PendingLabel:
        """Makes the pending label final, and returns it."""
        assert self.pending is not None, "only called with a pending label"
        committed = self.pending
        self.pending = None
        self.final = committed.label
        self.number += 1
        return committed
