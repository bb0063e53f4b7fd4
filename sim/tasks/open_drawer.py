"""Defines open drawer: pull the drawer of a small cabinet open by its bar handle.

The cabinet is a fixture on the table (`sim.tasks.fixture`) whose position and yaw differ between
environments. The drawer slides with dry friction and damping, like a drawer on plain metal runners
(a few newtons move it). The handle's free depth of 39 mm is common for furniture handles (35 to 40
mm).
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
from robots.spec import XYZ, FieldSpec, Place, Relation
from sim.scene.randomize import ARM_AND_CAMERAS, Range
from sim.scene.scene import arm_scene
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

CABINET = np.array([0.12, 0.13, 0.07])
"""(3,) half sizes of the cabinet [m]; it opens towards its own -x."""
CABINET_LOW, CABINET_HIGH = np.array([0.64, -0.10, -0.30]), np.array([0.72, 0.10, 0.30])
"""(3,) bounds of the cabinet's position x, y [m] and yaw [rad], base frame."""
WALL = 0.006
"""Half thickness of all boards [m]."""
TRAVEL = 0.20
"""Maximum opening of the drawer [m]."""
AJAR = 0.03
"""Maximum initial opening [m]."""
DRAWER_MASS = 1.0
"""Mass of the drawer [kg]."""
DRY_FRICTION, DAMPING = 3.0, 8.0
"""Dry friction [N] and damping [Ns/m] of the drawer's runners."""
BAR = np.array([0.006, 0.060])
"""Radius and half length of the handle's bar [m]."""
BAR_AWAY, BAR_HEIGHT = 0.045, 0.120
"""Distance of the bar's axis from the drawer's front, and its height over the table [m]."""
WORKSPACE_LOW, WORKSPACE_HIGH = (0.30, -0.28, 0.06), (0.66, 0.28, 0.40)
"""Workspace of the gripper [m]: not below the handle, and not beyond the closed drawer's front."""
OPENED = 0.15
"""Opening for success [m]."""
STILL = 0.10
"""Maximum speed of the drawer for success [m/s]."""

HOOKED_HEIGHT = 0.110
"""Height of the fingertips behind the bar [m]: the palm stays above the cabinet's top."""
CLEAR_HEIGHT = 0.190
"""Height at which the gripper moves over the cabinet [m]."""
PULLED = 0.175
"""Opening at which the expert stops pulling [m]."""
LOOSER = 0.01
"""Distance by which the gripper opens to release the bar [m]."""
LEAD = 0.03
"""Distance of the expert's target ahead of the gripper while pulling [m]."""

SLOT = Place(
    position="handle_position",
    fixture="cabinet_pose",
    point=(0.5 * (BAR_AWAY + float(BAR[0])), 0.0, HOOKED_HEIGHT - BAR_HEIGHT),
)
"""The target of the fingertips, midway between bar and drawer, as it follows from the bar."""
SHUT = Place(fixture="cabinet_pose", point=(-float(CABINET[0]) - BAR_AWAY, 0.0, BAR_HEIGHT))
"""Middle of the bar while the drawer is shut, as it follows from the cabinet."""


def _scene(robot: Robot) -> mujoco.MjSpec:
    spec = arm_scene("open_drawer", robot, timestep=0.005)
    cabinet = add_fixture(spec, "cabinet")
    x, y, z = CABINET
    for name, position, size in (
        ("top", [0, 0, 2 * z - WALL], [x, y, WALL]),
        ("left", [0, y - WALL, z], [x, WALL, z]),
        ("right", [0, WALL - y, z], [x, WALL, z]),
        ("back", [x - WALL, 0, z], [WALL, y, z]),
    ):
        _board(spec, cabinet, f"cabinet_{name}", position, size, (0.83, 0.80, 0.74, 1.0))
    _add_drawer(spec, cabinet)
    return spec


