"""Defines cable route: snap a cable, fixed at one end and grasped at the other, into a clip.

The task resembles the routing of SERL and HIL-SERL (Luo et al. 2024) with our own dimensions: the
clip's pose, the cable's shape and the arm's initial pose are random, and the cable's plug is held
only by friction. The clip consists of two elastic posts with balls on top, between which the cable
has to be pushed. The cable is a chain of rigid segments with springs, as flexible as a 6 mm cable
with a soft sheath.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.franka.robot import Robot
from robots.spec import FieldSpec
from sim.scene.randomize import ARM_AND_CAMERAS, Range
from sim.scene.scene import arm_scene
from sim.scene.view import View
from sim.tasks.fixture import (
    GENTLE,
    add_fixture,
    fixture,
    fixture_pose,
    in_fixture,
    place_fixture,
    upright_posture,
)
from sim.tasks.task import (
    Capacity,
    ExpertTarget,
    InitialState,
    ObservationTerm,
    Reward,
    Task,
    near,
    proprioception,
)

if TYPE_CHECKING:
    import mujoco

SEGMENTS = 8
"""Number of segments of the cable."""
PIECE = 0.035
"""Length of a segment [m]."""
CABLE_RADIUS = 0.003
"""Radius of the cable [m]."""
CABLE_DENSITY = 1400.0
"""Mean density of copper strands in a soft sheath [kg/m^3]: about 40 g per metre."""
BENDING_STIFFNESS = 1.5e-3
"""Bending stiffness of the cable [N m^2]: a free end of 0.1 m sags by 2 mm per gram of load. Our
choice for a soft lead."""
BENDING_TIME = 0.05
"""Ratio of damping to stiffness of the cable's bending [s], which suppresses oscillations."""
BENDING_ARMATURE = 1e-5
"""Inertia added to every joint of the cable [kg m^2], so that the springs' time constant is long
compared with the physics step."""
CABLE_FRICTION = 0.3
"""Sliding friction of sheath on plastic, handbooks: 0.2 to 0.5."""
ANCHOR = np.array([0.66, 0.0, 0.020])
"""(3,) fixed end of the cable at its connector [m], base frame; it can leave in any direction."""
PLUG_HALF = np.array([0.012, 0.006, 0.008])
"""(3,) half sizes of the plug at the cable's end [m]."""
PLUG_X = 0.010
"""Distance from the end of the last segment to the plug's centre [m]."""
GRIP_Z = -0.004
"""Height of the grasp point above the plug's centre [m]."""

POST_RADIUS, POST_HEIGHT = 0.004, 0.040
"""Radius and height of the clip's two posts [m]."""
SLOT = 0.008
"""Distance between the posts' surfaces [m]: 2 mm more than the cable."""
LIP_RADIUS = 0.006
"""Radius of the balls on top of the posts [m]."""
THROAT = 0.005
"""Distance between the balls' surfaces [m]: 1 mm less than the cable, which has to be snapped
in."""
LIP_Y = THROAT / 2 + LIP_RADIUS
"""Distance from the slot's middle to a ball's centre [m]."""
POST_STIFFNESS = 4000.0
"""Lateral stiffness of each post at the throat [N/m]: half a millimetre takes 2 N."""
POST_TOP = POST_HEIGHT + LIP_RADIUS
"""Height of the clip [m]."""
POST_ARMATURE = 0.05
"""Inertia added to a post [kg], so that the spring's time constant is long compared with the
physics step."""
SEATED = 0.028
"""Height of the cable's middle between the posts below which it counts as routed [m]."""

CLIP_LOW, CLIP_HIGH = np.array([0.48, -0.06, -0.2]), np.array([0.54, 0.06, 0.2])
"""(3,) bounds of the clip's x, y [m], base frame, and of its slot's angle to the line to the anchor
[rad]."""
START_LOW, START_HIGH = np.array([-0.35, 0.40, 0.02]), np.array([0.35, 0.60, 0.06])
"""(3,) bounds of the initial shape: the cable's heading at the anchor (0 is towards the arm), its
rise, and its bend per joint [rad]."""
WAVE = 0.03
"""Maximum initial sideways bend per joint [rad]."""
LOST = 0.03
"""Distance between grasp point and plug above which the plug counts as dropped [m]."""

