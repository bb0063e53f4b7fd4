"""Builds the scene that a person at the console sees: that of the task, with a camera over the
person's shoulder and aids for judging depth."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import numpy as np

from robots.errors import HandoffError

if TYPE_CHECKING:
    import mujoco

    from sim.tasks.task import Task

SHOULDER = "shoulder"
"""Name of the camera behind and above the arm, which looks where the person's keys say forward."""
SHOULDER_FROM, SHOULDER_AT = (-0.25, -0.50, 0.85), (0.5, 0.0, 0.15)
"""Position and look-at point of that camera [m], base frame."""
SHOULDER_SIZE = (480, 640)
"""Height and width of its pictures [px]."""
SIZE = (240, 320)
"""Height and width of the pictures of the scene's own cameras [px]."""
GRASP_SITES = ("grasp", "pusher_tip")
"""Sites of grippers and pushers, of which a scene has one."""
DROP_LINE, GOAL_LINE = "drop_line", "goal_line_"
"""Names of the bodies of the line below the grasp point, and of those below goals, up to their
number."""
HIDDEN = np.array([0.0, 0.0, -10.0])
"""Place at which nobody sees the line [m]."""
CAMERAS = ("front", "wrist")
"""The scene's own cameras, which a policy from pictures observes."""
AXES_AT = np.array([0.28, -0.36, 0.002])
"""Place of the axes on the table [m]."""
_AXES_LENGTH = 0.08
_DROP_RADIUS, _DROP_LENGTH = 0.003, 1.0
_DROP_COLOUR, _GOAL_COLOUR = (0.95, 0.65, 0.10, 0.8), (0.20, 0.45, 1.00, 0.9)
_AXES = (
    ((1.0, 0.0, 0.0), (0.85, 0.25, 0.20, 1.0)),
    ((0.0, 1.0, 0.0), (0.25, 0.65, 0.30, 1.0)),
    ((0.0, 0.0, 1.0), (0.25, 0.40, 0.85, 1.0)),
)
"""Direction and colour of the axes forward, left and up."""


def viewed_model(task: Task) -> mujoco.MjModel:
    """The compiled scene of a task, with the camera `shoulder`, and further mocap bodies after its
    own: the axes forward (red), left (green) and up (blue), an orange line that drops from the
    grasp point to whatever is below, and a blue one from every goal."""
    import mujoco

    from sim.scene.scene import looking_at

    spec = task.scene()
    world = spec.worldbody
    own = sum(body.mocap for body in spec.bodies)
    quat = looking_at(np.array(SHOULDER_FROM), np.array(SHOULDER_AT))
    world.add_camera(name=SHOULDER, pos=SHOULDER_FROM, quat=quat, fovy=42)
    visual = {"type": mujoco.mjtGeom.mjGEOM_CAPSULE, "contype": 0, "conaffinity": 0, "group": 1}
    axes = world.add_body(name="axes", mocap=True)
    for direction, rgba in _AXES:
        end = _AXES_LENGTH * np.array(direction)
        axes.add_geom(**visual, fromto=[0, 0, 0, *end], size=[0.003, 0, 0], rgba=rgba)
    lines = {DROP_LINE: _DROP_COLOUR}
    lines |= {f"{GOAL_LINE}{number}": _GOAL_COLOUR for number in range(own)}
    for name, rgba in lines.items():
        line = world.add_body(name=name, mocap=True)
        fromto = [0, 0, 0, 0, 0, -_DROP_LENGTH]
        line.add_geom(**visual, fromto=fromto, size=[_DROP_RADIUS, 0, 0], rgba=rgba)
    return spec.compile()


def placed(
    model: mujoco.MjModel, goal: np.ndarray, grasp: np.ndarray, *, aids: bool = True
) -> np.ndarray:
    """(nmocap, 3) places [m] of all mocap bodies.

    Args:
        model: see `viewed_model`.
        goal: (G,) goal of the environment, whose entries are the places of the scene's own bodies,
            three each; those that it lacks are zeros.
        grasp: (3,) grasp point, from which the line drops [m].
        aids: False hides axes and lines.
    """
    own = (model.nmocap - 2) // 2
    goals = np.zeros((own, 3))
    entries = min(goals.size, len(goal))
    goals.ravel()[:entries] = goal[:entries]
    if not aids:
        return np.concatenate([goals, np.tile(HIDDEN, (2 + own, 1))])
    return np.concatenate([goals, [AXES_AT, grasp], goals])


def grasp_site(model: mujoco.MjModel) -> int:
    """The site from which the line drops: the grasp point, or a pusher's tip; -1 without one."""
    sites = {model.site(number).name: number for number in range(model.nsite)}
    return next((sites[name] for name in GRASP_SITES if name in sites), -1)


class PersonsCameras:
    """Renders what a person sees of one environment.

    Args:
        model: see `viewed_model`.

    Raises:
        HandoffError: no OpenGL on this machine.
    """

    def __init__(self, model: mujoco.MjModel) -> None:
        from sim.scene.cameras import Cameras, CamerasConfig

        sizes = {(SHOULDER,): SHOULDER_SIZE, CAMERAS: SIZE}
        self._model = model
        self._cameras = [
            Cameras(model, CamerasConfig(names=names, height=height, width=width))
            for names, (height, width) in sizes.items()
        ]
        self.names = (SHOULDER, *CAMERAS)
        """Names of the cameras, in the order of the page."""

    @classmethod
    def if_possible(cls, model: mujoco.MjModel) -> PersonsCameras | None:
        """The cameras; None without OpenGL, where a session goes on without pictures."""
        with suppress(HandoffError):
            return cls(model)
        return None

    def images(
        self, qpos: np.ndarray, goal: np.ndarray, grasp: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Name and image (height, width, 3) uint8 of every camera; those of the scene show what a
        policy sees, without axes and line.

        Args:
            qpos: (nq,) generalised positions.
            goal: (G,) goal of the environment, at whose first entries the scene's own mocap bodies
                are placed.
            grasp: (3,) grasp point, from which the line drops [m].
        """
        for cameras in self._cameras:
            places = placed(self._model, goal, grasp, aids=SHOULDER in cameras.config.names)
            rendered = cameras.render([self._model], qpos[None], places.reshape(1, -1))
            for name, image in rendered.items():
                yield name.removeprefix("image_"), image[0]
