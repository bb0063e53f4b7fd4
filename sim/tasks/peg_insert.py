"""Defines peg insert: put the grasped square peg into a square hole that is 1 mm wider.

The task resembles the insertion of SERL and HIL-SERL (Luo et al. 2024) with our own dimensions: the
hole's pose and the arm's initial pose are random, and the peg is held only by friction, at a random
offset in the fingers. "Clearance 1 mm" is the hole's width minus the peg's in both x and y: 0.5 mm
on either side of a centred peg.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.control.relations import square_turn
from robots.franka.robot import Robot
from robots.spec import XYZ, FieldSpec, Place, Relation
from sim.scene.randomize import ARM_AND_CAMERAS, Range
from sim.scene.scene import arm_scene
from sim.scene.view import View, yaw_quaternion
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
    body,
    near,
    proprioception,
)

if TYPE_CHECKING:
    import mujoco

PEG_WIDTH = 0.016
"""Edge of the peg's square section [m]."""
CLEARANCE = 0.001
"""Width of the hole minus width of the peg [m]."""
PEG_LENGTH = 0.090
"""Length of the peg [m]."""
PEG_DENSITY = 1200.0
"""Density of solid plastic [kg/m^3]; the peg weighs 28 g."""
PEG_FRICTION = 0.3
"""Sliding friction of plastic on plastic, handbooks: 0.2 to 0.4. Between peg and pads the pads'
friction applies."""
HOLE_DEPTH = 0.030
"""Depth of the hole, which ends at the table top, and height of the socket [m]."""
WALL = 0.012
"""Thickness of the socket's walls [m]."""
GRIP_ABOVE_CENTRE = 0.015
"""Distance from the peg's middle to the fingertips [m]; the peg protrudes 55 mm below the
fingers."""

SOCKET_LOW, SOCKET_HIGH = np.array([0.42, -0.12, -0.4]), np.array([0.58, 0.12, 0.4])
"""(3,) bounds of the socket's x, y [m], yaw [rad], base frame."""
START_LOW, START_HIGH = np.array([0.42, -0.12, 0.15, -0.4]), np.array([0.58, 0.12, 0.22, 0.4])
"""(4,) bounds of the gripper's initial x, y, z [m], yaw [rad], base frame."""
OFFSET = np.array([0.002, 0.003])
"""(2,) maximum offset of the peg in the gripper: sideways between the pads, and along the peg
[m]."""
TILT = np.deg2rad(2.0)
"""Maximum tilt of the peg in the gripper, in the pads' plane [rad]."""

DEEP = 0.8 * HOLE_DEPTH
"""Depth of the tip for success [m]."""
UPRIGHT = np.deg2rad(3.0)
"""Maximum angle between the peg's axis and the vertical for success [rad]."""
LOST = 0.03
"""Distance between the fingertips and their initial position on the peg above which the peg counts
as dropped [m]."""

SAFE = 0.008
"""Height of the tip above the rim at which the expert aligns the peg [m]."""
ALIGNED, TURNED = 0.0005, 0.02
"""Offset [m] and yaw error [rad] within which the expert moves down."""
LOWER = 0.0025
"""Distance of the expert's target below the measured position until the tip is in the hole [m]:
slow, because fast motion moves the peg aside with independent joint control; on the rim it presses
with 5 N, so that the peg can still slide."""
PRESS = 0.006
"""Distance of the expert's target below the measured position in the hole [m]: 12 N at the
impedance law's stiffness."""
PULL = 1.5
"""Ratio of lateral target to lateral error, which overcomes friction on the rim."""

TIP = Place(position="peg_position", quaternion="peg_quaternion", point=(0.0, 0.0, -PEG_LENGTH / 2))
"""Middle of the peg's lower face, as it follows from the peg's pose."""
RIM = Place(fixture="socket_pose", point=(0.0, 0.0, HOLE_DEPTH))
"""Middle of the hole's rim, as it follows from the socket's pose."""


