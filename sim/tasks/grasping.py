"""Grasping a box from above: the object, when it counts as held, and the part of a scripted expert
that picks it up."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sim.scene.scene import FINGER_HALF
from sim.scene.view import View, once_each, rotation_of
from sim.tasks.task import CLOSED, Intent

if TYPE_CHECKING:
    import mujoco

DENSITY = 500.0
"""Of grasped objects [kg/m^3]: soft wood."""
HOVER = 0.07
"""Height above an object from which the hand goes straight down [m]."""
ALIGNED = 0.008
"""Horizontal distance within which it may go down [m]."""

MIDDLE = np.array([0.44, 0.0, 0.32])
"""(3,) a place over the table's middle, far from the arm's limits [m], base."""


def add_cube(
    spec: mujoco.MjSpec,
    name: str,
    half: float,
    rgba: tuple[float, float, float, float],
    position: tuple[float, float, float] = (0.5, 0.0, 0.02),
) -> None:
    """A free cube with half edge `half` [m]; body, joint and geom are all called `name`."""
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
        # As stiff as the engine can integrate: at its default the fingers would sink in by
        # millimetres.
        solref=[2.0 * spec.option.timestep, 1.0],
        # A hand that leans on a light cube with 60 N presses it into the table by 12 mm at the
        # default of 0.95, by 4 mm at 0.98; at 0.99 a cube wedged under the fingers throws the arm
        # off.
        solimp=[0.9, 0.98, 0.001, 0.5, 2.0],
        # Against all else the cube's softness counts, not the mean of two.
        priority=1,
        friction=[1.0, 0.005, 0.0001],
        contype=1,
        conaffinity=1,
    )


@once_each
def held(view: View, name: str, half: float) -> np.ndarray:
    """(N,) bool: the body `name`, `half` [m] thick to each side, is between closed fingers.

    Judged by geometry: its centre lies between the pads and the opening is that of the object.
    """
    offset = (
        np.swapaxes(view.grasp_rotation, 1, 2)
        @ (view.position(name) - view.grasp_position)[..., None]
    )
    inside = (np.abs(offset[:, 0, 0]) < half) & (np.abs(offset[:, 1, 0]) < half)
    inside &= np.abs(offset[:, 2, 0]) < FINGER_HALF[2] + 0.5 * half
    # A cube held across its corner is wider than its edge.
    return inside & (view.width < 2.0 * half + 0.006) & (view.width > 2.0 * half - 0.006)


def beyond_reach(view: View, name: str, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(N,) bool: the body `name` is outside the area with corners `low`, `high` (2,) [m], base, or
    below the table."""
    position = view.position(name)
    return ((position[:, :2] < low) | (position[:, :2] > high)).any(axis=1) | (
        position[:, 2] < -0.05
    )


def quarter_turn_yaw(quaternion: np.ndarray, view: View) -> np.ndarray:
    """(N,) yaw [rad] of a grasp square to a box's sides: of the four, that next to the hand's
    present yaw."""
    axes = rotation_of(quaternion)
    # Whichever side the box lies on, its most level axis says how it is turned.
    level = np.argmin(np.abs(axes[:, 2]), axis=1)
    axis = axes[np.arange(view.n), :, level]
    yaw, present = np.arctan2(axis[:, 1], axis[:, 0]), view.grasp_pose[:, 5]
    turned = yaw - np.round((yaw - present) / (np.pi / 2)) * (np.pi / 2)
    # Beyond the action space's limit the next side of the box is as good.
    return np.where(np.abs(turned) > 1.2, turned - np.sign(turned) * (np.pi / 2), turned)


def free_yaw(view: View, name: str, others: Sequence[str], half: float) -> np.ndarray:
    """(N,) yaw [rad] of a grasp square to the sides of the cube `name`, the fingers not where one
    of `others` is.

    Where both ways are blocked, the one next to the hand's present yaw.
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
    """(N,) bool: one of `others`, cubes as large, is where a finger of the open hand would go
    down."""
    here, found, diagonal = view.position(name), np.zeros(view.n, bool), np.sqrt(2.0) * half
    for other in others:
        apart = view.position(other) - here
        along = -np.sin(yaw) * apart[:, 0] + np.cos(yaw) * apart[:, 1]
        across = np.cos(yaw) * apart[:, 0] + np.sin(yaw) * apart[:, 1]
        near = (np.abs(along) < view.width_max / 2 + 2 * FINGER_HALF[1] + diagonal) & (
            np.abs(across) < FINGER_HALF[0] + diagonal
        )
        found |= near & (np.abs(apart[:, 2]) < half)
    return found


def quarter_turns(view: View, name: str) -> np.ndarray:
    """(N, 2) cosine and sine of four times the yaw of the box `name` less the hand's, alike for all
    sides."""
    turn = quarter_turn_yaw(view.quaternion(name), view) - view.grasp_pose[:, 5]
    return np.stack([np.cos(4.0 * turn), np.sin(4.0 * turn)], axis=1)


def pick_up(view: View, position: np.ndarray, yaw: np.ndarray, half: float) -> Intent:
    """Opens, goes above `position`, down, and closes; decided anew from each state.

    Args:
        view: the present.
        position: (N, 3) of the object's centre [m].
        yaw: (N,) of the grasp [rad].
        half: half of the object's thickness between the fingers [m].
    """
    offset = position - view.grasp_position
    level = np.linalg.norm(offset[:, :2], axis=1)
    turned = np.abs(yaw - view.grasp_pose[:, 5])
    low = -offset[:, 2] < 0.6 * FINGER_HALF[2] + 0.5 * half
    aligned = (level < ALIGNED) & (turned < 0.08)
    # Once low, small pushes must not make the hand rise again.
    aligned |= low & (level < 2.0 * ALIGNED) & (turned < 0.2)
    # Closed too early, the hand opens before it goes down.
    ready = aligned & ((view.width > 2.0 * half + 0.012) | low)
    pose = np.zeros((view.n, 6))
    pose[:, :3], pose[:, 5] = position, yaw
    pose[:, 2] += np.where(ready, 0.0, HOVER)
    arrived = ready & (np.abs(offset[:, 2]) < 0.006)
    # Having begun to close, go on, though the object moves a little in the fingers.
    closing = ready & low & (view.target[:, -1] < view.width_max - 0.01)
    return Intent(pose=pose, width=np.where(arrived | closing, CLOSED, view.width_max))
