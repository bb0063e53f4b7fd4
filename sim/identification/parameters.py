"""Defines the tunable parameters of a simulated arm with their ranges, and writes them into a
model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.franka.robot import Robot
from sim.identification.config import (
    ListedParameters,
    Parameter,
    ParameterSet,
    PerJointParameters,
    SharedParameters,
)
from sim.scene.dynamics import UNITS, DynamicsQuantity, write_quantity


def per_joint(
    robot: Robot, what: DynamicsQuantity, low: float, high: float, *, log: bool = False
) -> tuple[Parameter, ...]:
    """(J,) parameters, one for each joint of `robot`."""
    return tuple(
        Parameter(what=what, joints=(joint,), low=low, high=high, log=log)
        for joint in range(1, robot.num_joints + 1)
    )


def all_parameters(robot: Robot) -> tuple[Parameter, ...]:
    """All tunable parameters of `robot`, in ranges of our choice; the payload is at most the rating
    of Franka's arms."""
    return (
        *per_joint(robot, "stiffness", 0.5, 2.0, log=True),
        *per_joint(robot, "damping", 0.5, 2.0, log=True),
        *per_joint(robot, "friction", 0.0, 2.0),
        *per_joint(robot, "armature", 0.01, 0.6),
        Parameter(what="payload", low=0.0, high=3.0),
        Parameter(what="delay", low=0.0, high=0.05),
    )


def shared_parameters(robot: Robot) -> tuple[Parameter, ...]:
    """Parameters with one value for all joints of `robot`, in the ranges of `all_parameters`; all
    of them have an effect under Cartesian actions, too."""
    widest = {item.what: item for item in all_parameters(robot)}
    return tuple(replace(item, joints=()) for item in widest.values())


def parameters_of(which: ParameterSet, robot: Robot) -> tuple[Parameter, ...]:
    """The parameters that an option names."""
    match which:
        case SharedParameters():
            return shared_parameters(robot)
        case PerJointParameters():
            return all_parameters(robot)
        case ListedParameters():
            return which.items


def to_values(parameters: Sequence[Parameter], unit: np.ndarray) -> np.ndarray:
    """Converts unit coordinates (..., D) to values (..., D)."""
    low, high = np.array([p.low for p in parameters]), np.array([p.high for p in parameters])
    log = np.array([p.log for p in parameters])
    # The logarithm of a lower bound of 0 is never used.
    ratio = np.where(log, high / np.where(log, low, high), 1.0)
    return np.where(log, np.where(log, low, 1.0) * ratio**unit, low + (high - low) * unit)


def check_parameters(parameters: Sequence[Parameter], robot: Robot) -> None:
    """Checks joints and bounds.

    Raises:
        HandoffError: no parameters, a duplicate, a joint that `robot` does not have, or a lower
            bound that is not below the upper one.
    """
    if not parameters:
        raise HandoffError("parameters: 0 given, at least 1 is needed.")
    names = [parameter.name for parameter in parameters]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise HandoffError(f"parameters: {duplicates} given more than once.")
    for item in parameters:
        if any(not 1 <= joint <= robot.num_joints for joint in item.joints):
            raise HandoffError(
                f"parameter {item.name}: joints {list(item.joints)}, expected numbers from 1 to {robot.num_joints}."
            )
        lowest = 1e-12 if item.log or item.what in ("stiffness", "damping") else 0.0
        if not (lowest <= item.low < item.high < float("inf")):
            raise HandoffError(
                f"parameter {item.name}: range [{item.low}, {item.high}] {UNITS[item.what]}, expected "
                f"{'0 <' if lowest else '0 <='} low < high. Are the bounds swapped?"
            )


def write_parameters(
    parameters: Sequence[Parameter], values: np.ndarray, base: Any, model: Any, robot: Robot
) -> float:
    """Writes `values` (D,) into `model` (mujoco.MjModel), a copy of `base` with an impedance law,
    and returns the delay [s]. Call `mj_setConst` afterwards.

    Raises:
        HandoffError: see `sim.scene.dynamics.write_quantity`.
    """
    delay = 0.0
    for item, value in zip(parameters, values, strict=True):
        write_quantity(item.what, item.joints, float(value), base, model, robot)
        delay += float(value) if item.what == "delay" else 0.0
    return delay


def nominal_values(parameters: Sequence[Parameter], robot: Robot) -> np.ndarray:
    """(D,) values of the robot's model before tuning: factors of 1, no friction, no payload, no
    delay."""
    nominal = {
        "stiffness": 1.0,
        "damping": 1.0,
        "viscous": robot.joint_damping,
        "armature": robot.armature,
    }
    return np.array([nominal.get(parameter.what, 0.0) for parameter in parameters])