def _scene(robot: Robot) -> mujoco.MjSpec:
    import mujoco

    spec = arm_scene("peg_insert", robot, timestep=0.0025)
    box, half = mujoco.mjtGeom.mjGEOM_BOX, PEG_WIDTH / 2
    material = {
        "type": box,
        "friction": [PEG_FRICTION, 0.005, 0.0001],
        "condim": 4,
        # As stiff as the engine can integrate: with the default the parts would penetrate by as
        # much as the clearance.
        "solref": [2.0 * spec.option.timestep, 1.0],
    }
    peg = spec.worldbody.add_body(name="peg", pos=[0.5, 0, 0.2])
    peg.add_freejoint(name="peg")
    peg.add_geom(
        name="peg",
        size=[half, half, PEG_LENGTH / 2],
        density=PEG_DENSITY,
        rgba=[0.80, 0.28, 0.24, 1],
        contype=1,
        conaffinity=1,
        **material,
    )
    socket = add_fixture(spec, "socket")
    inner = half + CLEARANCE / 2
    middle, outer = inner + WALL / 2, inner + WALL
    walls = (
        (middle, 0.0, WALL / 2, outer),
        (-middle, 0.0, WALL / 2, outer),
        (0.0, middle, inner, WALL / 2),
        (0.0, -middle, inner, WALL / 2),
    )
    for i, (x, y, size_x, size_y) in enumerate(walls):
        socket.add_geom(
            name=f"wall{i}",
            pos=[x, y, HOLE_DEPTH / 2],
            size=[size_x, size_y, HOLE_DEPTH / 2],
            mass=0,
            rgba=[0.25, 0.42, 0.66, 1],
            contype=0,
            conaffinity=1,
            **material,
        )
    return spec


def _reset(rng: np.random.Generator, start: InitialState) -> None:
    place_fixture(start, "socket", rng.uniform(SOCKET_LOW, SOCKET_HIGH))
    x, y, z, yaw = rng.uniform(START_LOW, START_HIGH)
    sideways, along = rng.uniform(-OFFSET, OFFSET)
    tilt = rng.uniform(-TILT, TILT)
    start.arm(upright_posture(start.layout.robot, np.array([x, y, z]), yaw))
    start.fingers(PEG_WIDTH)
    start.grip = PEG_WIDTH
    # The peg is rotated about the grasp point, then moved.
    depth = GRIP_ABOVE_CENTRE + along
    forward = sideways - depth * np.sin(tilt)
    centre = [x + forward * np.cos(yaw), y + forward * np.sin(yaw), z - depth * np.cos(tilt)]
    lean = np.array([np.cos(tilt / 2), np.sin(tilt / 2)])
    w, _, _, turn = yaw_quaternion(yaw)
    start.place(
        "peg", centre, np.array([w * lean[0], -turn * lean[1], w * lean[1], turn * lean[0]])
    )


def _axis(view: View) -> np.ndarray:
    """(N, 3) unit vector from the tip to the peg's upper end."""
    return view.rotation("peg")[:, :, 2]


def _tip(view: View) -> np.ndarray:
    """(N, 3) middle of the peg's lower face [m], socket frame: the hole is around the z axis with
    its bottom at 0."""
    return in_fixture(view, "socket", view.position("peg") - _axis(view) * PEG_LENGTH / 2)


def _depth(view: View) -> np.ndarray:
    """(N,) depth of the tip in the hole [m]; 0 above or beside it."""
    tip = _tip(view)
    inside = np.abs(tip[:, :2]).max(axis=1) < (PEG_WIDTH + CLEARANCE) / 2
    return np.where(inside, np.clip(HOLE_DEPTH - tip[:, 2], 0.0, HOLE_DEPTH), 0.0)


def _upright(view: View) -> np.ndarray:
    return _axis(view)[:, 2] > np.cos(UPRIGHT)


def _to_axis(view: View) -> np.ndarray:
    """(N,) horizontal distance of the tip from the hole's axis [m]."""
    return np.linalg.norm(_tip(view)[:, :2], axis=1)


def _turn(view: View) -> np.ndarray:
    """(N,) rotation [rad] in [-pi/4, pi/4] that aligns the peg with the hole."""
    rotation = view.rotation("peg")
    turn = fixture_pose(view, "socket")[:, 2] - np.arctan2(rotation[:, 1, 0], rotation[:, 0, 0])
    return square_turn(turn)


def _tip_offset(view: View) -> np.ndarray:
    """(N, 3) vector from the middle of the hole's rim to the tip [m], base axes."""
    tip, yaw = _tip(view), fixture_pose(view, "socket")[:, 2]
    x = np.cos(yaw) * tip[:, 0] - np.sin(yaw) * tip[:, 1]
    y = np.sin(yaw) * tip[:, 0] + np.cos(yaw) * tip[:, 1]
    return np.stack([x, y, tip[:, 2] - HOLE_DEPTH], axis=1)


