"""Defines stack cube: put the red cube on the green one and release it, with both at rest.

The task is that of ManiSkill's StackCube-v1, with the same cubes of 4 cm and tolerance of 5 mm in
height; the horizontal tolerance is 15 mm instead of 33 mm. The initial area is that of `pick_cube`.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.control.actions import CartesianDelta
from robots.franka.robot import Robot
from sim.scene.randomize import ARM_AND_CAMERAS, Range
from sim.scene.scene import arm_scene
from sim.scene.view import View, yaw_quaternion
from sim.tasks.fixture import upright_posture
from sim.tasks.grasping import ALIGNED, MIDDLE, add_cube, beyond_reach, free_yaw, held, pick_up
from sim.tasks.task import (
    CLOSED,
    Capacity,
    ExpertTarget,
    InitialState,
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
"""Half a cube's edge [m]."""
CUBE_LOW, CUBE_HIGH = np.array([0.38, -0.18]), np.array([0.62, 0.18])
"""(2,) corners of the area where the cubes' centres lie initially [m], base frame."""
WORKSPACE_LOW, WORKSPACE_HIGH = (0.32, -0.28, 0.005), (0.66, 0.28, 0.40)
"""Workspace of the gripper [m]. Closer to the base the arm is folded up, farther away it is
stretched out."""
APART = 0.09
"""Minimum initial distance between the cubes' centres [m]: the open gripper fits between them at
any yaw."""
YAW = np.pi / 4
"""Maximum initial yaw of a cube to either side [rad]; larger ones are equivalent by symmetry."""
LEVEL = 0.015
"""Maximum horizontal distance of the cubes' centres in a stack [m]: the upper one's centre of mass
is well inside the edge."""
HEIGHT = 0.005
"""Tolerance of the height of red above green, and of green above the table [m]."""
STILL, STILL_TURN = 0.05, 0.5
"""Speeds below which a cube is at rest [m/s, rad/s]."""
TILT = 0.25
"""Tilt of a held cube above which the expert drops and regrasps it [rad]."""
CLEARANCE = 0.05
"""Height at which the carried cube passes over the other one [m]."""


def _scene(robot: Robot) -> mujoco.MjSpec:
    spec = arm_scene("stack_cube", robot, timestep=0.005)
    add_cube(spec, "red", HALF, rgba=(0.80, 0.28, 0.24, 1.0), position=(0.5, -0.1, HALF))
    add_cube(spec, "green", HALF, rgba=(0.30, 0.62, 0.34, 1.0), position=(0.5, 0.1, HALF))
    return spec


def _reset(q_start: np.ndarray, rng: np.random.Generator, start: InitialState) -> None:
    start_posture(rng, start, q_start)
    red = green = rng.uniform(CUBE_LOW, CUBE_HIGH)
    while np.linalg.norm(red - green) < APART:
        red = rng.uniform(CUBE_LOW, CUBE_HIGH)
    for name, position in (("red", red), ("green", green)):
        start.place(name, [*position, HALF], yaw_quaternion(rng.uniform(-YAW, YAW)))


def _above_green(view: View) -> np.ndarray:
    """(N, 3) target position of red [m]."""
    return view.position("green") + np.array([0.0, 0.0, 2.0 * HALF])


def _offset(view: View) -> np.ndarray:
    return view.position("red") - _above_green(view)


def _level(view: View) -> np.ndarray:
    return np.linalg.norm(_offset(view)[:, :2], axis=1)


def _held(view: View) -> np.ndarray:
    return held(view, "red", HALF)


def _stacked(view: View) -> np.ndarray:
    on_table = np.abs(view.position("green")[:, 2] - HALF) < HEIGHT
    return (_level(view) < LEVEL) & (np.abs(_offset(view)[:, 2]) < HEIGHT) & on_table


def _still(view: View, name: str) -> np.ndarray:
    velocity = view.velocity(name)
    slow = np.linalg.norm(velocity[:, :3], axis=1) < STILL
    return slow & (np.linalg.norm(velocity[:, 3:], axis=1) < STILL_TURN)


