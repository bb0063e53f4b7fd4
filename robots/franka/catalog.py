"""Finds a robot by its name in a configuration."""

from __future__ import annotations

from typing import Literal, get_args

from robots.errors import HandoffError, suggest
from robots.franka.robot import Robot

RobotName = Literal["fr3", "fr3v2", "panda"]
"""Names of the robots in configurations."""

ROBOTS: tuple[RobotName, ...] = get_args(RobotName)


def robot_module(name: str) -> str:
    """Dotted name of the module that defines the robot called `name`.

    Raises:
        HandoffError: no robot has this name.
    """
    return f"robots.franka.{find_robot(name).name}"


def find_robot(name: str) -> Robot:
    """The robot called `name`.

    Raises:
        HandoffError: no robot has this name; the error lists those that exist.
    """
    match name:
        case "fr3":
            from robots.franka.fr3 import FR3

            return FR3
        case "fr3v2":
            from robots.franka.fr3v2 import FR3V2

            return FR3V2
        case "panda":
            from robots.franka.panda import PANDA

            return PANDA
        case _:
            raise HandoffError(f"robot: '{name}' is not known, {suggest(name, ROBOTS)}")
