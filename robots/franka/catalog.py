"""Finds a robot by its name in a configuration: one of Handoff's, the dotted path of one's own, or
an entry point of the group `handoff.robots`.

A module outside Handoff has a member `ROBOT`, or the dotted path names the member.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Annotated

from robots import outside
from robots.errors import HandoffError, suggest
from robots.franka.robot import Robot

ROBOTS = ("fr3", "fr3v2", "panda")
"""Names of Handoff's robots in configurations."""
MEMBER = "ROBOT"
"""Name of the robot in a module outside Handoff."""


RobotName = Annotated[str, outside.KnownName(ROBOTS, outside.ROBOTS, "robot")]
"""Name of a robot in configurations."""


def robot_module(name: str) -> str:
    """Dotted name of the module that defines the robot called `name`.

    Raises:
        HandoffError: no robot has this name.
    """
    if name not in ROBOTS and (target := outside.outside_target(name, outside.ROBOTS)):
        return outside.split_target(target)[0]
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
            return _outside_robot(name)


@cache
def _outside_robot(name: str) -> Robot:
    target = outside.outside_target(name, outside.ROBOTS)
    if target is None:
        raise HandoffError(f"robot: '{name}' is not known, {suggest(name, ROBOTS)}")
    about = f"robot '{name}'"
    robot = outside.find_outside(target, MEMBER, about, "robot")
    if not isinstance(robot, Robot):
        raise HandoffError(f"{about}: is a {type(robot).__name__}, expected a Robot.")
    return replace(robot, path=name)
