"""Defines lift cube: grasp a cube that lies on the table and lift it. Success shows in the picture
of the wrist camera: the cube is between the fingers, away from the table."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.franka.robot import Robot
from sim.scene.randomize import ARM_AND_CAMERAS, Range
from sim.scene.scene import arm_scene
from sim.scene.view import View, yaw_quaternion
from sim.tasks.grasping import (
    CUBE_OFFSET,
    CUBE_TURN,
    add_cube,
    held,
    pick_up,
    quarter_turn_yaw,
)
from sim.tasks.task import (
    Capacity,
    ExpertTarget,
    InitialState,
    ObservationTerm,
    Reward,
    Task,
    body,
    near,
    proprioception,
    start_posture,
)

if TYPE_CHECKING:
    import mujoco

HALF = 0.02
"""Half the cube's edge [m]."""
CUBE_LOW, CUBE_HIGH = np.array([0.42, -0.12]), np.array([0.58, 0.12])
"""(2,) corners of the area where cubes lie [m], base frame."""
YAW = 0.5
"""Largest turn of a cube relative to the base [rad]."""
LIFT = 0.08
"""Height above the table from which the cube is lifted [m]."""
ABOVE = 0.03
"""Height by which the expert aims above `LIFT` [m]."""


def _scene(robot: Robot) -> mujoco.MjSpec:
    spec = arm_scene("lift_cube", robot, timestep=0.005)
    add_cube(spec, "cube", HALF, rgba=(0.80, 0.28, 0.24, 1.0))
    return spec


def _reset(rng: np.random.Generator, start: InitialState) -> None:
    start_posture(rng, start, start.layout.robot.q_home)
    start.place(
        "cube",
        [*rng.uniform(CUBE_LOW, CUBE_HIGH), HALF],
        yaw_quaternion(rng.uniform(-YAW, YAW)),
    )


def _to_cube(view: View) -> np.ndarray:
    return np.linalg.norm(view.grasp_position - view.position("cube"), axis=1)


def _height(view: View) -> np.ndarray:
    """(N,) height of the cube above its place on the table [m]."""
    return view.position("cube")[:, 2] - HALF


def _held(view: View) -> np.ndarray:
    return held(view, "cube", HALF)


def _success(view: View) -> np.ndarray:
    return _held(view) & (_height(view) > LIFT)


def _fallen(view: View) -> np.ndarray:
    return view.position("cube")[:, 2] < -0.05


def _expert(view: View) -> ExpertTarget:
    grasp = pick_up(
        view, view.position("cube"), quarter_turn_yaw(view.quaternion("cube"), view), HALF
    )
    raised = grasp.pose.copy()
    raised[:, :2] = view.grasp_position[:, :2]
    raised[:, 2] = view.grasp_position[:, 2] + LIFT + ABOVE - _height(view)
    holding = _held(view)
    return ExpertTarget(
        pose=np.where(holding[:, None], raised, grasp.pose),
        width=np.where(holding, 0.0, grasp.width),
    )


def _observations(robot: Robot) -> dict[str, ObservationTerm]:
    return {
        **proprioception(robot),
        **body("cube"),
        "cube_turn": CUBE_TURN,
        "cube_offset": CUBE_OFFSET,
    }


def task(robot: Robot) -> Task:
    """Returns the task for `robot`."""
    return Task(
        name="lift_cube",
        brief="Grasp the red cube and lift it eight centimetres.",
        robot=robot,
        handled=("cube",),
        scene=partial(_scene, robot),
        reset=_reset,
        q_posture=robot.q_home,
        observations=_observations(robot),
        rewards={
            "reach": Reward(0.25, lambda v: near(_to_cube(v), 0.1)),
            "grasp": Reward(0.25, lambda v: _held(v).astype(float)),
            "raise": Reward(0.25, lambda v: np.clip(_height(v) / LIFT, 0.0, 1.0) * _held(v)),
            "lifted": Reward(0.25, lambda v: _success(v).astype(float)),
        },
        success=_success,
        failure=_fallen,
        expert=_expert,
        max_steps=100,
        capacity=Capacity(contacts=24, constraints=96),
        ranges=(
            Range(what="mass", names=("cube",), low=0.5, high=2.0),
            Range(what="friction", names=("cube", "finger_*"), low=0.7, high=1.3),
            *ARM_AND_CAMERAS,
        ),
    )
