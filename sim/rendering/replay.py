"""Renders recorded or imagined states: a task's scene is posed according to observations."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from contextlib import closing

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation
from sim.engines.mujoco import build_model
from sim.scene.cameras import Cameras, CamerasConfig
from sim.tasks.task import Task


def render_observations(
    task: Task, observation: Observation, *, camera: str = "front", size: int = 240
) -> np.ndarray:
    """Renders N observations of one task.

    Args:
        task: a task whose observations determine all joints (`Task.joints`).
        observation: per field (N, ...): `q`, `width` if there is a gripper, and the fields that
            `Task.joints` reads.
        camera: camera of the scene.
        size: edge length of an image [px].

    Returns:
        (N, size, size, 3) uint8 RGB.

    Raises:
        HandoffError: a task whose observations do not determine all joints, missing fields, or no
            OpenGL.
    """
    if task.joints is None:
        raise HandoffError(
            f"{task.name}: its observations do not determine all joints, so they cannot be rendered."
        )
    try:
        joints = dict(task.joints(observation))
        q, width = observation["q"], observation["width"] if task.use_gripper else None
    except KeyError as error:
        raise HandoffError(
            f"{task.name}: field {error} is not observed, so the state cannot be rendered."
        ) from None
    model = build_model(task, task.actions)
    layout = task.layout(model, task.robot)
    qpos = np.repeat(model.qpos0[None], len(q), axis=0)
    qpos[:, : task.robot.num_joints] = q
    if width is not None:
        joints |= {f"finger_{side}": 0.5 * width[:, 0] for side in ("left", "right")}
    for name, value in joints.items():
        qpos[:, layout.qpos[name]] = value
    return render_states(
        task,
        qpos,
        np.zeros((len(qpos), 3)),
        CamerasConfig(names=(camera,), height=size, width=size),
    )


def render_states(
    task: Task, qpos: np.ndarray, goal: np.ndarray, config: CamerasConfig
) -> np.ndarray:
    """Renders N states of one task.

    Args:
        task: the task whose scene is rendered.
        qpos: (N, nq) generalised positions.
        goal: (N, G) goals of the task.
        config: one camera of the scene.

    Returns:
        (N, height, width, 3) uint8 RGB.

    Raises:
        HandoffError: no OpenGL.
    """
    model = build_model(task, task.actions)
    with closing(Cameras(model, config)) as cameras:
        return cameras.render([model] * len(qpos), qpos, goal)[f"image_{config.names[0]}"]
