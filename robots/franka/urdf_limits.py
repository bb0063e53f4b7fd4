"""Compares the URDF of a connected robot with the configured robot."""

from __future__ import annotations

from xml.etree import ElementTree

from robots.errors import SafetyError
from robots.franka.catalog import ROBOTS
from robots.franka.robot import Robot

TOLERANCE = 1e-3
"""Difference up to which two limits count as equal [rad, rad/s]; the URDF of the FR3 with
system 5.9 has 2.90074 where the published table has 2.9007."""


def check_urdf(robot: Robot, urdf: str) -> None:
    """Checks that `urdf` describes `robot`: the name, and the limits of every joint.

    An unknown name of the robot is ignored. Joints are identified by the suffixes of their names,
    `joint1` to `jointJ`.

    Args:
        robot: the configured robot.
        urdf: URDF that the connected robot sent.

    Raises:
        SafetyError: an invalid URDF, another robot, a joint without limits, or a limit that
            differs by more than `TOLERANCE`.
    """
    try:
        root = ElementTree.fromstring(urdf)
        stated = [_limits_of(root, number) for number in range(1, robot.num_joints + 1)]
    except (ElementTree.ParseError, ValueError) as error:
        raise SafetyError(
            f"{robot.name}: the connected arm sent a URDF that cannot be read ({error}). Is it a Franka robot?"
        ) from None
    name = root.get("name", "")
    if name in ROBOTS and name != robot.name:
        raise SafetyError(
            f"{robot.name}: the connected arm is '{name}'. Set `robot: {name}`, or connect the other arm."
        )
    for i, limits in enumerate(stated):
        _check_joint(robot, i, limits)


def _check_joint(robot: Robot, i: int, stated: dict[str, float]) -> None:
    """Compares the URDF's limits of the joint with index `i`."""
    limits = robot.limits
    expected = {"lower": limits.q_min[i], "upper": limits.q_max[i], "velocity": limits.dq_max[i]}
    for quantity, value in expected.items():
        if quantity not in stated:
            raise SafetyError(
                f"{robot.name}: the connected arm's URDF has no {quantity} limit of joint{i + 1}, "
                f"expected {value:.4f}. Has the arm fewer joints?"
            )
        if not abs(stated[quantity] - value) <= TOLERANCE:
            raise SafetyError(
                f"{robot.name}: {quantity} limit of joint{i + 1} is {stated[quantity]:.4f} in the connected arm's "
                f"URDF, {value:.4f} in Handoff's table. Is it another robot, or has it older firmware?"
            )


def _limits_of(root: ElementTree.Element, number: int) -> dict[str, float]:
    """Limits of joint number `number` by their names in the URDF; empty without such a joint."""
    for joint in root.iter("joint"):
        limit = joint.find("limit")
        if joint.get("name", "").endswith(f"joint{number}") and limit is not None:
            return {name: float(value) for name, value in limit.attrib.items()}
    return {}