def _add_drawer(spec: mujoco.MjSpec, cabinet: mujoco.MjsBody) -> None:
    import mujoco

    x, y, z = CABINET
    inertia = [DRAWER_MASS * (a * a + b * b) / 3 for a, b in ((y, z), (x, z), (x, y))]
    drawer = cabinet.add_body(
        name="drawer", mass=DRAWER_MASS, ipos=[0, 0, z], inertia=inertia, explicitinertial=True
    )
    drawer.add_joint(
        name="drawer",
        type=mujoco.mjtJoint.mjJNT_SLIDE,
        axis=[-1, 0, 0],
        range=[0, TRAVEL],
        limited=mujoco.mjtLimited.mjLIMITED_TRUE,
        frictionloss=DRY_FRICTION,
        damping=DAMPING,
    )
    inside, deep = y - 3 * WALL, x - 2 * WALL
    for name, position, size in (
        ("front", [WALL - x, 0, z - WALL], [WALL, inside, z - 2 * WALL]),
        ("bottom", [0, 0, 2 * WALL], [deep, inside, WALL]),
        ("left", [0, inside - WALL, z - 3 * WALL], [deep, WALL, z - 5 * WALL]),
        ("right", [0, WALL - inside, z - 3 * WALL], [deep, WALL, z - 5 * WALL]),
    ):
        _board(spec, drawer, f"drawer_{name}", position, size, (0.62, 0.70, 0.74, 1.0))
    out, (radius, half) = -x - BAR_AWAY, BAR
    # The bar and its two posts.
    ends = [([out, -half, BAR_HEIGHT], [out, half, BAR_HEIGHT])]
    ends += [([out, side, BAR_HEIGHT], [-x, side, BAR_HEIGHT]) for side in (-half, half)]
    for name, (start, end) in zip(("bar", "post_right", "post_left"), ends, strict=True):
        drawer.add_geom(
            name=f"handle_{name}",
            type=mujoco.mjtGeom.mjGEOM_CAPSULE,
            fromto=[*start, *end],
            size=[radius, 0, 0],
            rgba=[0.30, 0.31, 0.33, 1],
            solref=[2.0 * spec.option.timestep, 1.0],
            mass=0,
            contype=0,
            conaffinity=1,
        )


def _board(
    spec: mujoco.MjSpec,
    body: mujoco.MjsBody,
    name: str,
    position: list[float],
    size: list[float],
    rgba: tuple[float, float, float, float],
) -> None:
    import mujoco

    # Collides only with the arm: the drawer must not touch its own cabinet.
    body.add_geom(
        name=name,
        type=mujoco.mjtGeom.mjGEOM_BOX,
        pos=position,
        size=size,
        rgba=rgba,
        solref=[2.0 * spec.option.timestep, 1.0],
        mass=0,
        contype=0,
        conaffinity=1,
    )


def _reset(q_start: np.ndarray, rng: np.random.Generator, start: InitialState) -> None:
    start_posture(rng, start, q_start)
    place_fixture(start, "cabinet", rng.uniform(CABINET_LOW, CABINET_HIGH))
    start.joint("drawer", rng.uniform(0.0, AJAR))


def _opening(view: View) -> np.ndarray:
    return view.joint("drawer")


def _slot(view: View) -> np.ndarray:
    """(N, 3) target of the fingertips midway between bar and drawer [m], cabinet frame."""
    slot = np.zeros((view.n, 3))
    slot[:, 0] = -CABINET[0] - _opening(view) - 0.5 * (BAR_AWAY - BAR[0])
    slot[:, 2] = HOOKED_HEIGHT
    return slot


def _offset(view: View) -> np.ndarray:
    """(N, 3) target of the fingertips relative to them [m], cabinet axes."""
    return _slot(view) - _tip(view)


def _handle(view: View) -> np.ndarray:
    """(N, 3) middle of the bar [m], base frame."""
    handle = np.zeros((view.n, 3))
    handle[:, 0] = -CABINET[0] - _opening(view) - BAR_AWAY
    handle[:, 2] = BAR_HEIGHT
    return from_fixture(view, "cabinet", handle)


def _tip(view: View) -> np.ndarray:
    """(N, 3) point between the fingertips [m], cabinet frame."""
    return in_fixture(view, "cabinet", view.grasp_position)


def _hooked(view: View) -> np.ndarray:
    """(N,) bool: the fingers are between bar and drawer."""
    away = np.abs(_tip(view) - _slot(view))
    between = (away[:, 0] < 0.5 * BAR_AWAY) & (away[:, 1] < BAR[1])
    return between & (_tip(view)[:, 2] < BAR_HEIGHT)


