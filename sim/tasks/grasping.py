"""Provides terms for grasping a box from above: the object, the criterion of a grasp, and the
scripted expert's pick."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from robots.control.relations import box_yaw, offset_from_gripper, turns_from_gripper
from robots.spec import XYZ, FieldSpec
from sim.scene.scene import FINGER_HALF
from sim.scene.view import View, memoized
from sim.tasks.task import CLOSED, ExpertTarget, ObservationTerm

if TYPE_CHECKING:
    import mujoco

DENSITY = 500.0
"""Density of grasped objects [kg/m^3]: softwood."""
HOVER = 0.07
"""Height above an object from which the gripper moves straight down [m]."""
ALIGNED = 0.008
"""Horizontal distance within which the gripper may move down [m]."""

MIDDLE = np.array([0.44, 0.0, 0.32])
"""(3,) point above the middle of the table, far from the arm's limits [m], base frame."""

CUBE_TURN = ObservationTerm(
    FieldSpec(
        shape=(2,),
        about="cosine, sine of four times the cube's yaw relative to the gripper: equal for all sides",
        names=(("cos", "sin"),),
        relations=(turns_from_gripper("cube_quaternion"),),
    ),
    lambda view: quarter_turns(view, "cube"),
)
"""Observation term of the body `cube`."""
CUBE_OFFSET = ObservationTerm(
    FieldSpec(
        shape=(3,),
        unit="m",
        frame="base",
        about="from the grasp point to the cube's centre",
        names=XYZ,
        relations=(offset_from_gripper("cube_position"),),
    ),
    lambda view: view.position("cube") - view.grasp_position,
)
"""Observation term of the body `cube`."""


def add_cube(
    spec: mujoco.MjSpec,
    name: str,
    half: float,
    rgba: tuple[float, float, float, float],
    position: tuple[float, float, float] = (0.5, 0.0, 0.02),
) -> None:
    """Adds a free cube with half edge `half` [m]; body, joint and geom are called `name`."""
    import mujoco

    cube = spec.worldbody.add_body(name=name, pos=position)
    cube.add_freejoint(name=name)
    cube.add_geom(
        name=name,
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[half] * 3,
        density=DENSITY,
        rgba=rgba,
        condim=4,
        # As stiff as the engine can integrate: with the default the fingers would penetrate by
        # millimetres.
        solref=[2.0 * spec.option.timestep, 1.0],
        # A gripper that presses on a light cube with 60 N pushes it into the table by 12 mm with
        # the default of 0.95 and by 4 mm with 0.98; with 0.99 a cube wedged under the fingers makes
        # the arm jump.
        solimp=[0.9, 0.98, 0.001, 0.5, 2.0],
        # The cube's contact parameters are used in all its contacts, not the mean of two bodies'.
        priority=1,
        friction=[1.0, 0.005, 0.0001],
        contype=1,
        conaffinity=1,
    )


@memoized
def held(view: View, name: str, half: float) -> np.ndarray:
    """(N,) bool: the body `name` with half thickness `half` [m] is between the closed fingers.

    The criterion is geometric: its centre lies between the pads and the opening equals its width.
    """
    offset = (
        np.swapaxes(view.grasp_rotation, 1, 2)
        @ (view.position(name) - view.grasp_position)[..., None]
    )
    inside = (np.abs(offset[:, 0, 0]) < half) & (np.abs(offset[:, 1, 0]) < half)
    inside &= np.abs(offset[:, 2, 0]) < FINGER_HALF[2] + 0.5 * half
    # A cube grasped across its corners is wider than its edge.
    return inside & (view.width < 2.0 * half + 0.006) & (view.width > 2.0 * half - 0.006)


