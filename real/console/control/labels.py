"""Holds the running episode and its label, which can be undone for a while."""

from __future__ import annotations

from dataclasses import dataclass

from robots.interfaces import Label


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
        self.running: int | None = None
        """Number of the running episode; None between episodes, when no label is taken."""
        self.pending: PendingLabel | None = None
        self.final = Label.NONE
        """The last label that took effect."""
        self.number = 0
        """Number of labels that took effect since the robot's process connected."""
        self.episode = -1
        """Number of the episode of the last label that took effect."""

    def reset(self) -> None:
        """Forgets all labels, for a new connection of the robot's process."""
        self.running = None
        self.pending = None
        self.final = Label.NONE
        self.number = 0
        self.episode = -1

    def begin(self, episode: int) -> None:
        """An episode began; a pending label of another one is forgotten."""
        if self.running != episode:
            self.pending = None
        self.running = episode

    def end(self) -> PendingLabel | None:
        """The running episode ended; returns its label that was still pending, which does not
        count."""
        late = self.pending
        self.pending = None
        self.running = None
        return late

    def commit(self) -> PendingLabel:
        """Makes the pending label final, and returns it."""
        assert self.pending is not None
        assert self.running is not None
        committed = self.pending
        self.pending = None
        self.final = committed.label
        self.episode = self.running
        self.number += 1
        return committed
