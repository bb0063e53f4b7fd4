"""Holds what a session offers between two episodes: the drive to the start, and hand guiding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from real.console.control.commands import Mode, ResetAnswer

NOT_OFFERED = "This session has no arm to drive home or to guide by hand."
"""ResetAnswer of a session that does not say what it offers."""


class ResetQuestion(NamedTuple):
    """A question that a person may answer until they start the next episode."""

    number: int
    """Number of the question, counted from 1 by the robot's process."""
    text: str
    """The question, as a sentence."""
    choices: tuple[str, ...]
    """The answers."""


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
        self.question: ResetQuestion | None = None
        """What the person may answer until they start; None without a question."""
        self.answer = ResetAnswer()
        """The last answer."""

    def connect(self, refusals: Mapping[str, str] | None) -> None:
        """A process of the robot connected, or disconnected, and says what it offers."""
        self.refusals = refusals
        self.answer = ResetAnswer()
        self.begin_episode()

    def begin_episode(self) -> None:
        """An episode began."""
        self.open = False
        self.result = ""
        self.words = ""
        self.question = None

    def ask(self, question: ResetQuestion | None) -> None:
        """The session asks, or asks nothing; an answer to the same question stays."""
        self.question = question

    def takes(self, choice: int) -> bool:
        """Takes the person's answer, which replaces their last one; returns False if nothing is
        asked, or it is none of the choices."""
        question = self.question
        if not self.open or question is None or not 0 <= choice < len(question.choices):
            return False
        self.answer = ResetAnswer(question.number, choice)
        return True

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
        shown: dict[str, object] = {"open": self.open, "refusals": self.refusals}
        question = self.question
        if self.open and question is not None:
            given = self.answer.choice if self.answer.question == question.number else None
            shown["question"] = {
                "text": question.text,
                "choices": list(question.choices),
                "answer": given,
            }
        return shown