LENGTH = SEGMENTS * PIECE + PLUG_X
"""Distance along the cable from the anchor to the plug's centre [m]."""
PULLED = 1.006
"""Ratio of the expert's target distance to the cable's length: a pull of about 3 N."""
OVER = POST_TOP + 0.012
"""Height at which the expert moves the cable over the slot [m]."""
LOW = 0.015
"""Height to which the expert lowers the plug [m]."""
LOWER = 0.010
"""Distance of the expert's target below the plug while lowering it [m]."""
LINED_UP = 0.0025
"""Distance between cable and slot within which the expert moves down [m]."""


def _scene(robot: Robot) -> mujoco.MjSpec:
    import mujoco

    spec = arm_scene("cable_route", robot, timestep=0.0025)
    box = mujoco.mjtGeom.mjGEOM_BOX
    solref = [2.0 * spec.option.timestep, 1.0]
    spec.worldbody.add_geom(
        name="connector",
        type=box,
        pos=ANCHOR + np.array([0.016, 0.0, -0.004]),
        size=[0.012, 0.012, 0.016],
        rgba=[0.25, 0.26, 0.28, 1],
        contype=0,
        conaffinity=1,
    )
    clip = add_fixture(spec, "clip")
    clip.add_geom(
        type=box,
        pos=[0, 0, 0.0005],
        size=[0.03, 0.03, 0.0005],
        mass=0,
        rgba=[0.7, 0.7, 0.7, 1],
        contype=0,
        conaffinity=0,
    )
    for name, side in (("post_left", 1.0), ("post_right", -1.0)):
        _add_post(clip, name, side, solref)
    last = _add_cable(spec)
    last.add_geom(
        name="plug",
        type=box,
        pos=[PIECE + PLUG_X, 0, 0],
        size=PLUG_HALF,
        density=CABLE_DENSITY,
        friction=[1.0, 0.005, 0.0001],
        condim=4,
        solref=solref,
        rgba=[0.25, 0.26, 0.28, 1],
        contype=1,
        conaffinity=1,
    )
    return spec


def _add_post(clip: mujoco.MjsBody, name: str, side: float, solref: list[float]) -> None:
    """Adds one of the clip's posts with its ball; it deflects sideways like a spring."""
    import mujoco

    post = clip.add_body(name=name, pos=[0, side * LIP_Y, 0], gravcomp=1.0)
    post.add_joint(
        name=name,
        type=mujoco.mjtJoint.mjJNT_SLIDE,
        axis=[0, 1, 0],
        stiffness=POST_STIFFNESS,
        damping=2.0 * np.sqrt(POST_STIFFNESS * POST_ARMATURE),
        armature=POST_ARMATURE,
    )
    inward = side * (SLOT / 2 + POST_RADIUS - LIP_Y)
    shapes = (
        (name, mujoco.mjtGeom.mjGEOM_CAPSULE, [0, inward, 0, 0, inward, POST_HEIGHT], POST_RADIUS),
        (f"{name}_lip", mujoco.mjtGeom.mjGEOM_SPHERE, None, LIP_RADIUS),
    )
    for shape, kind, ends, radius in shapes:
        geom = post.add_geom(
            name=shape,
            type=kind,
            size=[radius, 0, 0],
            mass=0.002,
            friction=[CABLE_FRICTION, 0.005, 0.0001],
            solref=solref,
            rgba=[0.25, 0.42, 0.66, 1],
            contype=0,
            conaffinity=1,
        )
        if ends is None:
            geom.pos = [0, 0, POST_HEIGHT]
        else:
            geom.fromto = ends


def _add_cable(spec: mujoco.MjSpec) -> mujoco.MjsBody:
    """Adds the chain from the anchor, each segment along its own x, and returns the last one.
    Gripper and cable do not collide."""
    import mujoco

    stiffness = BENDING_STIFFNESS / PIECE
    body = spec.worldbody
    for i in range(SEGMENTS):
        body = body.add_body(
            name=f"cable{i}",
            pos=[PIECE, 0, 0] if i else ANCHOR,
            quat=[1, 0, 0, 0] if i else [0, 0, 0, 1],
        )
        joints = [("turn", [0, 0, 1]), ("bend", [0, 1, 0])]
        # The plug's swivel: without it an upright gripper would twist the cable.
        joints += [("twist", [1, 0, 0])] if i == SEGMENTS - 1 else []
        for name, axis in joints:
            body.add_joint(
                name=f"cable{i}_{name}",
                type=mujoco.mjtJoint.mjJNT_HINGE,
                axis=axis,
                stiffness=stiffness if i and name != "twist" else 0.0,
                damping=stiffness * BENDING_TIME,
                armature=BENDING_ARMATURE,
            )
        body.add_geom(
            name=f"cable{i}",
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            fromto=[0, 0, 0, PIECE, 0, 0],
            size=[CABLE_RADIUS, 0, 0],
            density=CABLE_DENSITY,
            friction=[CABLE_FRICTION, 0.005, 0.0001],
            solref=[2.0 * spec.option.timestep, 1.0],
            rgba=[0.85, 0.50, 0.15, 1],
            contype=1,
            conaffinity=0,
        )
    return body


