"""Defines pick cube: grasp a cube that lies on the table, lift it to a goal in the air and hold it
there."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.franka.robot import Robot
from robots.spec import XYZ, FieldSpec, Relation
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
CUBE_LOW, CUBE_HIGH = np.array([0.38, -0.18]), np.array([0.62, 0.18])
"""(2,) corners of the area where cubes lie [m], base frame."""
GOAL_LOW, GOAL_HIGH = np.array([0.38, -0.18, 0.10]), np.array([0.62, 0.18, 0.30])
"""(3,) corners of the box of goals [m], base frame."""
TOLERANCE = 0.02
"""Maximum distance from cube to goal for success [m]."""
STILL = 0.1
"""Maximum speed of the cube for success [m/s]."""


def _scene(robot: Robot) -> mujoco.MjSpec:
    import mujoco

    spec = arm_scene("pick_cube", robot, timestep=0.005)
    add_cube(spec, "cube", HALF, rgba=(0.80, 0.28, 0.24, 1.0))
    goal = spec.worldbody.add_body(name="goal", mocap=True)
    goal.add_geom(
        type=mujoco.mjtGeom.mjGEOM_SPHERE,
        size=[TOLERANCE] * 3,
        rgba=[0.2, 0.7, 0.3, 0.5],
        contype=0,
        conaffinity=0,
    )
    return spec


def _reset(rng: np.random.Generator, start: InitialState) -> None:
    start_posture(rng, start, start.layout.robot.q_home)
    start.place(
        "cube",
        [*rng.uniform(CUBE_LOW, CUBE_HIGH), HALF],
        yaw_quaternion(rng.uniform(-np.pi, np.pi)),
    )
    start.goal[:] = rng.uniform(GOAL_LOW, GOAL_HIGH)


def _to_cube(view: View) -> np.ndarray:
    return np.linalg.norm(view.grasp_position - view.position("cube"), axis=1)


def _to_goal(view: View) -> np.ndarray:
    return np.linalg.norm(view.position("cube") - view.goal, axis=1)


def _held(view: View) -> np.ndarray:
    return held(view, "cube", HALF)


def _success(view: View) -> np.ndarray:
    return (_to_goal(view) < TOLERANCE) & (
        np.linalg.norm(view.velocity("cube")[:, :3], axis=1) < STILL
    )


def _fallen(view: View) -> np.ndarray:
    return view.position("cube")[:, 2] < -0.05


def _expert(view: View) -> ExpertTarget:
    grasp = pick_up(
        view, view.position("cube"), quarter_turn_yaw(view.quaternion("cube"), view), HALF
    )
    carry = grasp.pose.copy()
    # The cube is moved to the goal, wherever the fingers hold it.
    carry[:, :3] = view.goal + view.grasp_position - view.position("cube")
    holding = _held(view)
    return ExpertTarget(
        pose=np.where(holding[:, None], carry, grasp.pose),
        width=np.where(holding, 0.0, grasp.width),
    )


def _observations(robot: Robot) -> dict[str, ObservationTerm]:
    return {
        **proprioception(robot),
        **body("cube"),
        "cube_turn": CUBE_TURN,
        "goal": ObservationTerm(
            FieldSpec(
                shape=(3,), unit="m", frame="base", about="goal position of the cube", names=XYZ
            ),
            lambda v: v.goal,
        ),
        # Positions relative to the gripper, which do not depend on the place on the table.
        "hand_turn": ObservationTerm(
            FieldSpec(
                shape=(3,),
                unit="rad",
                frame="base",
                about="rotation vector of the gripper",
                names=XYZ,
            ),
            lambda v: v.grasp_pose[:, 3:],
        ),
        "hand_velocity": ObservationTerm(
            FieldSpec(
                shape=(3,),
                unit="m/s",
                frame="base",
                about="linear velocity of the grasp point",
                names=XYZ,
            ),
            lambda v: v.grasp_velocity[:, :3],
        ),
        "cube_offset": CUBE_OFFSET,
        "goal_offset": ObservationTerm(
            FieldSpec(
                shape=(3,),
                unit="m",
                frame="base",
                about="from the cube's centre to the goal",
                names=XYZ,
                relations=(Relation(kind="offset", origin="cube_position", target="goal"),),
            ),
            lambda v: v.goal - v.position("cube"),
        ),
    }


def task(robot: Robot) -> Task:
    """Returns the task for `robot`."""
    return Task(
        name="pick_cube",
        brief="Bring the red cube to the green ball and hold it there.",
        robot=robot,
        handled=("cube",),
        scene=partial(_scene, robot),
        reset=_reset,
        q_posture=robot.q_home,
        observations=_observations(robot),
        rewards={
            "reach": Reward(0.25, lambda v: near(_to_cube(v), 0.1)),
            "grasp": Reward(0.25, lambda v: _held(v).astype(float)),
            "bring": Reward(0.25, lambda v: near(_to_goal(v), 0.2) * _held(v)),
            "there": Reward(0.25, lambda v: _success(v).astype(float)),
        },
        success=_success,
        failure=_fallen,
        expert=_expert,
        goal_size=3,
        max_steps=100,
        capacity=Capacity(contacts=24, constraints=96),
        ranges=(
            Range(what="mass", names=("cube",), low=0.5, high=2.0),
            Range(what="friction", names=("cube", "finger_*"), low=0.7, high=1.3),
            *ARM_AND_CAMERAS,
        ),
    )
