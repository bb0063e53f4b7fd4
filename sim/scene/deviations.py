"""Describes how a simulated robot and the objects on its table differ from their models, so that a
twin can stand for a robot whose parameters nobody knows exactly."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from robots.config import config, read_yaml, validate
from robots.errors import HandoffError
from robots.franka.robot import Robot
from sim.scene.dynamics import UNITS, ArmDynamics, DynamicsValue, write_quantity
from sim.scene.randomize import Range, apply

LONGEST_DELAY = 0.5
"""Largest delay of targets [s]."""
HEAVIEST = 5.0
"""Largest payload [kg], more than an arm of Franka's is rated for."""
CONTROLLED = ("stiffness", "damping")
"""Quantities of the controller, which is the client's and not the twin's."""


@config
class ObjectDeviation:
    """Factor by which a quantity of objects differs from the model of the scene."""

    what: Literal["mass", "friction", "damping"]
    """Quantity. mass: a body's mass and inertia. friction: sliding friction of a geom in all its
    contacts. damping: damping of a joint, such as that of a drawer."""
    names: Annotated[tuple[str, ...], Field(min_length=1)]
    """Names of the bodies, geoms or joints; a trailing * matches any ending."""
    factor: Annotated[float, Field(gt=0.0, le=1000.0)]
    """Factor of the model's own value."""


@config
class Deviations:
    """Values in which a simulated arm and the objects of its scene differ from their models; what
    is not listed keeps the model's own value."""

    arm: tuple[DynamicsValue, ...] = ()
    """Values of the arm. viscous, friction: joint friction, proportional to velocity [Nm s/rad] and
    constant [Nm]. armature: reflected rotor inertia [kg m^2]. payload: mass between the fingertips
    that nobody has stated to the controller [kg]. delay: delay of all targets on their way to the
    arm's driver [s]."""
    objects: tuple[ObjectDeviation, ...] = ()
    """Values of the objects on the table."""

    @property
    def delay(self) -> float:
        """Delay of all targets on their way to the arm's driver [s]."""
        return sum(item.value for item in self.arm if item.what == "delay")

    @property
    def payload(self) -> float:
        """Mass between the fingertips that the controller does not know [kg]."""
        return sum(item.value for item in self.arm if item.what == "payload")

    def __post_init__(self) -> None:
        names = [item.name for item in self.arm]
        for item in self.arm:
            if item.what in CONTROLLED:
                raise HandoffError(
                    f"deviations: {item.name} is the controller's, which is the client's program and not the "
                    "simulated arm's. Remove it, or tune without it."
                )
            if names.count(item.name) > 1:
                raise HandoffError(f"deviations: {item.name} given more than once.")
            limit = {"delay": LONGEST_DELAY, "payload": HEAVIEST}.get(item.what, np.inf)
            if not 0.0 <= item.value <= limit:
                raise HandoffError(
                    f"deviations: {item.name} is {item.value} {UNITS[item.what]}, expected a number from 0"
                    + (f" to {limit}." if np.isfinite(limit) else ".")
                )
            if item.joints and item.what in ("payload", "delay"):
                raise HandoffError(
                    f"deviations: {item.what} has the joints {list(item.joints)}, expected none."
                )


def read_deviations(path: Path) -> Deviations:
    """Reads a YAML file of deviations.

    Raises:
        HandoffError: the file cannot be read, or holds something else.
    """
    values = read_yaml(path)
    if not isinstance(values, dict):
        raise HandoffError(
            f"{path}: expected the keys `arm` and `objects`, such as 'arm: [{{what: payload, value: 0.8}}]'."
        )
    return validate(Deviations, values, str(path))


def deviations_of(dynamics: ArmDynamics) -> Deviations:
    """The tuned values of an arm as deviations of a twin; intervals from which episodes draw are
    left out.

    Raises:
        HandoffError: gains of a controller, or a payload whose weight is compensated.
    """
    if dynamics.payload_compensated:
        raise HandoffError(
            "deviations: the dynamics were tuned with a compensated payload, which a twin does not have. State it to "
            "the driver with `arm.load_mass`."
        )
    values = tuple(replace(item, low=None, high=None) for item in dynamics.values)
    return Deviations(arm=values)


def apply_deviations(deviations: Deviations, model: Any, robot: Robot) -> None:
    """Writes all values but payload and delay into `model` (mujoco.MjModel) in place.

    Raises:
        HandoffError: a joint that the robot does not have, or an object that the scene does not
            have.
    """
    import mujoco

    base = copy.copy(model)
    for item in deviations.arm:
        if any(not 1 <= joint <= robot.num_joints for joint in item.joints):
            raise HandoffError(
                f"deviations: {item.name}, expected numbers of joints from 1 to {robot.num_joints}."
            )
        if item.what not in ("payload", "delay"):
            write_quantity(item.what, item.joints, item.value, base, model, robot)
    ranges = [
        Range(what=item.what, names=item.names, low=item.factor, high=item.factor)
        for item in deviations.objects
    ]
    factors = np.array([[item.factor] for item in deviations.objects])
    apply(ranges, factors, base, model)
    # The engine derives other quantities, such as contact softness, from masses and armatures.
    mujoco.mj_setConst(model, mujoco.MjData(model))
