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
SHOULDER_FROM, SHOULDER_AT = (-0.25, -0.42, 1.05), (0.5, 0.0, 0.1)
"""Position and look-at point of that camera [m], base frame."""
SHOULDER_SIZE = (480, 640)
"""Height and width of its pictures [px]."""
SIZE = (240, 320)
"""Height and width of the pictures of the scene's own cameras [px]."""
GRASP_SITES = ("grasp", "pusher_tip")
"""Sites of grippers and pushers, of which a scene has one."""
HIDDEN = np.array([0.0, 0.0, -10.0])
"""Place at which nobody sees the line [m]."""
CAMERAS = ("front", "wrist")
"""The scene's own cameras, which a policy from pictures observes."""
AIDS = 2
"""Number of mocap bodies that only the person sees: axes and line, the last of the scene."""
AXES_AT = np.array([0.28, -0.36, 0.002])
"""Place of the axes on the table [m]."""
_AXES_LENGTH = 0.08
_DROP_RADIUS, _DROP_LENGTH = 0.0015, 1.0
_AXES = (
    ((1.0, 0.0, 0.0), (0.85, 0.25, 0.20, 1.0)),
    ((0.0, 1.0, 0.0), (0.25, 0.65, 0.30, 1.0)),
    ((0.0, 0.0, 1.0), (0.25, 0.40, 0.85, 1.0)),
)
"""Direction and colour of the axes forward, left and up."""


def viewed_model(task: Task) -> mujoco.MjModel:
    """The compiled scene of a task, with the camera `shoulder`, and two further mocap bodies: the
    axes forward (red), left (green) and up (blue), and a line that drops from the grasp point to
    whatever is below."""
    import mujoco

    from sim.scene.scene import looking_at

    spec = task.scene()
    world = spec.worldbody
    quat = looking_at(np.array(SHOULDER_FROM), np.array(SHOULDER_AT))
    world.add_camera(name=SHOULDER, pos=SHOULDER_FROM, quat=quat, fovy=42)
    visual = {"type": mujoco.mjtGeom.mjGEOM_CAPSULE, "contype": 0, "conaffinity": 0, "group": 1}
    axes = world.add_body(name="axes", mocap=True)
    for direction, rgba in _AXES:
        end = _AXES_LENGTH * np.array(direction)
        axes.add_geom(**visual, fromto=[0, 0, 0, *end], size=[0.003, 0, 0], rgba=rgba)
    line = world.add_body(name="drop_line", mocap=True)
    line.add_geom(
        **visual,
        fromto=[0, 0, 0, 0, 0, -_DROP_LENGTH],
        size=[_DROP_RADIUS, 0, 0],
        rgba=[0.95, 0.65, 0.10, 0.8],
    )
    return spec.compile()


def own_places(model: mujoco.MjModel, goal: np.ndarray) -> np.ndarray:
    """Places [m] of the scene's own mocap bodies, three entries each, from the goal (G,) of the
    environment; zeros where it has fewer."""
    own = 3 * (model.nmocap - AIDS)
    places = np.zeros(own)
    entries = min(own, len(goal))
    places[:entries] = goal[:entries]
    return places


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
        own = own_places(self._model, goal)
        for cameras in self._cameras:
            person = SHOULDER in cameras.config.names
            aids = (AXES_AT, grasp) if person else (HIDDEN, HIDDEN)
            placed = np.concatenate([own, *aids])
            rendered = cameras.render([self._model], qpos[None], placed[None])
            for name, image in rendered.items():
                yield name.removeprefix("image_"), image[0]
