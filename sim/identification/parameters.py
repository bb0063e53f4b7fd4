"""Defines the tunable parameters of a simulated arm with their ranges, and writes them into a
model."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.franka.robot import Robot

Quantity = Literal["stiffness", "damping", "viscous", "friction", "armature", "payload", "delay"]

UNITS: dict[str, str] = {
    "stiffness": "times the gain",
    "damping": "times the gain",
    "viscous": "Nm s/rad",
    "friction": "Nm",
    "armature": "kg m^2",
    "payload": "kg",
    "delay": "s",
}
"""Unit of each quantity's values."""

STICTION = (0.998, 0.9995, 0.001, 0.5, 2.0)
"""MuJoCo's `solimp` of dry friction. With the default, a joint under a load below the friction
torque creeps by milliradians per second; real joints stick."""


@config
class Parameter:
    """One tunable parameter of the simulated arm and its range."""

    what: Quantity
    """Quantity of the parameter. stiffness, damping: gains of the impedance law, as factors of
    `TrackingConfig.gains`. viscous, friction: joint friction, proportional to velocity [Nm s/rad]
    and constant [Nm]. armature: reflected rotor inertia [kg m^2]. payload: mass between the
    fingertips [kg]. delay: delay of all targets [s]."""
    joints: tuple[int, ...] = ()
    """Numbers, from 1, of the joints that share the value; empty for all joints. Ignored for
    payload and delay."""
    low: float
    """Lower bound, in the unit of `UNITS`."""
    high: float
    """Upper bound, in the unit of `UNITS`."""
    log: bool = False
    """Whether the search is uniform in the logarithm, suitable for factors."""

    @property
    def name(self) -> str:
        """Name in reports, such as `stiffness of joint 2`."""
        if self.what in ("payload", "delay"):
            return self.what
        if not self.joints:
            return f"{self.what} of all joints"
        plural = "s" if len(self.joints) > 1 else ""
        return f"{self.what} of joint{plural} {', '.join(map(str, self.joints))}"


def per_joint(
    robot: Robot, what: Quantity, low: float, high: float, *, log: bool = False
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
    """Writes `values` (D,) into `model` (mujoco.MjModel), a copy of `base` with joint impedance,
    and returns the delay [s].

    Call `mj_setConst` afterwards. Models of tasks with joint actions are supported, too, except for
    `payload`.

    Raises:
        HandoffError: the model lacks an actuator, a joint or the payload's body.
    """
    delay = 0.0
    for item, value in zip(parameters, values, strict=True):
        names = [robot.joint_names[joint - 1] for joint in item.joints] or robot.joint_names
        match item.what:
            case "stiffness":
                ids = [_find(base, item, "actuator", f"impedance_{name}").id for name in names]
                model.actuator_gainprm[ids, 0] = value * base.actuator_gainprm[ids, 0]
                model.actuator_biasprm[ids, 1] = value * base.actuator_biasprm[ids, 1]
            case "damping":
                ids = [_find(base, item, "actuator", f"impedance_{name}").id for name in names]
                model.actuator_biasprm[ids, 2] = value * base.actuator_biasprm[ids, 2]
            case "payload":
                body = _find(base, item, "body", "payload").id
                model.body_mass[body] = value
                # A ball of 3 cm radius: small compared with the effect of its distance from the
                # joints.
                model.body_inertia[body] = 0.4 * value * 0.03**2
            case "delay":
                delay += float(value)
            case "viscous" | "friction" | "armature":
                _write_joints(
                    item,
                    value,
                    [_find(base, item, "joint", name).dofadr[0] for name in names],
                    model,
                )
    return delay


def _write_joints(item: Parameter, value: float, dofs: list[int], model: Any) -> None:
    match item.what:
        case "viscous":
            model.dof_damping[dofs] = value
        case "armature":
            model.dof_armature[dofs] = value
        case _:
            model.dof_frictionloss[dofs] = value
            model.dof_solimp[dofs] = STICTION


def _find(
    model: Any, item: Parameter, kind: Literal["actuator", "joint", "body"], name: str
) -> Any:
    try:
        return getattr(model, kind)(name)
    except KeyError:
        raise HandoffError(
            f"{item.name}: the model has no {kind} '{name}'. Does its task have joint actions?"
        ) from None


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
