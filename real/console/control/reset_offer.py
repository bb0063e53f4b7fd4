"""Holds what a session offers between two episodes: the drive to the start, and hand guiding."""

from __future__ import annotations

from collections.abc import Mapping

from real.console.control.commands import Mode

NOT_OFFERED = "This session has no arm to drive home or to guide by hand."
"""Answer of a session that does not say what it offers."""


class ResetOffer:
    """The time between two episodes, in which a person lays the table."""

    def __init__(self) -> None:
        self.refusals: Mapping[str, str] | None = None
        """Why the session offers no `home` or `limp`, as sentences; empty ones where it does. None
        if the robot's process does not say."""
        self.open = False
        """Whether the session waits for the person between two episodes."""
        self.result = ""
        """How the last episode ended, as a sentence."""
        self.words = ""
        """What there is to do, or what has been done, as sentences."""

    def connect(self, refusals: Mapping[str, str] | None) -> None:
        """A process of the robot connected, or disconnected, and says what it offers."""
        self.refusals = refusals
        self.begin_episode()

    def begin_episode(self) -> None:
        """An episode began."""
        self.open = False
        self.result = ""
        self.words = ""

    def refusal(self, mode: Mode, *, running: bool) -> str:
        """Why `mode` cannot begin now, as a sentence for the pages; empty if it can.

        Args:
            mode: HOME or LIMP.
            running: whether an episode runs.
        """
        refused = NOT_OFFERED if self.refusals is None else self.refusals.get(mode.value, "")
        if refused:
            return refused
        if self.open:
            return ""
        if running:
            return "An episode is running: label it first, or discard it."
        return "The arm is between its start and the episode. Resume, or end the session."

    def shown(self) -> dict[str, object]:
        """State for the pages, as plain values for JSON."""
        return {"open": self.open, "refusals": self.refusals}
