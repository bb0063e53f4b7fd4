"""Provides fixtures clamped to the table, and initial postures with an upright gripper.

Environments share one compiled model, so a fixture whose position differs between environments
needs joints. It can slide and turn on the table only against dry friction far above the maximum
force of the impedance law, as if it were clamped.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from robots.control.actions import CartesianDelta
from robots.franka.kinematics import inverse_kinematics
from robots.franka.robot import Robot
from robots.interfaces import Observation
from robots.spec import FieldSpec
from sim.scene.view import View
from sim.tasks.task import InitialState, ObservationTerm

if TYPE_CHECKING:
    import mujoco

GENTLE = CartesianDelta(translation=0.01, rotation=0.05, leash_translation=0.01, leash_rotation=0.1)
"""Action space with short steps for a part held by friction: a leash of 10 mm limits the force to
20 N, and the fingers hold against 30 N."""
MASS = 2.0
"""Mass of a fixture with its steel plate [kg]."""
INERTIA = (0.004, 0.004, 0.006)
"""(3,) inertia of a fixture with its plate of 0.12 by 0.12 m [kg m^2]."""
HOLD_FORCE = 300.0
"""Force at which the clamps slip [N], above the maximum force of the impedance law."""
HOLD_TORQUE = 30.0
"""Torque at which the clamps slip [Nm]."""


def add_fixture(spec: mujoco.MjSpec, name: str) -> mujoco.MjsBody:
    """Adds a body with its origin at the table top and the joints `name`_x, `name`_y [m] and
    `name`_yaw [rad].

    The task adds its geoms, with mass 0.
    """
    import mujoco

    body = spec.worldbody.add_body(
        name=name, mass=MASS, ipos=[0, 0, 0], inertia=INERTIA, explicitinertial=True, gravcomp=1.0
    )
    slide, hinge = mujoco.mjtJoint.mjJNT_SLIDE, mujoco.mjtJoint.mjJNT_HINGE
    for suffix, kind, axis, hold in (
        ("x", slide, [1, 0, 0], HOLD_FORCE),
        ("y", slide, [0, 1, 0], HOLD_FORCE),
        ("yaw", hinge, [0, 0, 1], HOLD_TORQUE),
    ):
        body.add_joint(
            name=f"{name}_{suffix}",
            type=kind,
            axis=axis,
            frictionloss=hold,
            damping=hold,
            # Dry friction is a soft constraint: with the engine's defaults a pushed fixture would
            # creep by mm/s.
            solimp_friction=[0.99, 0.9999, 0.001, 0.5, 2.0],
            solref_friction=[2.0 * spec.option.timestep, 1.0],
        )
    return body


def place_fixture(start: InitialState, name: str, pose: np.ndarray) -> None:
    """Places the fixture `name` at `pose` (3,): x, y [m], yaw [rad]."""
    for suffix, value in zip(("x", "y", "yaw"), pose, strict=True):
        start.joint(f"{name}_{suffix}", float(value))


def fixture_pose(view: View, name: str) -> np.ndarray:
    """(N, 3) x, y [m], yaw [rad] of the fixture `name`, base frame."""
    return np.stack([view.joint(f"{name}_{suffix}") for suffix in ("x", "y", "yaw")], axis=1)


def fixture(name: str) -> dict[str, ObservationTerm]:
    """Observation term of the fixture `name`: its pose."""
    spec = FieldSpec(
        shape=(3,),
        unit="m, m, rad",
        frame="base",
        about=f"x, y, yaw of the {name}",
        names=(("x", "y", "yaw"),),
    )
    return {f"{name}_pose": ObservationTerm(spec, lambda v: fixture_pose(v, name))}


def fixture_joints(observation: Observation, name: str) -> dict[str, np.ndarray]:
    """Joint positions (N,) of the fixture `name`, computed from its observed pose; see
    `Task.joints`."""
    return {
        f"{name}_{suffix}": observation[f"{name}_pose"][:, i]
        for i, suffix in enumerate(("x", "y", "yaw"))
    }


def in_fixture(view: View, name: str, point: np.ndarray) -> np.ndarray:
    """Transforms points (N, ..., 3) [m] from the base frame to the fixture's frame."""
    pose = fixture_pose(view, name).reshape(view.n, *[1] * (point.ndim - 2), 3)
    c, s = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    x, y = point[..., 0] - pose[..., 0], point[..., 1] - pose[..., 1]
    return np.stack([c * x + s * y, c * y - s * x, point[..., 2]], axis=-1)


def from_fixture(view: View, name: str, point: np.ndarray) -> np.ndarray:
    """Transforms points (N, ..., 3) [m] from the fixture's frame to the base frame."""
    pose = fixture_pose(view, name).reshape(view.n, *[1] * (point.ndim - 2), 3)
    c, s = np.cos(pose[..., 2]), np.sin(pose[..., 2])
    x, y = c * point[..., 0] - s * point[..., 1], s * point[..., 0] + c * point[..., 1]
    return np.stack([x + pose[..., 0], y + pose[..., 1], point[..., 2]], axis=-1)


def upright_posture(robot: Robot, position: np.ndarray, yaw: float) -> np.ndarray:
    """(J,) joint positions [rad] near the home posture with the frame "grasp" at `position` (3,)
    [m], pointing down, with yaw `yaw` [rad].

    Raises:
        HandoffError: the position is out of reach.
    """
    c, s = np.cos(yaw), np.sin(yaw)
    pose = np.eye(4)
    turn = np.array([[c, -s, 0.0], [s, c, 0.0], [0.0, 0.0, 1.0]])
    pose[:3, :3] = turn @ robot.gripper.flange_R_grasp.T
    pose[:3, 3] = position - pose[:3, :3] @ np.array([0.0, 0.0, robot.gripper.tcp_offset])
    return inverse_kinematics(robot, pose, robot.q_home)
