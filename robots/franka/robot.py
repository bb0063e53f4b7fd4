"""Defines the classes that describe a robot: names, kinematics, limits, masses and gripper.

Every group of figures names its `source`, the publication that states them. J is the number of
joints; link 0 is the base, so there are J + 1 links. Arrays are read-only, because all
callers share them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.franka.chain import KinematicChain


@dataclass(frozen=True, kw_only=True, eq=False)
class JointLimits:
    """Limits of each joint beyond which the robot's control stops.

    Firmware versions differ: a driver compares these figures with the limits that the connected
    robot states in its own URDF.
    """

    q_min: np.ndarray
    """(J,) lowest joint positions [rad]."""
    q_max: np.ndarray
    """(J,) highest joint positions [rad]."""
    dq_max: np.ndarray
    """(J,) highest joint speeds [rad/s]; `velocity_limits` tightens them near the stops."""
    ddq_max: np.ndarray
    """(J,) highest joint accelerations [rad/s^2]."""
    dddq_max: np.ndarray
    """(J,) highest joint jerks [rad/s^3]."""
    tau_max: np.ndarray
    """(J,) highest joint torques [Nm], gravity included."""
    dtau_max: np.ndarray
    """(J,) highest rates of change of the joint torques [Nm/s]."""
    dq_offset: np.ndarray | None = None
    """(J,) `velocity_offset` of the position-dependent velocity limit [rad/s].

    None for a robot whose limit does not depend on the position; `ddq_dec` is None then, too.
    """
    ddq_dec: np.ndarray | None = None
    """(J,) `deceleration_limit` of the position-dependent velocity limit [rad/s^2]."""
    source: str
    """Publication that states these figures."""

    def velocity_limits(self, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Lowest and highest permitted joint velocities at the joint positions `q`.

        Robot specification of the FR3, towards the upper stop:
        `min(dq_max, max(0, -offset + sqrt(max(0, 2 dec (q_max - q)))))`; mirrored for the lower.
        A robot without these two figures has the same limits at all positions.

        Args:
            q: (..., J) joint positions [rad].

        Returns:
            Lowest and highest permitted velocity, each (..., J) [rad/s].
        """
        if self.dq_offset is None or self.ddq_dec is None:
            upper = np.broadcast_to(self.dq_max, np.shape(q)).copy()
            return -upper, upper
        to_upper = np.sqrt(np.maximum(0.0, 2.0 * self.ddq_dec * (self.q_max - q)))
        to_lower = np.sqrt(np.maximum(0.0, 2.0 * self.ddq_dec * (q - self.q_min)))
        upper = np.minimum(self.dq_max, np.maximum(0.0, to_upper - self.dq_offset))
        lower = -np.minimum(self.dq_max, np.maximum(0.0, to_lower - self.dq_offset))
        return lower, upper


@dataclass(frozen=True, kw_only=True, eq=False)
class CartesianLimits:
    """Limits of end effector and elbow beyond which the robot's control stops.

    Order of the entries: translation, rotation, elbow.
    """

    velocity: np.ndarray
    """(3,) highest speeds [m/s, rad/s, rad/s]."""
    acceleration: np.ndarray
    """(3,) highest accelerations [m/s^2, rad/s^2, rad/s^2]."""
    jerk: np.ndarray
    """(3,) highest jerks [m/s^3, rad/s^3, rad/s^3]."""
    source: str
    """Publication that states these figures."""


@dataclass(frozen=True, kw_only=True, eq=False)
class LinkInertials:
    """Masses of the links, base first, in the frames of the kinematic chain."""

    mass: np.ndarray
    """(J + 1,) masses [kg]."""
    com: np.ndarray
    """(J + 1, 3) centres of mass in the link frames [m]."""
    inertia: np.ndarray
    """(J + 1, 6) inertia about the centre of mass, link axes, order xx yy zz xy xz yz [kg m^2]."""
    source: str
    """Publication that states these figures."""

    def tensor(self, link: int) -> np.ndarray:
        """(3, 3) inertia of link number `link` about its centre of mass, link axes [kg m^2]."""
        xx, yy, zz, xy, xz, yz = self.inertia[link]
        return np.array([[xx, xy, xz], [xy, yy, yz], [xz, yz, zz]])


