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
    STOP = "stop"
    """The session ends."""


class ControlCommand(NamedTuple):
    """A command from the console to the robot's process."""

    mode: Mode
    hand: HandInput
    """ArmMode that the person asks for, in mode PERSON."""
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
