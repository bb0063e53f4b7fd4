"""Defines flip switch: push the lever of a toggle switch over to its other side.

The task resembles the switch of CALVIN's play table (Mees et al. 2022). The switch is a fixture on
the table (`sim.tasks.fixture`) whose position and yaw differ between environments. As in a real
toggle switch, a spring between lever and box is longest when the lever is upright, which drives the
lever to either stop.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.control.actions import CartesianDelta
from robots.control.relations import offset_from_gripper
from robots.franka.robot import Robot
from robots.spec import XYZ, FieldSpec
from sim.scene.randomize import ARM_AND_CAMERAS, Range
from sim.scene.scene import FINGER_HALF, arm_scene
from sim.scene.view import View
from sim.tasks.fixture import (
    add_fixture,
    fixture,
    fixture_joints,
    fixture_pose,
    from_fixture,
    in_fixture,
    place_fixture,
    upright_posture,
)
from sim.tasks.grasping import MIDDLE
from sim.tasks.task import (
    CLOSED,
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

BOX = np.array([0.050, 0.035, 0.018])
"""(3,) half sizes of the box [m]; the lever swings along its x."""
SWITCH_LOW, SWITCH_HIGH = np.array([0.43, -0.15, -0.60]), np.array([0.57, 0.15, 0.60])
"""(3,) bounds of the switch's position x, y [m] and yaw [rad], base frame."""
PIVOT = 0.042
"""Height of the lever's axis over the table [m]."""
LENGTH = 0.090
"""Length of the lever from its axis to the middle of its knob [m]."""
KNOB = 0.010
"""Radius of the knob [m]."""
LEVER_MASS = 0.040
"""Mass of the lever [kg], concentrated at the knob."""
SWING = 0.50
"""Angle of the stops from upright [rad]; on is positive, away from the switch's own -x."""
ARM = 0.020
"""Distance from the axis to either end of the spring: on the lever above it, on the box below it
[m]."""
SPRING_REST, SPRING_STIFFNESS = 0.020, 2100.0
"""Rest length [m] and stiffness [N/m] of the spring, which holds the knob at its stop with about 2
N."""
DAMPING = 0.03
"""Damping of the lever's axis [Nms/rad]: the lever snaps over within 0.2 s."""

WORKSPACE_LOW, WORKSPACE_HIGH = (0.32, -0.28, 0.06), (0.68, 0.28, 0.40)
"""Workspace of the gripper [m], above the box's lid."""
FLIPPED = 0.35
"""Angle on the goal side above which the lever counts as flipped [rad]."""
STILL = 0.50
"""Speed below which the lever is at rest [rad/s]."""

PUSH_HEIGHT = 0.118
"""Height of the fingertips while the expert pushes [m]: fingers beside the knob, palm over it."""
CLEAR_HEIGHT = 0.185
"""Height at which the gripper moves over the switch [m]."""
ASIDE = 0.085
"""Distance from the axis, along the swing, at which the gripper moves down [m]."""
LEAD = 0.02
"""Distance of the expert's target ahead of the gripper while pushing [m], short enough that
sideways errors are corrected equally."""
BEYOND = 0.005
"""Distance past the axis to which the fingertips push [m]; the spring completes the motion."""


