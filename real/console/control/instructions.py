"""Holds what a person tells a policy that takes instructions."""

from __future__ import annotations

from real.console.control.commands import Instruction


class InstructionOffer:
    """The instruction that is given at a page; it holds from the next episode on."""

    def __init__(self) -> None:
        self.offered = False
        """Whether the session's policy takes instructions from the pages."""
        self.given = Instruction()
        """The last one."""
        self._heard = 0
        """Number of the last one that the session has taken."""
        self._client = ""

    def connect(self, client: str, *, offered: bool) -> None:
        """A process of the robot connected, or disconnected; what was told stays if the same one
        comes back, so that a lost connection loses no instruction.

        Args:
            client: names the process; empty if it disconnected.
            offered: whether its policy takes instructions from the pages.
        """
        self.offered = offered
        if client and client != self._client:
            self._client = client
            self.given = Instruction()
            self._heard = 0

    def state(self, text: str, person: str) -> bool:
        """Takes an instruction, which replaces the last one; returns False if none is taken, or if
        it is empty."""
        if not self.offered or not text:
            return False
        self.given = Instruction(self.given.number + 1, text, person)
        return True

    def begin_episode(self, heard: int) -> None:
        """An episode began, for which the session has taken the instruction `heard`."""
        self._heard = heard

    def shown(self) -> dict[str, object]:
        """State for the pages, as plain values for JSON: whether instructions are taken, and the
        one that waits for the next episode, empty without one."""
        waits = self.given.number != self._heard
        return {"offered": self.offered, "next": self.given.text if waits else ""}
