"""Pictures of what was recorded, or imagined: a task's scene put where observations say that
everything is."""

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


def redraw(
    task: Task, observation: Observation, *, camera: str = "front", size: int = 240
) -> np.ndarray:
    """Draws N observations of one task.

    Args:
        task: which scene; it must be able to tell all joints from observations.
        observation: per field (N, ...); `q`, `width` where there is a hand, and what `Task.joints`
            reads.
        camera: of the scene.
        size: edge of a picture [px].

    Returns:
        (N, size, size, 3) uint8 RGB.

    Raises:
        HandoffError: a task whose observations do not tell everything, fields that are missing, or
            no OpenGL.
    """
    if task.joints is None:
        raise HandoffError(
            f"{task.name}: observations do not tell where everything is, so they cannot be drawn."
        )
    try:
        joints = dict(task.joints(observation))
        q, width = observation["q"], observation["width"] if task.use_gripper else None
    except KeyError as error:
        raise HandoffError(
            f"{task.name}: field {error} is not observed, so no picture can be drawn."
        ) from None
    model = build_model(task, task.actions)
    layout = task.layout(model, task.robot)
    qpos = np.repeat(model.qpos0[None], len(q), axis=0)
    qpos[:, : task.robot.num_joints] = q
    if width is not None:
        joints |= {f"finger_{side}": 0.5 * width[:, 0] for side in ("left", "right")}
    for name, value in joints.items():
        qpos[:, layout.qpos[name]] = value
    return draw(
        task,
        qpos,
        np.zeros((len(qpos), 3)),
        CamerasConfig(names=(camera,), height=size, width=size),
    )


def draw(task: Task, qpos: np.ndarray, goal: np.ndarray, config: CamerasConfig) -> np.ndarray:
    """Draws N states of one task.

    Args:
        task: which scene.
        qpos: (N, nq) generalised positions.
        goal: (N, G) of the task.
        config: one camera of the scene.

    Returns:
        (N, height, width, 3) uint8 RGB.

    Raises:
        HandoffError: no OpenGL.
    """
    model = build_model(task, task.actions)
    with closing(Cameras(model, config)) as cameras:
        return cameras.render([model] * len(qpos), qpos, goal)[f"image_{config.names[0]}"]
