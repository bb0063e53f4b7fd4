"""Holds the source of the arm's motion: policy, person, hold, fault or stop, and why."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from real.console.control.commands import RESET_MODES, STILL, Mode, Recovery
from real.teleop.takeover import HandInput

RECOVERING = "Wait until it is ready."
"""What the pages say between a person's word that the arm may be recovered, and its recovery."""
Log = Callable[[str, str, Mapping[str, Any]], None]
"""Writes an action to the audit log; the arguments are who, what and details."""


class ArmMode:
    """The mode, its cause, and the motion that a person asks for.

    Args:
        log: called with every change, before it becomes visible to anybody; a hold is logged
            last, because the arm does not wait for a disk.
        now: returns the time [s].
        trouble: says why nothing may move; empty if everything may.
    """

    def __init__(self, log: Log, now: Callable[[], float], trouble: Callable[[], str]) -> None:
        self._log = log
        self._now = now
        self.trouble = trouble
        self.mode = Mode.HOLD
        self.why = ""
        """Cause of the mode HOLD, FAULT or STOP, for the pages."""
        self.hand = STILL
        """Motion that the person asks for, in mode PERSON."""
        self.released = True
        """Whether every input that moves the arm was released since the arm last held still."""
        self.recovery = Recovery()
        """The last recovery from a fault."""
        self.asks_cause = False
        """Whether the person who recovers the arm has to say what caused the fault."""
        self.recovering = False
        """Whether the robot's process still has to recover the arm, as a person has asked it to."""
        self._fault = 0
        self._resume_at: float | None = None

    @property
    def acting(self) -> bool:
        """Whether policy or person may move the arm."""
        return self.mode in (Mode.POLICY, Mode.PERSON)

    @property
    def moving(self) -> bool:
        """Whether anything may move the arm: policy, person, the drive to the start, or a hand that
        guides it."""
        return self.acting or self.mode in RESET_MODES

    @property
    def resume_left(self) -> float | None:
        """Time until the arm resumes by itself [s]; None if it does not."""
        return None if self._resume_at is None else max(0.0, self._resume_at - self._now())

    @property
    def shown_why(self) -> str:
        """The cause for the pages; in HOLD, what does not let the arm move comes first."""
        if self.mode is Mode.HOLD:
            return self.trouble() or self.why
        return self.why if self.mode in (Mode.FAULT, Mode.STOP, *RESET_MODES) else ""

    def hold(self, why: str) -> None:
        """Holds the arm still until somebody or something resumes."""
        moved = self.moving
        if moved:
            self.mode = Mode.HOLD
        if self.mode is Mode.HOLD:
            self.why = why
        self._resume_at = None
        self.hand = STILL
        self.released = False
        if moved:
            self._log("console", "hold", {"why": why})

    def stop(self, who: str, what: str, why: str) -> None:
        """Ends the session; a session that has ended keeps its cause."""
        if self.mode is Mode.STOP:
            return
        self.mode = Mode.STOP
        self.why = why
        self.hand = STILL
        self._log(who, what, {"why": why})

    def fault(self, number: int, why: str, *, asks_cause: bool) -> None:
        """A fault has stopped the arm: it holds still until somebody recovers it.

        Args:
            number: number of the fault, counted by the robot's process.
            why: the fault as a sentence.
            asks_cause: whether `recover` needs a cause.
        """
        if self.mode is Mode.STOP:
            return
        self.mode = Mode.FAULT
        self.recovering = False
        self.why = why
        self.hand = STILL
        self.released = False
        self.asks_cause = asks_cause
        self._fault = number
        self._resume_at = None
        self._log("robot", "fault", {"why": why})

    def recover(self, person: str, cause: str) -> None:
        """A person has dealt with the fault, and the robot's process recovers the arm; it holds
        still until `recovered` and until somebody resumes."""
        if self.mode is not Mode.FAULT or (self.asks_cause and not cause):
            return
        self._log(person, "recovered the arm", {"fault": self.why, "cause": cause})
        self.recovery = Recovery(self._fault, person, cause)
        self.mode = Mode.HOLD
        self.recovering = True
        self.why = f"{person} recovers the arm. {RECOVERING}"

    def recovered(self, why: str) -> None:
        """The robot's process has recovered the arm; it holds still until somebody resumes.

        Args:
            why: what the pages say from now on in HOLD.
        """
        if self.recovering and self.mode is Mode.HOLD:
            self.why = why
        self.recovering = False

    def reopen(self) -> None:
        """Another process of the robot begins, or none is left: in HOLD, without a fault."""
        if self.mode in (Mode.STOP, Mode.FAULT):
            self.mode = Mode.HOLD
        self.recovery = Recovery()
        self.recovering = False

    def move(self, person: str, hand: HandInput) -> None:
        """Takes the motion that the person in control asks for; what was held since before the
        arm held still moves nothing until it is released."""
        if not self.acting:
            return
        engaged = hand.engaged and self.released
        if engaged != (self.mode is Mode.PERSON):
            self._log(person, "took the arm over" if engaged else "gave the arm back", {})
        self.mode = Mode.PERSON if engaged else Mode.POLICY
        self.hand = hand if engaged else STILL

    def resume(self, who: str, what: str) -> None:
        """Lets the arm move again, unless something is in the way, which the pages say for as long
        as it is."""
        if self.mode is not Mode.HOLD:
            return
        self._log(who, what, {})
        self._resume_at = None
        # After the log, which may have failed.
        if not self.trouble():
            self.mode = Mode.POLICY
            self.why = ""

    def reset(self, mode: Mode, person: str, why: str) -> None:
        """Begins a mode of the reset from HOLD, unless something is in the way, see `resume`.

        Args:
            mode: HOME or LIMP.
            person: who asked for it.
            why: what the pages say meanwhile.
        """
        if self.mode is not Mode.HOLD:
            return
        self._log(person, f"began {mode.value}", {})
        self._resume_at = None
        # After the log, which may have failed.
        if not self.trouble():
            self.mode = mode
            self.why = why

    def resume_after(self, seconds: float) -> None:
        """Resumes in `seconds`, unless the arm is held for another reason until then."""
        self._resume_at = self._now() + seconds

    def due(self) -> bool:
        """Whether the arm is to resume by itself now; true once."""
        if self._resume_at is None or self._now() < self._resume_at:
            return False
        self._resume_at = None
        return True