@dataclass(frozen=True, kw_only=True, eq=False)
class JointFriction:
    """Friction of the joints: a sigmoid of their velocities, which is zero at rest.

    `amplitude / (1 + exp(-steepness (dq + offset)))`, less the same at rest.
    """

    amplitude: np.ndarray
    """(J,) difference of the friction between fast motions forwards and backwards [Nm]."""
    steepness: np.ndarray
    """(J,) how fast friction grows with velocity [s/rad]."""
    offset: np.ndarray
    """(J,) velocity about which the sigmoid is symmetric, with its sign reversed [rad/s]."""
    source: str
    """Publication that states these figures."""

    def torque(self, dq: np.ndarray) -> np.ndarray:
        """(..., J) torque that the joints lose at the velocities `dq` (..., J) [rad/s], [Nm]; it
        has the sign of the velocity."""
        moving = self.amplitude / (1.0 + np.exp(-self.steepness * (dq + self.offset)))
        return moving - self.amplitude / (1.0 + np.exp(-self.steepness * self.offset))


@dataclass(frozen=True, kw_only=True, eq=False)
class Tool:
    """An end effector, with the figures that the robot's controller needs."""

    flange_T_ee: np.ndarray
    """(4, 4) frame of the end effector in the flange's [m]."""
    mass: float
    """Mass [kg]."""
    com: np.ndarray
    """(3,) centre of mass in the flange frame [m]."""
    inertia: np.ndarray
    """(3, 3) inertia about the centre of mass, flange axes [kg m^2]."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Gripper:
    """A parallel gripper, turned about the flange's z; its fingers move along its own y."""

    width_max: float
    """Largest opening between the fingertips [m]; the smallest is 0."""
    speed_max: float
    """Highest rate of change of the opening [m/s]."""
    force_max: float
    """Highest grasping force that the gripper sustains [N]."""
    mass: float
    """Mass with both fingers [kg]."""
    finger_mass: float
    """Mass of one finger [kg]."""
    com: np.ndarray
    """(3,) centre of mass from the flange, gripper axes [m]."""
    inertia: np.ndarray
    """(3,) principal inertia about the centre of mass, gripper axes [kg m^2]."""
    yaw: float
    """Turn of the gripper about the flange's z [rad]."""
    tcp_offset: float
    """Distance from the flange to the point between the fingertips, along z [m]."""
    source: str
    """Publications that state these figures."""

    @property
    def flange_R_gripper(self) -> np.ndarray:
        """(3, 3) axes of the gripper in the flange's."""
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        return np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])

    @property
    def flange_R_grasp(self) -> np.ndarray:
        """(3, 3) axes of the frame "grasp" in the flange's.

        They are the gripper's axes turned by pi about its x: for a gripper that points straight
        down, with its fingers left and right, they are the base's axes.
        """
        c, s = np.cos(self.yaw), np.sin(self.yaw)
        return np.array([[c, s, 0.0], [s, -c, 0.0], [0.0, 0.0, -1.0]])

    @property
    def tool(self) -> Tool:
        """The gripper as an end effector, its frame between the fingertips."""
        turned = self.flange_R_gripper
        flange_T_ee = np.eye(4)
        flange_T_ee[:3, :3] = turned
        flange_T_ee[2, 3] = self.tcp_offset
        inertia = turned @ np.diag(self.inertia) @ turned.T
        return Tool(flange_T_ee=flange_T_ee, mass=self.mass, com=turned @ self.com, inertia=inertia)