def _scene(robot: Robot) -> mujoco.MjSpec:
    import mujoco

    spec = arm_scene("flip_switch", robot, timestep=0.005)
    switch = add_fixture(spec, "switch")
    contact = {
        "solref": [2.0 * spec.option.timestep, 1.0],
        "mass": 0,
        "contype": 0,
        "conaffinity": 1,
    }
    box, capsule = mujoco.mjtGeom.mjGEOM_BOX, mujoco.mjtGeom.mjGEOM_CAPSULE
    switch.add_geom(
        name="switch_box",
        type=box,
        pos=[0, 0, BOX[2]],
        size=BOX,
        rgba=[0.86, 0.86, 0.84, 1],
        **contact,
    )
    switch.add_site(name="spring_low", pos=[0, 0, PIVOT - ARM], size=[0.002] * 3, rgba=[0] * 4)
    inertia = [LEVER_MASS * KNOB**2] * 3
    lever = switch.add_body(
        name="lever",
        pos=[0, 0, PIVOT],
        mass=LEVER_MASS,
        ipos=[0, 0, LENGTH],
        inertia=inertia,
        explicitinertial=True,
    )
    lever.add_joint(
        name="lever",
        axis=[0, 1, 0],
        range=[-SWING, SWING],
        limited=mujoco.mjtLimited.mjLIMITED_TRUE,
        damping=DAMPING,
        solref_limit=[2.0 * spec.option.timestep, 1.0],
    )
    lever.add_geom(
        name="lever_rod",
        type=capsule,
        fromto=[0, 0, 0, 0, 0, LENGTH],
        size=[0.006, 0, 0],
        rgba=[0.3] * 3 + [1],
        **contact,
    )
    lever.add_geom(
        name="lever_knob",
        type=mujoco.mjtGeom.mjGEOM_SPHERE,
        pos=[0, 0, LENGTH],
        size=[KNOB, 0, 0],
        rgba=[0.85, 0.45, 0.15, 1],
        **contact,
    )
    lever.add_site(name="spring_high", pos=[0, 0, ARM], size=[0.002] * 3, rgba=[0] * 4)
    spring = spec.add_tendon(
        name="spring",
        stiffness=SPRING_STIFFNESS,
        springlength=[SPRING_REST] * 2,
        width=0.001,
        rgba=[0] * 4,
    )
    for site in ("spring_low", "spring_high"):
        spring.wrap_site(site)
    return spec


def _reset(q_start: np.ndarray, rng: np.random.Generator, start: InitialState) -> None:
    start_posture(rng, start, q_start)
    place_fixture(start, "switch", rng.uniform(SWITCH_LOW, SWITCH_HIGH))
    side = rng.choice([-1.0, 1.0])
    start.joint("lever", side * SWING)
    start.goal[0] = -side


def _goal_side(view: View) -> np.ndarray:
    """(N,) goal side: 1 is on, -1 is off."""
    return view.goal[:, 0]


def _turned(view: View) -> np.ndarray:
    """(N,) angle of the lever towards the goal side [rad]."""
    return _goal_side(view) * view.joint("lever")


def _flipped(view: View) -> np.ndarray:
    return _turned(view) > FLIPPED


def _success(view: View) -> np.ndarray:
    return _flipped(view) & (np.abs(view.joint_velocity("lever")) < STILL)


def _knob_in_switch(view: View) -> np.ndarray:
    """(N, 3) middle of the knob in the switch's frame [m]."""
    angle = view.joint("lever")
    return np.stack(
        [LENGTH * np.sin(angle), np.zeros(view.n), PIVOT + LENGTH * np.cos(angle)], axis=1
    )


def _knob(view: View) -> np.ndarray:
    """(N, 3) middle of the knob [m], base frame."""
    return from_fixture(view, "switch", _knob_in_switch(view))


def _reach(view: View) -> np.ndarray:
    # The gripper may leave a flipped switch without losing reward.
    distance = np.linalg.norm(view.grasp_position - _knob(view), axis=1)
    return np.where(_flipped(view), 1.0, near(distance, 0.1))


