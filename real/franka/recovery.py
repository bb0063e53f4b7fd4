"""Recovers an arm that a fault has stopped, on the word of a person who has found the cause."""

from __future__ import annotations

from typing import Any

from real.arm import ConnectionLostError
from real.franka.config import FrankaConfig
from real.franka.connection import connect
from real.franka.kept_faults import clear_fault, kept_fault
from real.franka.slot import robot_slot
from robots.errors import SafetyError


def recover_arm(config: FrankaConfig, person: str, cause: str) -> None:
    """Clears the errors of an arm that nobody is connected to, and the fault that is kept of it.

    Nothing moves, and the arm's settings stay as they are.

    Args:
        config: address and connection of the arm.
        person: the person who found the cause.
        cause: the cause; needed if a fault is kept.

    Raises:
        SafetyError: the robot refuses, e.g. because the user stop is still pressed.
        ConnectionLostError: no control answers.
        HandoffError: the arm is in use, or a kept fault is cleared without a cause.
    """
    with robot_slot(config.host, config.robot):
        robot = connect(config.host, config.realtime)
        refusal = clear_errors(robot)
        # An error keeps the variables on its way, and so a connection, of which a robot has one.
        del robot
        if refusal is not None:
            raise refusal
        if config.latch == "kept" and kept_fault(config.host) is not None:
            clear_fault(config.host, person, cause)


def clear_errors(robot: Any) -> SafetyError | None:
    """Clears the errors of a connected `franky.Robot`; returns the error if it refuses, e.g.
    because the user stop is still pressed.

    Raises:
        ConnectionLostError: it does not answer any more.
    """
    import franky

    try:
        if robot.recover_from_errors():
            return None
    except franky.CommandException as error:
        return SafetyError(f"arm: recovery refused ({error}). Is the user stop still pressed?")
    except franky.NetworkException as error:
        raise ConnectionLostError(
            f"arm: connection lost while it was recovered ({error}). Is it still powered and linked?"
        ) from None
    return SafetyError("arm: recovery failed. Does the cause of the fault persist?")