def _shape(turn: np.ndarray, bend: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Computes the cable's shape by forward kinematics.

    Args:
        turn: (N, SEGMENTS) sideways bend at the start of each segment [rad].
        bend: (N, SEGMENTS) downward bend at the start of each segment [rad].

    Returns:
        Points (N, SEGMENTS + 2, 3) from the anchor over the segments' ends to the plug's centre
        [m], base frame; and the last segment's axes (N, 3, 3) without its twist.
    """
    n = len(turn)
    points = np.empty((n, SEGMENTS + 2, 3))
    points[:, 0] = ANCHOR
    axes = np.broadcast_to(np.diag([-1.0, -1.0, 1.0]), (n, 3, 3))
    cz = np.cos(turn)
    sz = np.sin(turn)
    cy = np.cos(bend)
    sy = np.sin(bend)
    step = np.zeros((n, SEGMENTS, 3, 3))
    # A rotation about z, then about the new y.
    step[..., 0, 0] = cz * cy
    step[..., 0, 1] = -sz
    step[..., 0, 2] = cz * sy
    step[..., 1, 0] = sz * cy
    step[..., 1, 1] = cz
    step[..., 1, 2] = sz * sy
    step[..., 2, 0], step[..., 2, 2] = -sy, cy
    for i in range(SEGMENTS):
        axes = axes @ step[:, i]
        points[:, i + 1] = points[:, i] + PIECE * axes[:, :, 0]
    points[:, -1] = points[:, -2] + PLUG_X * axes[:, :, 0]
    return points, axes


def _reset(rng: np.random.Generator, start: InitialState) -> None:
    x, y, skew = rng.uniform(CLIP_LOW, CLIP_HIGH)
    place_fixture(start, "clip", np.array([x, y, np.arctan2(ANCHOR[1] - y, ANCHOR[0] - x) + skew]))
    heading, rise, sag = rng.uniform(START_LOW, START_HIGH)
    turn, bend = rng.uniform(-WAVE, WAVE, SEGMENTS), np.full(SEGMENTS, sag)
    turn[0], bend[0] = heading, -rise
    points, axes = _shape(turn[None], bend[None])
    for i in range(SEGMENTS):
        start.joint(f"cable{i}_turn", turn[i])
        start.joint(f"cable{i}_bend", bend[i])
    # The plug's sides are vertical, like the pads.
    start.joint(f"cable{SEGMENTS - 1}_twist", np.arctan2(-axes[0, 2, 1], axes[0, 2, 2]))
    yaw = np.arctan2(-axes[0, 1, 0], -axes[0, 0, 0])
    start.arm(upright_posture(start.layout.robot, points[0, -1] + [0.0, 0.0, GRIP_Z], float(yaw)))
    start.fingers(2 * PLUG_HALF[1])
    start.grip = 2 * PLUG_HALF[1]


def _points(view: View) -> np.ndarray:
    """(N, SEGMENTS + 2, 3) points along the cable from the anchor to the plug's centre [m], base
    frame."""
    turn, bend = (
        np.stack([view.joint(f"cable{i}_{kind}") for i in range(SEGMENTS)], axis=1)
        for kind in ("turn", "bend")
    )
    return _shape(turn, bend)[0]


def _crossing(view: View) -> np.ndarray:
    """(N, 2) point at which the cable crosses the plane of the posts [m]: sideways from the slot's
    middle, and height.

    If it crosses several times, the crossing closest to the anchor; if it does not reach the plane,
    the plug.
    """
    points = in_fixture(view, "clip", _points(view))
    x = points[..., 0]
    crosses = x[:, :-1] * x[:, 1:] <= 0.0
    first = np.where(crosses.any(axis=1), crosses.argmax(axis=1), SEGMENTS)
    rows = np.arange(view.n)
    a, b = points[rows, first], points[rows, first + 1]
    run = b[:, 0] - a[:, 0]
    share = np.clip(-a[:, 0] / np.where(run == 0.0, 1.0, run), 0.0, 1.0)
    return (a + share[:, None] * (b - a))[:, 1:]


def _crosses(view: View) -> np.ndarray:
    """(N,) bool: the plug is on the far side of the clip, seen from the anchor."""
    return in_fixture(view, "clip", _points(view)[:, -1])[:, 0] < 0.0


def _beside(view: View) -> np.ndarray:
    """(N,) horizontal distance between cable and slot [m]."""
    return np.abs(_crossing(view)[:, 0])


def _too_high(view: View) -> np.ndarray:
    """(N,) height of the cable above that of a routed cable [m]."""
    return np.maximum(_crossing(view)[:, 1] - SEATED, 0.0)


def _success(view: View) -> np.ndarray:
    side, height = _crossing(view).T
    return _crosses(view) & (np.abs(side) < SLOT / 2) & (height < SEATED)


def _dropped(view: View) -> np.ndarray:
    grip = _points(view)[:, -1] + [0.0, 0.0, GRIP_Z]
    return np.linalg.norm(grip - view.grasp_position, axis=1) > LOST


def _expert(view: View) -> ExpertTarget:
    """Stretches the cable over the slot, then lowers the plug; lifts it again if the cable lies
    beside the posts."""
    side, height = _crossing(view).T
    plug = _points(view)[:, -1]
    to_clip = fixture_pose(view, "clip")[:, :2] - ANCHOR[:2]
    distance = np.linalg.norm(to_clip, axis=1)
    direction = to_clip / distance[:, None]
    between = (np.abs(side) < SLOT / 2) & (height < POST_HEIGHT)
    down = between | ((np.abs(side) < LINED_UP) & _crosses(view))
    # Height of the plug at which the stretched cable passes over the posts.
    lifted = ANCHOR[2] + (OVER - ANCHOR[2]) * LENGTH / distance
    blocked = ~down & (height < POST_TOP + CABLE_RADIUS) & (plug[:, 2] < lifted - 0.01)
    # The plug is lowered in steps, so that the cable stays stretched.
    z = np.where(down, np.maximum(LOW, plug[:, 2] - LOWER), lifted)
    reach = np.sqrt(np.maximum((PULLED * LENGTH) ** 2 - (z - ANCHOR[2]) ** 2, 0.0))
    pose = np.zeros((view.n, 6))
    # Beside the posts the plug first moves straight up.
    pose[:, :2] = np.where(blocked[:, None], plug[:, :2], ANCHOR[:2] + direction * reach[:, None])
    pose[:, 2] = z
    pose[:, :3] += view.grasp_position - plug
    pose[:, 5] = np.arctan2(-direction[:, 1], -direction[:, 0])
    return ExpertTarget(pose=pose, width=np.zeros(view.n))


def task(robot: Robot) -> Task:
    """Returns the task for `robot`."""
    return Task(
        name="cable_route",
        brief="Press the cable into the clip.",
        robot=robot,
        handled=tuple(f"cable{i}" for i in range(SEGMENTS)),
        scene=partial(_scene, robot),
        reset=_reset,
        q_posture=robot.q_home,
        observations={
            **proprioception(robot, use_gripper=False),
            **fixture("clip"),
            "cable": ObservationTerm(
                FieldSpec(
                    shape=(3 * (SEGMENTS + 2),),
                    unit="m",
                    frame="base",
                    about="x, y, z of points from anchor to plug",
                    names=(
                        tuple(f"{axis}{point}" for point in range(SEGMENTS + 2) for axis in "xyz"),
                    ),
                ),
                lambda v: _points(v).reshape(v.n, -1),
            ),
        },
        rewards={
            "line_up": Reward(0.4, lambda v: near(_beside(v), 0.03)),
            "lower": Reward(0.3, lambda v: near(_too_high(v), 0.05) * near(_beside(v), 0.01)),
            "there": Reward(0.3, lambda v: _success(v).astype(float)),
        },
        success=_success,
        failure=_dropped,
        expert=_expert,
        actions=GENTLE,
        use_gripper=False,
        timestep=0.0025,
        max_steps=100,
        capacity=Capacity(contacts=48, constraints=192),
        ranges=(
            Range(what="mass", names=("cable*",), low=0.7, high=1.5),
            Range(what="friction", names=("cable*", "post_*"), low=0.7, high=1.3),
            Range(what="friction", names=("plug", "finger_*"), low=0.8, high=1.3),
            Range(what="damping", names=("cable*",), low=0.5, high=2.0),
            *ARM_AND_CAMERAS,
        ),
    )