def _success(view: View) -> np.ndarray:
    return _stacked(view) & ~_held(view) & _still(view, "red") & _still(view, "green")


def _failure(view: View) -> np.ndarray:
    """(N,) bool: a cube lies where the gripper cannot grasp it."""
    low, high = np.array(WORKSPACE_LOW[:2]) - ALIGNED, np.array(WORKSPACE_HIGH[:2]) + ALIGNED
    return (beyond_reach(view, "red", low, high) & ~_held(view)) | beyond_reach(
        view, "green", low, high
    )


def _tilted(view: View) -> np.ndarray:
    """(N,) bool: no side of red is horizontal."""
    return np.abs(view.rotation("red")[:, 2]).max(axis=1) < np.cos(TILT)


def _reach(view: View) -> np.ndarray:
    distance = np.linalg.norm(view.grasp_position - view.position("red"), axis=1)
    # The gripper may leave a stack without losing reward.
    return np.where(_stacked(view), 1.0, near(distance, 0.1))


def _bring(view: View) -> np.ndarray:
    return near(np.linalg.norm(_offset(view), axis=1), 0.2) * (_held(view) | _stacked(view))


def _place(view: View) -> np.ndarray:
    """(N, 3) target of the gripper that holds red [m]: up, across, down."""
    red = view.position("red")
    stacked = _above_green(view)
    across = _level(view) > ALIGNED
    high = red[:, 2] - stacked[:, 2] > 0.6 * CLEARANCE
    target = stacked.copy()
    # Slightly below the stack's height, so that the cubes touch before the gripper opens.
    target[:, 2] += np.where(across, CLEARANCE, -0.002)
    # Upwards before across, so that red does not hit green.
    beside = across & ~high & (_level(view) < 4.0 * HALF)
    target[:, :2] = np.where(beside[:, None], red[:, :2], target[:, :2])
    # The cube is moved to the target, wherever the fingers hold it.
    return target + view.grasp_position - red


def _expert(view: View) -> ExpertTarget:
    grasp = pick_up(view, view.position("red"), free_yaw(view, "red", ["green"], HALF), HALF)
    holding, stacked = _held(view), _stacked(view)
    pose, width = grasp.pose.copy(), grasp.width.copy()
    pose[holding, :3] = _place(view)[holding]
    width[holding] = np.where(_tilted(view), view.width_max, CLOSED)[holding]
    # Once stacked: release at the current position, then move up.
    pose[stacked, :3], width[stacked] = view.grasp_position[stacked], view.width_max
    pose[stacked & ~holding, 2] += CLEARANCE
    down = holding & (_level(view) < ALIGNED) & (_offset(view)[:, 2] < 0.03)
    return ExpertTarget(pose=pose, width=width, speed=np.where(down, 0.25, 1.0))


def task(robot: Robot) -> Task:
    """Returns the task for `robot`; the gripper starts above the middle of the table, pointing
    down."""
    q_start = upright_posture(robot, MIDDLE, 0.0)
    return Task(
        name="stack_cube",
        brief="Put the red cube on the green one and let it go.",
        robot=robot,
        handled=("red", "green"),
        scene=partial(_scene, robot),
        reset=partial(_reset, q_start),
        q_posture=q_start,
        observations={**proprioception(robot), **body("red"), **body("green")},
        rewards={
            "reach": Reward(0.2, _reach),
            "grasp": Reward(0.2, lambda v: (_held(v) | _stacked(v)).astype(float)),
            "bring": Reward(0.2, _bring),
            "stack": Reward(0.2, lambda v: _stacked(v).astype(float)),
            "there": Reward(0.2, lambda v: _success(v).astype(float)),
        },
        success=_success,
        failure=_failure,
        expert=_expert,
        actions=CartesianDelta(low=WORKSPACE_LOW, high=WORKSPACE_HIGH),
        max_steps=150,
        capacity=Capacity(contacts=32, constraints=128),
        ranges=(
            Range(what="mass", names=("red", "green"), low=0.5, high=2.0),
            Range(what="friction", names=("red", "green", "finger_*"), low=0.7, high=1.3),
            *ARM_AND_CAMERAS,
        ),
    )