def beyond_reach(view: View, name: str, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(N,) bool: the body `name` is outside the area with corners `low`, `high` (2,) [m], base
    frame, or below the table."""
    position = view.position(name)
    return ((position[:, :2] < low) | (position[:, :2] > high)).any(axis=1) | (
        position[:, 2] < -0.05
    )


def quarter_turn_yaw(quaternion: np.ndarray, view: View) -> np.ndarray:
    """(N,) yaw [rad] of a grasp parallel to a box's sides: of the four, the one closest to the
    gripper's current yaw."""
    yaw = box_yaw(quaternion)
    current = view.grasp_pose[:, 5]
    nearest = yaw - np.round((yaw - current) / (np.pi / 2)) * (np.pi / 2)
    # Beyond the action space's limit the next side of the box is equivalent.
    return np.where(np.abs(nearest) > 1.2, nearest - np.sign(nearest) * (np.pi / 2), nearest)


def free_yaw(view: View, name: str, others: Sequence[str], half: float) -> np.ndarray:
    """(N,) yaw [rad] of a grasp parallel to the sides of the cube `name` whose fingers do not
    collide with one of `others`.

    If both orientations are blocked, the one closest to the gripper's current yaw.
    """
    yaw = quarter_turn_yaw(view.quaternion(name), view)
    other = yaw - np.where(yaw < 0.0, -1.0, 1.0) * np.pi / 2
    return np.where(
        _blocked(view, name, others, half, yaw) & ~_blocked(view, name, others, half, other),
        other,
        yaw,
    )


def _blocked(
    view: View, name: str, others: Sequence[str], half: float, yaw: np.ndarray
) -> np.ndarray:
    """(N,) bool: one of `others`, cubes of the same size, is below a finger of the open gripper."""
    here = view.position(name)
    blocked = np.zeros(view.n, bool)
    diagonal = np.sqrt(2.0) * half
    for other in others:
        apart = view.position(other) - here
        along = -np.sin(yaw) * apart[:, 0] + np.cos(yaw) * apart[:, 1]
        across = np.cos(yaw) * apart[:, 0] + np.sin(yaw) * apart[:, 1]
        near = (np.abs(along) < view.width_max / 2 + 2 * FINGER_HALF[1] + diagonal) & (
            np.abs(across) < FINGER_HALF[0] + diagonal
        )
        blocked |= near & (np.abs(apart[:, 2]) < half)
    return blocked


def quarter_turns(view: View, name: str) -> np.ndarray:
    """(N, 2) cosine and sine of four times the yaw of the box `name` relative to the gripper, equal
    for all four sides."""
    turn = quarter_turn_yaw(view.quaternion(name), view) - view.grasp_pose[:, 5]
    return np.stack([np.cos(4.0 * turn), np.sin(4.0 * turn)], axis=1)


def pick_up(view: View, position: np.ndarray, yaw: np.ndarray, half: float) -> ExpertTarget:
    """Expert's target that opens the gripper, moves above `position`, down, and closes; it depends
    only on the current state.

    Args:
        view: the current state.
        position: (N, 3) object's centre [m].
        yaw: (N,) yaw of the grasp [rad].
        half: half of the object's thickness between the fingers [m].
    """
    offset = position - view.grasp_position
    level = np.linalg.norm(offset[:, :2], axis=1)
    yaw_error = np.abs(yaw - view.grasp_pose[:, 5])
    low = -offset[:, 2] < 0.6 * FINGER_HALF[2] + 0.5 * half
    aligned = (level < ALIGNED) & (yaw_error < 0.08)
    # Once it is low, small disturbances must not make the gripper rise again.
    aligned |= low & (level < 2.0 * ALIGNED) & (yaw_error < 0.2)
    # A gripper that closed too early opens before it moves down.
    ready = aligned & ((view.width > 2.0 * half + 0.012) | low)
    pose = np.zeros((view.n, 6))
    pose[:, :3], pose[:, 5] = position, yaw
    pose[:, 2] += np.where(ready, 0.0, HOVER)
    arrived = ready & (np.abs(offset[:, 2]) < 0.006)
    # Once closing has begun it continues, even if the object moves slightly between the fingers.
    closing = ready & low & (view.target[:, -1] < view.width_max - 0.01)
    return ExpertTarget(pose=pose, width=np.where(arrived | closing, CLOSED, view.width_max))
