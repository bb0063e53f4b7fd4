"""Defines reach: move the point between the fingertips to a point in the air and stop there."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.control.actions import CartesianDelta
from robots.franka.robot import Robot
from robots.spec import XYZ, FieldSpec
from sim.scene.randomize import Range
from sim.scene.scene import arm_scene
from sim.scene.view import View
from sim.tasks.task import (
    Capacity,
    ExpertTarget,
    InitialState,
    ObservationTerm,
    Reward,
    Task,
    near,
    proprioception,
    start_posture,
)

if TYPE_CHECKING:
    import mujoco

GOAL_LOW, GOAL_HIGH = np.array([0.32, -0.25, 0.05]), np.array([0.66, 0.25, 0.45])
"""(3,) corners of the box of goals [m], base frame."""
TOLERANCE = 0.015
"""Maximum distance from the goal for success [m]."""
STILL = 0.05
"""Maximum speed for success [m/s]."""
RANGES = (
    Range(what="gain", names=("impedance_*",), low=0.7, high=1.3),
    Range(what="delay", low=0.0, high=0.03),
    Range(what="camera", names=("front",), low=-0.03, high=0.03),
    Range(what="light", names=("key", "fill"), low=0.6, high=1.4),
)
"""Domain randomisation."""


def _scene(robot: Robot) -> mujoco.MjSpec:
    import mujoco

    spec = arm_scene("reach", robot, timestep=0.005)
    goal = spec.worldbody.add_body(name="goal", mocap=True)
    goal.add_geom(
        type=mujoco.mjtGeom.mjGEOM_SPHERE,
        size=[TOLERANCE] * 3,
        rgba=[0.2, 0.7, 0.3, 0.6],
        contype=0,
        conaffinity=0,
    )
    return spec


def _reset(rng: np.random.Generator, start: InitialState) -> None:
    start_posture(rng, start, start.layout.robot.q_home, spread=0.1)
    start.goal[:] = rng.uniform(GOAL_LOW, GOAL_HIGH)


def _distance(view: View) -> np.ndarray:
    return np.linalg.norm(view.grasp_position - view.goal, axis=1)


def _success(view: View) -> np.ndarray:
    return (_distance(view) < TOLERANCE) & (
        np.linalg.norm(view.grasp_velocity[:, :3], axis=1) < STILL
    )


def _expert(view: View) -> ExpertTarget:
    pose = np.zeros((view.n, 6))
    pose[:, :3] = view.goal
    return ExpertTarget(pose=pose, width=np.full(view.n, view.width_max))


def task(robot: Robot) -> Task:
    """Returns the task for `robot`."""
    return Task(
        name="reach",
        brief="Move the fingertips to the green ball and stop there.",
        robot=robot,
        scene=partial(_scene, robot),
        reset=_reset,
        q_posture=robot.q_home,
        observations={
            **proprioception(robot, use_gripper=False),
            "goal": ObservationTerm(
                FieldSpec(shape=(3,), unit="m", frame="base", about="goal position", names=XYZ),
                lambda v: v.goal,
            ),
        },
        rewards={
            "near": Reward(0.5, lambda v: near(_distance(v), 0.1)),
            "there": Reward(0.5, lambda v: _success(v).astype(float)),
        },
        success=_success,
        expert=_expert,
        goal_size=3,
        actions=CartesianDelta(axes=("x", "y", "z")),
        use_gripper=False,
        max_steps=60,
        capacity=Capacity(contacts=16, constraints=64),
        ranges=RANGES,
    )