def _success(view: View) -> np.ndarray:
    return (_opening(view) > OPENED) & (np.abs(view.joint_velocity("drawer")) < STILL)


def _expert(view: View) -> ExpertTarget:
    tip = _tip(view)
    slot = _slot(view)
    hooked = _hooked(view)
    pose, turn = np.zeros((view.n, 6)), fixture_pose(view, "cabinet")[:, 2]
    above = np.linalg.norm((tip - slot)[:, :2], axis=1) < 0.008
    above &= (np.abs(turn - view.grasp_pose[:, 5]) < 0.08) & (view.width < 0.02)
    target = slot.copy()
    # Across the cabinet only at a height that clears it, and down only above the slot.
    target[:, 2] = np.where(above, HOOKED_HEIGHT, CLEAR_HEIGHT)
    low = ~above & ~hooked & (tip[:, 2] < CLEAR_HEIGHT - 0.02)
    target[low, :2] = tip[low, :2]
    # Slowly behind the bar: who misses it by a centimetre lands on it.
    down = above & ~hooked & (tip[:, 2] < CLEAR_HEIGHT)
    pull = np.where(_opening(view) < PULLED, LEAD, 0.0)
    target[hooked] = slot[hooked]
    target[hooked, 0] = (tip[:, 0] - pull)[hooked]
    # On the way up the gripper neither turns nor closes: its fingers may be on both sides of the
    # bar.
    pose[:, :3] = from_fixture(view, "cabinet", target)
    pose[:, 5] = np.where(low, view.grasp_pose[:, 5], turn)
    return ExpertTarget(
        pose=pose,
        width=np.where(low, view.width + LOOSER, CLOSED),
        speed=np.where(down, 0.4, np.where(hooked, 0.6, 1.0)),
    )


def task(robot: Robot) -> Task:
    """Returns the task for `robot`; the gripper starts above the middle of the table, pointing
    down."""
    q_start = upright_posture(robot, MIDDLE, 0.0)
    return Task(
        name="open_drawer",
        brief="Pull the drawer open by its handle.",
        robot=robot,
        handled=("drawer",),
        scene=partial(_scene, robot),
        reset=partial(_reset, q_start),
        q_posture=q_start,
        observations={
            **proprioception(robot),
            **fixture("cabinet"),
            "handle_position": ObservationTerm(
                FieldSpec(shape=(3,), unit="m", frame="base", about="middle of the bar", names=XYZ),
                _handle,
            ),
            "slot_offset": ObservationTerm(
                FieldSpec(
                    shape=(3,),
                    unit="m",
                    frame="cabinet",
                    about="from the fingertips to behind the bar",
                    names=XYZ,
                    relations=(offset_from_gripper(SLOT, fixture="cabinet_pose"),),
                ),
                _offset,
            ),
            "opening": ObservationTerm(
                FieldSpec(
                    shape=(1,),
                    unit="m",
                    about="opening of the drawer",
                    relations=(
                        Relation(
                            kind="offset",
                            origin="handle_position",
                            target=SHUT,
                            fixture="cabinet_pose",
                            entries=(0,),
                        ),
                    ),
                ),
                lambda v: _opening(v)[:, None],
            ),
        },
        rewards={
            "reach": Reward(0.3, lambda v: near(np.linalg.norm(_tip(v) - _slot(v), axis=1), 0.1)),
            "open": Reward(0.5, lambda v: np.clip(_opening(v) / OPENED, 0.0, 1.0)),
            "there": Reward(0.2, lambda v: _success(v).astype(float)),
        },
        success=_success,
        expert=_expert,
        actions=CartesianDelta(low=WORKSPACE_LOW, high=WORKSPACE_HIGH),
        max_steps=120,
        interaction_point=lambda v: from_fixture(v, "cabinet", _slot(v)),
        joints=lambda o: {**fixture_joints(o, "cabinet"), "drawer": o["opening"][:, 0]},
        capacity=Capacity(contacts=32, constraints=128),
        ranges=(
            Range(what="mass", names=("drawer",), low=0.5, high=2.0),
            Range(what="damping", names=("drawer",), low=0.5, high=2.0),
            Range(what="friction", names=("handle_*", "finger_*"), low=0.7, high=1.3),
            *ARM_AND_CAMERAS,
        ),
    )