@dataclass(frozen=True, kw_only=True, eq=False)
class Robot:
    """One robot, with all figures that depend on its model.

    Two robots are equal only if they are the same object; a configuration holds the name.
    """

    name: str
    """Name of the robot; names in its MuJoCo model begin with it."""
    title: str
    """Name by which its maker sells it."""
    chain: KinematicChain
    """Kinematics from base to flange."""
    limits: JointLimits
    """Limits of the joints."""
    cartesian: CartesianLimits
    """Limits of end effector and elbow."""
    inertials: LinkInertials
    """Masses of the links."""
    armature: float
    """Apparent rotor inertia per joint in simulation [kg m^2]."""
    joint_damping: float
    """Viscous friction per joint in simulation [Nms/rad], left after the robot's compensation.
    `friction` comes on top of it, where a simulated arm has it."""
    q_home: np.ndarray
    """(J,) ready posture [rad]."""
    gripper: Gripper
    """Gripper that the robot carries unless a task mounts another tool."""
    model_xml: Path
    """MuJoCo model of the arm alone, built from primitive shapes; its figures equal these."""
    friction: JointFriction | None = None
    """Friction of the joints that the robot's controller leaves, for a simulated arm that has it;
    None where nothing is published."""
    reach: float = math.inf
    """Largest distance of the flange from the base's axis by the data sheet [m]; infinity leaves it
    to the kinematics."""
    path: str = ""
    """Name by which a configuration selects a robot outside Handoff, set when it is found; empty
    for those of Handoff, which are selected by `name`."""

    def __post_init__(self) -> None:
        _make_read_only(self)
        _check(self)

    @property
    def config_name(self) -> str:
        """Name of the robot in configurations, episodes and contracts, by which it is found."""
        return self.path or self.name

    @property
    def num_joints(self) -> int:
        """Number of joints, J."""
        return self.chain.num_joints

    @property
    def joint_names(self) -> tuple[str, ...]:
        """(J,) names of the joints in the MuJoCo model."""
        return tuple(f"{self.name}_joint{i}" for i in range(1, self.num_joints + 1))

    @property
    def link_names(self) -> tuple[str, ...]:
        """(J + 1,) names of the links in the MuJoCo model, base first."""
        return tuple(f"{self.name}_link{i}" for i in range(self.num_joints + 1))

    @property
    def flange_name(self) -> str:
        """Name of the flange's site in the MuJoCo model; it belongs to the last link."""
        return f"{self.name}_flange"

    @property
    def tool(self) -> Tool:
        """End effector that the robot carries unless a task mounts another one: its gripper."""
        return self.gripper.tool

    def check_per_joint(
        self, name: str, values: Sequence[float], highest: np.ndarray | None = None, unit: str = ""
    ) -> None:
        """Checks that the setting `name` has one entry for every joint.

        Args:
            name: name of the setting.
            values: its entries.
            highest: (J,) limits of the entries; None for none.
            unit: unit of the entries.

        Raises:
            HandoffError: the number of entries differs from the number of joints, or an entry
                exceeds its limit.
        """
        if len(values) != self.num_joints:
            raise HandoffError(
                f"{self.name}: {name} has {len(values)} entries, expected {self.num_joints}, one per joint. "
                "Was it written for another robot?"
            )
        if highest is None:
            return
        for i, (value, limit) in enumerate(zip(values, highest, strict=True)):
            if not value <= limit:
                raise HandoffError(
                    f"{self.name}: {name} of joint{i + 1} is {value} {unit}, limit {limit:g} {unit} by the data sheet."
                )


def _make_read_only(figures: Any) -> None:
    """Makes all arrays of a dataclass, and of the dataclasses in it, read-only."""
    for item in fields(figures):
        value = getattr(figures, item.name)
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
        elif is_dataclass(value):
            _make_read_only(value)


def _check(robot: Robot) -> None:
    """Checks that all figures have the same number of joints, and that q_home is within the limits.

    Raises:
        HandoffError: a figure has another shape, is missing or is out of range.
    """
    joints, limits = robot.num_joints, robot.limits
    for name, value in _per_joint(limits).items():
        _check_shape(robot, f"limits.{name}", value, (joints,))
    _check_shape(robot, "q_home", robot.q_home, (joints,))
    _check_shape(robot, "inertials.mass", robot.inertials.mass, (joints + 1,))
    _check_shape(robot, "inertials.com", robot.inertials.com, (joints + 1, 3))
    _check_shape(robot, "inertials.inertia", robot.inertials.inertia, (joints + 1, 6))
    if robot.friction is not None:
        for name, value in _per_joint(robot.friction).items():
            _check_shape(robot, f"friction.{name}", value, (joints,))
    if (limits.dq_offset is None) != (limits.ddq_dec is None):
        raise HandoffError(
            f"{robot.name}: one of limits.dq_offset and limits.ddq_dec is missing, expected both or "
            "neither. The position-dependent velocity limit needs the two."
        )
    outside = ~((robot.q_home > limits.q_min) & (robot.q_home < limits.q_max))
    if outside.any():
        i = int(np.argmax(outside))
        raise HandoffError(
            f"{robot.name}: q_home of joint{i + 1} is {robot.q_home[i]:.4f} rad, expected between "
            f"{limits.q_min[i]:.4f} and {limits.q_max[i]:.4f}. Are the limits in degrees, or swapped?"
        )


def _per_joint(figures: JointLimits | JointFriction) -> dict[str, np.ndarray]:
    """The arrays of the figures by name."""
    values = {item.name: getattr(figures, item.name) for item in fields(figures)}
    return {name: value for name, value in values.items() if isinstance(value, np.ndarray)}


def _check_shape(robot: Robot, name: str, value: np.ndarray, expected: tuple[int, ...]) -> None:
    if value.shape != expected:
        raise HandoffError(
            f"{robot.name}: {name} has the shape {value.shape}, expected {expected} for "
            f"{robot.num_joints} joints. Was a joint forgotten?"
        )