def _expert(view: View) -> ExpertTarget:
    tip, side = in_fixture(view, "switch", view.grasp_position), _goal_side(view)
    pose, turn = np.zeros((view.n, 6)), fixture_pose(view, "switch")[:, 2]
    away = np.stack([tip[:, 0] + side * ASIDE, tip[:, 1]], axis=1)
    # The tolerance grows on the way down, so that small deviations do not make the gripper rise
    # again.
    lowered = np.clip((CLEAR_HEIGHT - tip[:, 2]) / (CLEAR_HEIGHT - PUSH_HEIGHT), 0.0, 1.0)
    above = (np.linalg.norm(away, axis=1) < 0.010 + 0.015 * lowered) & (
        view.width < 0.01 + 0.01 * lowered
    )
    above &= np.abs(turn - view.grasp_pose[:, 5]) < 0.10 + 0.10 * lowered
    # Fingers low and behind the knob, along the direction of the push.
    gap = side * (_knob_in_switch(view)[:, 0] - tip[:, 0])
    behind = (gap > 0.5 * (KNOB + FINGER_HALF[0])) & (tip[:, 2] < PUSH_HEIGHT + 0.010)
    # The sideways tolerance is tighter before contact, where it can still settle.
    pushing = behind & (np.abs(tip[:, 1]) < np.where(gap > 0.035, 0.008, 0.017))
    target = np.zeros((view.n, 3))
    target[:, 0] = np.where(
        pushing, side * np.minimum(side * tip[:, 0] + LEAD, BEYOND), -side * ASIDE
    )
    target[:, 2] = np.where(pushing | above, PUSH_HEIGHT, CLEAR_HEIGHT)
    # Straight up from anywhere else, and after the lever has flipped.
    low = ~pushing & ~above & (tip[:, 2] < CLEAR_HEIGHT - 0.02)
    done = _flipped(view)
    target[low | done, :2] = tip[low | done, :2]
    target[done, 2] = CLEAR_HEIGHT
    pose[:, :3], pose[:, 5] = from_fixture(view, "switch", target), turn
    return ExpertTarget(pose=pose, width=np.full(view.n, CLOSED), speed=np.where(behind, 0.6, 1.0))


def task(robot: Robot) -> Task:
    """Returns the task for `robot`; the gripper starts above the middle of the table, pointing
    down."""
    q_start = upright_posture(robot, MIDDLE, 0.0)
    return Task(
        name="flip_switch",
        brief="Push the orange lever over to its other side.",
        robot=robot,
        handled=("lever",),
        scene=partial(_scene, robot),
        reset=partial(_reset, q_start),
        q_posture=q_start,
        observations={
            **proprioception(robot),
            **fixture("switch"),
            "knob_position": ObservationTerm(
                FieldSpec(
                    shape=(3,), unit="m", frame="base", about="middle of the knob", names=XYZ
                ),
                _knob,
            ),
            "knob_offset": ObservationTerm(
                FieldSpec(
                    shape=(3,),
                    unit="m",
                    frame="switch",
                    about="from the fingertips' point to the knob",
                    names=XYZ,
                    relations=(offset_from_gripper("knob_position", fixture="switch_pose"),),
                ),
                lambda v: _knob_in_switch(v) - in_fixture(v, "switch", v.grasp_position),
            ),
            "lever": ObservationTerm(
                FieldSpec(
                    shape=(2,),
                    unit="rad, rad/s",
                    about="angle and speed of the lever; positive is on",
                    names=(("angle", "speed"),),
                ),
                lambda v: np.stack([v.joint("lever"), v.joint_velocity("lever")], axis=1),
            ),
            "goal": ObservationTerm(
                FieldSpec(shape=(1,), about="goal side: 1 on, -1 off"), lambda v: v.goal
            ),
        },
        rewards={
            "reach": Reward(0.3, _reach),
            "turn": Reward(0.4, lambda v: np.clip(0.5 + 0.5 * _turned(v) / SWING, 0.0, 1.0)),
            "there": Reward(0.3, lambda v: _success(v).astype(float)),
        },
        success=_success,
        expert=_expert,
        actions=CartesianDelta(low=WORKSPACE_LOW, high=WORKSPACE_HIGH),
        goal_size=1,
        max_steps=100,
        interaction_point=_knob,
        joints=lambda o: {**fixture_joints(o, "switch"), "lever": o["lever"][:, 0]},
        capacity=Capacity(contacts=16, constraints=64),
        ranges=(
            Range(what="mass", names=("lever",), low=0.5, high=2.0),
            Range(what="damping", names=("lever",), low=0.5, high=2.0),
            Range(what="friction", names=("lever_*", "finger_*"), low=0.7, high=1.3),
            *ARM_AND_CAMERAS,
        ),
    )
