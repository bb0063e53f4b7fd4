"""Writes tuned parameters of the arm's dynamics into a compiled model, so that environments move as
the recorded arm did (`sim.identification.tune`)."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any, Literal

import numpy as np

from robots.config import Finite, Whole, config
from robots.errors import HandoffError
from robots.franka import RobotName
from robots.franka.robot import Robot

DynamicsQuantity = Literal[
    "stiffness", "damping", "viscous", "friction", "armature", "payload", "delay"
]

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
PAYLOAD = "payload"
"""Name of the payload's body, which models without a payload lack."""
CARTESIAN = tuple(f"impedance_{axis}" for axis in ("x", "y", "z", "roll", "pitch", "yaw"))
"""Actuators of the Cartesian impedance law (`sim.scene.scene.add_cartesian_impedance`)."""
STICTION = (0.998, 0.9995, 0.001, 0.5, 2.0)
"""MuJoCo's `solimp` of dry friction. With the default, a joint under a load below the friction
torque creeps by milliradians per second; real joints stick."""


@config
class DynamicsValue:
    """Value of one quantity of the arm's dynamics."""

    what: DynamicsQuantity
    """Quantity. stiffness, damping: gains of the impedance law, as factors of the task's. viscous,
    friction: joint friction, proportional to velocity [Nm s/rad] and constant [Nm]. armature:
    reflected rotor inertia [kg m^2]. payload: mass between the fingertips [kg]. delay: delay of all
    targets [s]."""
    joints: tuple[Whole, ...] = ()
    """Numbers, from 1, of the joints that share the value; empty for all joints. Payload and delay
    have none."""
    value: Finite
    """Value in the unit of `UNITS`."""
    low: Finite | None = None
    """Smallest value that an episode draws, uniformly up to `high`; None takes `value` in all
    episodes."""
    high: Finite | None = None
    """Largest value that an episode draws; None as `low`."""

    @property
    def name(self) -> str:
        """Name in reports, such as `stiffness of joint 2`."""
        return quantity_name(self.what, self.joints)

    @property
    def bounds(self) -> tuple[float, float]:
        """Smallest and largest value that an episode draws."""
        return (
            self.value if self.low is None else self.low,
            self.value if self.high is None else self.high,
        )


@config
class ArmDynamics:
    """Tuned parameters of a simulated arm; quantities that are not listed keep the model's own
    values."""

    robot: RobotName = "fr3"
    """Name of the arm that was tuned."""
    values: tuple[DynamicsValue, ...] = ()
    """Tuned values."""
    payload_compensated: bool = False
    """Whether the arm compensates the payload's weight; then only its inertia has an effect."""
    source: str = ""
    """Digest of the tuning that found the values; empty for values written by hand."""

    @property
    def delay(self) -> float:
        """Delay of all targets [s]; 0 without a value for it."""
        return sum(item.value for item in self.values if item.what == "delay")

    @property
    def varies(self) -> bool:
        """Whether episodes draw values of their own."""
        return any(item.bounds != (item.value, item.value) for item in self.values)

    def drawn(self, unit: np.ndarray) -> ArmDynamics:
        """The dynamics of one episode.

        Args:
            unit: (D,) place of every value between its bounds, 0 to 1.
        """
        values = tuple(
            replace(item, value=float(low + (high - low) * at), low=None, high=None)
            for item, at in zip(self.values, unit, strict=True)
            for low, high in (item.bounds,)
        )
        return replace(self, values=values)


def quantity_name(what: str, joints: tuple[int, ...]) -> str:
    """Name of a quantity in reports, such as `stiffness of joint 2`."""
    if what in ("payload", "delay"):
        return what
    if not joints:
        return f"{what} of all joints"
    plural = "s" if len(joints) > 1 else ""
    return f"{what} of joint{plural} {', '.join(map(str, joints))}"


def check_dynamics(dynamics: ArmDynamics, robot: Robot) -> None:
    """Checks that `dynamics` can be those of `robot`.

    Raises:
        HandoffError: another robot, a joint that it does not have, a quantity given twice, or a
            value that is negative or not finite.
    """
    if dynamics.robot != robot.name:
        raise HandoffError(
            f"dynamics: tuned for the robot '{dynamics.robot}', the environments have '{robot.name}'. "
            "Tune them with recordings of this robot."
        )
    names = [item.name for item in dynamics.values]
    duplicates = sorted({name for name in names if names.count(name) > 1})
    if duplicates:
        raise HandoffError(f"dynamics: {duplicates} given more than once.")
    for item in dynamics.values:
        if any(not 1 <= joint <= robot.num_joints for joint in item.joints):
            raise HandoffError(
                f"dynamics: {item.name}, expected numbers of joints from 1 to {robot.num_joints}."
            )
        if item.what in ("payload", "delay") and item.joints:
            raise HandoffError(
                f"dynamics: {item.what} has the joints {list(item.joints)}, expected none."
            )
        if not (np.isfinite(item.value) and item.value >= 0.0):
            raise HandoffError(
                f"dynamics: {item.name} is {item.value} {UNITS[item.what]}, expected a number from 0."
            )
        low, high = item.bounds
        if not 0.0 <= low <= item.value <= high:
            raise HandoffError(
                f"dynamics: {item.name} is {item.value} {UNITS[item.what]} with bounds [{low}, {high}], expected it "
                "between them, and none below 0."
            )