def _success(view: View) -> np.ndarray:
    return (_depth(view) > DEEP) & _upright(view)


def _dropped(view: View) -> np.ndarray:
    grip = view.position("peg") + _axis(view) * GRIP_ABOVE_CENTRE
    return np.linalg.norm(grip - view.grasp_position, axis=1) > LOST


def _expert(view: View) -> ExpertTarget:
    """Aligns above the hole, moves down slowly, slides on the rim if necessary, and pushes the peg
    in."""
    tip, turn = _tip(view), _turn(view)
    level, above = np.linalg.norm(tip[:, :2], axis=1), tip[:, 2] - HOLE_DEPTH
    inside = (above < -0.001) & (level < 0.002)
    aligned = (level < ALIGNED) & (np.abs(turn) < TURNED)
    # On the way down small errors are corrected by sliding; rising again would repeat them.
    aligned |= (above < 0.75 * SAFE) & (level < 3.0 * ALIGNED) & (np.abs(turn) < 2.0 * TURNED)
    # Low and beside the hole, the peg first moves straight up.
    blocked = (above < 0.25 * SAFE) & ~inside & ~aligned
    error = np.where(blocked[:, None], 0.0, -PULL * tip[:, :2])
    yaw = fixture_pose(view, "socket")[:, 2]
    pose = view.grasp_pose.copy()
    pose[:, 0] += np.cos(yaw) * error[:, 0] - np.sin(yaw) * error[:, 1]
    pose[:, 1] += np.sin(yaw) * error[:, 0] + np.cos(yaw) * error[:, 1]
    pose[:, 2] += np.where(inside, -PRESS, np.where(aligned, -LOWER, SAFE - above))
    pose[:, 3:5] = 0.0
    pose[:, 5] += turn
    return ExpertTarget(pose=pose, width=np.zeros(view.n))


def task(robot: Robot) -> Task:
    """Returns the task for `robot`."""
    return Task(
        name="peg_insert",
        brief="Put the peg into the square hole.",
        robot=robot,
        handled=("peg",),
        scene=partial(_scene, robot),
        reset=_reset,
        q_posture=robot.q_home,
        observations={
            **proprioception(robot, use_gripper=False),
            **body("peg"),
            **fixture("socket"),
            "tip_offset": ObservationTerm(
                FieldSpec(
                    shape=(3,),
                    unit="m",
                    frame="base",
                    about="from the middle of the hole's rim to the peg's tip",
                    names=XYZ,
                    relations=(Relation(kind="offset", origin=RIM, target=TIP),),
                ),
                _tip_offset,
            ),
            "turn": ObservationTerm(
                FieldSpec(
                    shape=(1,),
                    unit="rad",
                    about="rotation that aligns the peg with the hole",
                    relations=(Relation(kind="square_turn", origin=TIP, target=RIM),),
                ),
                lambda v: _turn(v)[:, None],
            ),
            "lean": ObservationTerm(
                FieldSpec(
                    shape=(2,),
                    unit="1",
                    frame="base",
                    about="x and y of the peg's axis: sines of its tilt",
                    names=(("x", "y"),),
                    relations=(Relation(kind="lean", target=TIP),),
                ),
                lambda v: _axis(v)[:, :2],
            ),
        },
        rewards={
            "align": Reward(0.25, lambda v: near(_to_axis(v), 0.05)),
            "turn": Reward(0.10, lambda v: near(np.abs(_turn(v)), 0.3)),
            "lower": Reward(0.15, lambda v: near(_tip(v)[:, 2], 0.1) * near(_to_axis(v), 0.02)),
            "insert": Reward(0.25, lambda v: _depth(v) / HOLE_DEPTH),
            "there": Reward(0.25, lambda v: _success(v).astype(float)),
        },
        success=_success,
        failure=_dropped,
        expert=_expert,
        actions=GENTLE,
        use_gripper=False,
        timestep=0.0025,
        max_steps=120,
        capacity=Capacity(contacts=40, constraints=160),
        ranges=(
            Range(what="mass", names=("peg",), low=0.5, high=2.0),
            Range(what="friction", names=("peg", "wall*"), low=0.7, high=1.3),
            Range(what="friction", names=("finger_*",), low=0.8, high=1.3),
            *ARM_AND_CAMERAS,
        ),
    )
