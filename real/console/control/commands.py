"""Defines the command that the console sends to the robot's process."""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import numpy as np

from real.teleop.takeover import HandInput
from robots.interfaces import Label

STILL = HandInput(False, np.zeros(6), 0)
"""Input of a person who does not hold the arm."""


class Mode(StrEnum):
    """Source of the arm's motion."""

    POLICY = "policy"
    PERSON = "person"
    HOLD = "hold"
    """The arm holds still until the person in control presses `go on`."""
    HOME = "home"
    """Between two episodes: the session drives the arm to its start."""
    LIMP = "limp"
    """Between two episodes: the arm yields to the hand that guides it."""
    FAULT = "fault"
    """A fault has stopped the arm, which holds still until the person in control recovers it."""
    STOP = "stop"
    """The session ends."""


RESET_MODES = (Mode.HOME, Mode.LIMP)
"""Modes of the reset between two episodes, in which neither policy nor keys move the arm."""
STANDSTILL = (Mode.HOLD, Mode.FAULT, Mode.STOP)
"""Modes in which nothing moves the arm."""


class Recovery(NamedTuple):
    """A person's word that the arm may be recovered after a fault."""

    fault: int = 0
    """Number of the fault, as the robot's process counts them from 1; 0 before the first word."""
    person: str = ""
    """Name of the person."""
    cause: str = ""
    """Cause of the fault, as the person gave it; empty if they were not asked."""


class ResetAnswer(NamedTuple):
    """A person's answer to a question between two episodes."""

    question: int = 0
    """Number of the question, as the robot's process counts them from 1; 0 before the first
    answer."""
    choice: int = -1
    """Index of the answer among the choices; -1 before the first answer."""


class Instruction(NamedTuple):
    """What a person tells the policy, from the next episode on."""

    number: int = 0
    """Number of the instruction, counted from 1; 0 before the first."""
    text: str = ""
    """The instruction, as a sentence."""
    person: str = ""
    """Name of the person."""


class ControlCommand(NamedTuple):
    """A command from the console to the robot's process."""

    mode: Mode
    hand: HandInput
    """Motion that the person asks for, in mode PERSON."""
    person: str
    """Name of the person in control; empty if nobody is."""
    sequence: int
    """Number of the inputs that led to the command."""
    label: Label
    """The last label of an episode."""
    label_number: int
    """Number of the label, counted from 1; 0 before the first. A label takes effect once, when its
    number is new."""
    episode: int = -1
    """Number of the episode that the label is for; -1 before the first label."""
    recovery: Recovery = Recovery()
    """The last recovery from a fault."""
    answer: ResetAnswer = ResetAnswer()
    """The last answer to a question between two episodes."""
    instruction: Instruction = Instruction()
    """The last instruction."""