def add_payload(spec: Any, robot: Robot, *, compensated: bool) -> None:
    """Adds the body `payload`, almost without mass, between the fingertips to `spec`
    (mujoco.MjSpec)."""
    offset = spec.site(robot.flange_name).pos + np.array([0.0, 0.0, robot.gripper.tcp_offset])
    spec.body(robot.link_names[-1]).add_body(
        name=PAYLOAD,
        pos=offset,
        gravcomp=1.0 if compensated else 0.0,
        mass=1e-6,
        ipos=[0, 0, 0],
        inertia=[1e-9] * 3,
        explicitinertial=True,
    )


def apply_dynamics(dynamics: ArmDynamics, model: Any, robot: Robot) -> None:
    """Writes all values but the delay into `model` (mujoco.MjModel) in place.

    Raises:
        HandoffError: an error of `check_dynamics` or `write_quantity`.
    """
    import mujoco

    check_dynamics(dynamics, robot)
    base = copy.copy(model)
    for item in dynamics.values:
        write_quantity(item.what, item.joints, item.value, base, model, robot)
    # The engine derives other quantities, such as contact softness, from masses and armatures.
    mujoco.mj_setConst(model, mujoco.MjData(model))


def apply_drawn(
    tuned: ArmDynamics, drawn: ArmDynamics, base: Any, model: Any, robot: Robot
) -> None:
    """Writes the values of an episode but the delay into `model` (mujoco.MjModel), a copy of
    `base`, which has the values of `tuned`. Call `mj_setConst` afterwards."""
    for item, own in zip(tuned.values, drawn.values, strict=True):
        factor = item.what in ("stiffness", "damping")
        value = own.value / item.value if factor else own.value
        write_quantity(item.what, item.joints, value, base, model, robot)


def refuse_varying(dynamics: ArmDynamics | None, engine: str) -> None:
    """Refuses dynamics that episodes draw, for an engine that cannot.

    Raises:
        HandoffError: values with bounds.
    """
    if dynamics is not None and dynamics.varies:
        raise HandoffError(
            f"{engine}: the dynamics have bounds between which episodes draw, which the engine mujoco alone can. Tune "
            "with spread=0, or use that engine."
        )


def write_quantity(
    what: DynamicsQuantity,
    joints: tuple[int, ...],
    value: float,
    base: Any,
    model: Any,
    robot: Robot,
) -> None:
    """Writes one value into `model` (mujoco.MjModel), a copy of `base`; a delay is not part of a
    model and is skipped. Call `mj_setConst` afterwards.

    The gains of all joints also scale a Cartesian impedance law, as if every joint's torque were
    scaled; those of single joints cannot.

    Raises:
        HandoffError: the model lacks an actuator, a joint or the payload's body.
    """
    name = quantity_name(what, joints)
    names = [robot.joint_names[joint - 1] for joint in joints] or list(robot.joint_names)
    match what:
        case "stiffness":
            ids = _gains(name, joints, names, base, robot)
            model.actuator_gainprm[ids, 0] = value * base.actuator_gainprm[ids, 0]
            model.actuator_biasprm[ids, 1] = value * base.actuator_biasprm[ids, 1]
        case "damping":
            ids = _gains(name, joints, names, base, robot)
            model.actuator_biasprm[ids, 2] = value * base.actuator_biasprm[ids, 2]
        case "payload":
            body = _find(base, name, "body", PAYLOAD).id
            model.body_mass[body] = value
            # A ball of 3 cm radius: small compared with the effect of its distance from the
            # joints.
            model.body_inertia[body] = 0.4 * value * 0.03**2
        case "viscous":
            model.dof_damping[_dofs(name, names, base)] = value
        case "armature":
            model.dof_armature[_dofs(name, names, base)] = value
        case "friction":
            dofs = _dofs(name, names, base)
            model.dof_frictionloss[dofs] = value
            model.dof_solimp[dofs] = STICTION
        case "delay":
            return


def _gains(
    name: str, joints: tuple[int, ...], names: list[str], base: Any, robot: Robot
) -> list[int]:
    """Numbers of the actuators whose gains the quantity scales."""
    actuators = {base.actuator(i).name for i in range(base.nu)}
    if not set(CARTESIAN) <= actuators:
        return [_find(base, name, "actuator", f"impedance_{joint}").id for joint in names]
    if joints:
        raise HandoffError(
            f"{name}: the environments have Cartesian actions, whose controller has no gains of single joints. "
            "Tune the gain of all joints, or use joint actions."
        )
    posture = [f"posture_{joint}" for joint in robot.joint_names]
    return [base.actuator(actuator).id for actuator in (*CARTESIAN, *posture)]


def _dofs(name: str, names: list[str], base: Any) -> list[int]:
    return [int(_find(base, name, "joint", joint).dofadr[0]) for joint in names]


def _find(model: Any, name: str, kind: Literal["actuator", "joint", "body"], element: str) -> Any:
    try:
        return getattr(model, kind)(element)
    except KeyError:
        raise HandoffError(
            f"{name}: the model has no {kind} '{element}'. Is it the model of this robot?"
        ) from None
