"""Defines push-T on the arm: push a T onto its goal on the table with a stick.

Scene, initial states, observations and score are those of `sim.tasks.push_t.geometry`.
Actions are those of gym-pusht (`robots.control.actions.PdTarget`), the fields `agent`, `keypoints`
and `block_pose` are those of the published benchmark in metres, and a seed gives the initial agent
and block of gym-pusht's `reset(seed)`, so a policy of the benchmark can be evaluated here
unchanged. Differences: an arm moves the pusher, friction is that of real materials, the board has
no walls, and a pusher that would start inside the block is moved out of it.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.control.actions import PdTarget
from robots.episodes.formats.pusht import AGENT_FIELD, BLOCK_POSE_FIELD, KEYPOINTS_FIELD
from robots.franka.kinematics import inverse_kinematics
from robots.franka.robot import Robot
from sim.scene.randomize import Range
from sim.scene.scene import GRASP_SITE, add_front_camera, draw_fast, wrist_view
from sim.scene.view import Layout, View
from sim.tasks.push_t.expert import push_to_goal
from sim.tasks.push_t.geometry import (
    BASE_R_BOARD,
    BASE_R_PUSHER,
    BOARD_SIZE,
    PUSHER_LENGTH,
    Q_BOARD_CENTRE,
    SUCCESS_COVERAGE,
    base_pose_of_tee,
    batched_coverage,
    board_from_base,
    clear_of_tee,
    draw_state,
    flange_target,
    keypoints,
    scene_spec,
)
from sim.tasks.task import (
    Capacity,
    ExpertTarget,
    InitialState,
    ObservationTerm,
    Reward,
    Task,
    proprioception,
)

if TYPE_CHECKING:
    import mujoco

TEE = "tee_free"
"""Name of the block's free joint."""
TIMESTEP = 0.002
"""Physics step [s]; the twin's is 1 ms. Pushes of 36 mm at points distributed over the outline
differ from the twin's by 0.4 mm and 0.010 rad on average, and by 3.0 mm and 0.042 rad at most,
where the pusher slips past a corner."""


def block_pose(view: View) -> np.ndarray:
    """(N, 3) x, y [m], angle [rad] of the blocks, board frame."""
    x_axis = view.rotation(TEE)[:, :, 0] @ BASE_R_BOARD
    angle = np.arctan2(x_axis[:, 1], x_axis[:, 0])
    return np.concatenate([board_from_base(view.position(TEE)), angle[:, None]], axis=1)


def _agent(view: View) -> np.ndarray:
    return board_from_base(view.grasp_position)


def _coverage(view: View) -> np.ndarray:
    return batched_coverage(block_pose(view))


def _success(view: View) -> np.ndarray:
    return _coverage(view) > SUCCESS_COVERAGE


def _off_board(view: View) -> np.ndarray:
    centre = keypoints(block_pose(view)).mean(axis=1)
    return ((centre < 0.0) | (centre > BOARD_SIZE)).any(axis=1)


def _scene(robot: Robot) -> mujoco.MjSpec:
    spec = scene_spec(robot)
    spec.option.timestep = TIMESTEP
    for actuator in list(spec.actuators):
        spec.delete(actuator)
    draw_fast(spec)
    add_front_camera(spec)
    pusher = spec.body("pusher")
    pusher.add_camera(name="wrist", pos=[0.075, 0, 0.02], quat=wrist_view(), fovy=75)
    # Half a turn about x: the frame's axes equal the base's while the pusher is upright.
    pusher.add_site(
        name=GRASP_SITE,
        pos=[0, 0, PUSHER_LENGTH],
        quat=[0, 1, 0, 0],
        size=[0.002] * 3,
        rgba=[0] * 4,
    )
    return spec


def _layout(model: mujoco.MjModel, robot: Robot) -> Layout:
    return Layout(model, robot, np.array([0.0, 0.0, PUSHER_LENGTH]), BASE_R_PUSHER)


def _reset(rng: np.random.Generator, start: InitialState) -> None:
    agent, pose = draw_state(rng)
    target = flange_target(clear_of_tee(agent, pose))
    start.arm(inverse_kinematics(start.layout.robot, target, Q_BOARD_CENTRE))
    tee = base_pose_of_tee(pose)
    start.place(TEE, tee[:3], tee[3:])


def _expert(view: View) -> ExpertTarget:
    pose = np.zeros((view.n, 6))
    space = PdTarget()
    pose[:, :3] = np.array(space.origin) + space.to_base(
        push_to_goal(_agent(view), block_pose(view))
    )
    return ExpertTarget(pose=pose, width=np.zeros(view.n))


def task(robot: Robot) -> Task:
    """Returns the task for `robot`."""
    return Task(
        name="push_t",
        brief="Push the grey T onto the green one.",
        robot=robot,
        handled=("tee",),
        scene=partial(_scene, robot),
        reset=_reset,
        q_posture=Q_BOARD_CENTRE,
        observations={
            "agent": ObservationTerm(AGENT_FIELD, _agent),
            "keypoints": ObservationTerm(KEYPOINTS_FIELD, lambda v: keypoints(block_pose(v))),
            "block_pose": ObservationTerm(BLOCK_POSE_FIELD, block_pose),
            **proprioception(robot, use_gripper=False),
        },
        rewards={
            "coverage": Reward(1.0, lambda v: np.clip(_coverage(v) / SUCCESS_COVERAGE, 0.0, 1.0))
        },
        info={"coverage": _coverage},
        success=_success,
        failure=_off_board,
        expert=_expert,
        actions=PdTarget(),
        use_gripper=False,
        rate_hz=10.0,
        timestep=TIMESTEP,
        max_steps=300,
        layout=_layout,
        capacity=Capacity(contacts=24, constraints=64),
        ranges=(
            Range(what="mass", names=("tee",), low=0.7, high=1.4),
            Range(what="friction", names=("tee_bar", "tee_stem"), low=0.7, high=1.3),
            Range(what="gain", names=("impedance_*",), low=0.8, high=1.2),
            Range(what="delay", low=0.0, high=0.03),
            Range(what="camera", names=("front", "wrist"), low=-0.02, high=0.02),
        ),
    )
