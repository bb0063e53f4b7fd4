"""Defines pick by name: grasp the one of four cubes that the instruction names, and lift it.

The same scene has four goals, and only the instruction determines which one is meant, as in the
PutOn tasks of ManiSkill with which RLinf evaluates (arXiv 2510.06710); here with one arm, one table
and our own cubes.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from robots.control.actions import CartesianDelta
from robots.control.relations import offset_from_gripper, turns_from_gripper
from robots.franka.robot import Robot
from robots.language.text import encode, text_field
from robots.spec import FieldSpec
from sim.scene.randomize import ARM_AND_CAMERAS, Range
from sim.scene.scene import arm_scene
from sim.scene.view import View, yaw_quaternion
from sim.tasks.fixture import upright_posture
from sim.tasks.grasping import (
    ALIGNED,
    MIDDLE,
    add_cube,
    beyond_reach,
    free_yaw,
    held,
    pick_up,
    quarter_turns,
)
from sim.tasks.stack_cube import (
    APART,
    CUBE_HIGH,
    CUBE_LOW,
    HALF,
    WORKSPACE_HIGH,
    WORKSPACE_LOW,
    YAW,
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
    start_posture,
)

if TYPE_CHECKING:
    import mujoco

COLOURS = {
    "red": (0.80, 0.28, 0.24, 1.0),
    "green": (0.30, 0.62, 0.34, 1.0),
    "blue": (0.24, 0.42, 0.76, 1.0),
    "yellow": (0.90, 0.76, 0.26, 1.0),
}
"""Colours of the cubes by name, in the order of the goal's index."""
NAMES = tuple(COLOURS)
INSTRUCTIONS = tuple(f"pick up the {name} cube" for name in NAMES)
"""Instruction by the index of the target cube."""
LIFT = 0.08
"""Height above the table at which the target cube counts as picked up [m]."""
_TEXT = text_field(about="which cube to pick up, in words")
_WORDS = encode(INSTRUCTIONS, _TEXT.shape[0])


def _scene(robot: Robot) -> mujoco.MjSpec:
    spec = arm_scene("pick_by_name", robot, timestep=0.005)
    for number, (name, rgba) in enumerate(COLOURS.items()):
        add_cube(spec, name, HALF, rgba=rgba, position=(0.5, 0.15 - 0.1 * number, HALF))
    return spec


def _reset(q_start: np.ndarray, rng: np.random.Generator, start: InitialState) -> None:
    start_posture(rng, start, q_start)
    start.goal[0] = rng.integers(len(NAMES))
    places: list[np.ndarray] = []
    while len(places) < len(NAMES):
        place = rng.uniform(CUBE_LOW, CUBE_HIGH)
        if all(np.linalg.norm(place - other) >= APART for other in places):
            places.append(place)
    for name, place in zip(NAMES, places, strict=True):
        start.place(name, [*place, HALF], yaw_quaternion(rng.uniform(-YAW, YAW)))


def _instruct(start: InitialState, instruction: str) -> None:
    start.goal[0] = INSTRUCTIONS.index(instruction)


def _target_index(view: View) -> np.ndarray:
    """(N,) index of the target cube."""
    return view.goal[:, 0].astype(np.int64)


def _of_target(view: View, read: Callable[[str], np.ndarray]) -> np.ndarray:
    """(N, ...) value of `read` for each environment's target cube."""
    return np.stack([read(name) for name in NAMES])[_target_index(view), np.arange(view.n)]


def _held(view: View) -> np.ndarray:
    return _of_target(view, lambda name: held(view, name, HALF))


def _lifted(view: View, name: str) -> np.ndarray:
    return held(view, name, HALF) & (view.position(name)[:, 2] > HALF + LIFT)


def _success(view: View) -> np.ndarray:
    return _of_target(view, lambda name: _lifted(view, name))


def _wrong_cube(view: View) -> np.ndarray:
    """(N,) 1 where another cube than the target is lifted."""
    lifted = np.stack([_lifted(view, name) for name in NAMES])
    return (lifted.any(axis=0) & ~_success(view)).astype(float)


def _failure(view: View) -> np.ndarray:
    """(N,) bool: the target cube lies where the gripper cannot grasp it."""
    low, high = np.array(WORKSPACE_LOW[:2]) - ALIGNED, np.array(WORKSPACE_HIGH[:2]) + ALIGNED
    return _of_target(view, lambda name: beyond_reach(view, name, low, high)) & ~_held(view)


def _reach(view: View) -> np.ndarray:
    position = _of_target(view, view.position)
    return near(np.linalg.norm(view.grasp_position - position, axis=1), 0.1)


def _raised(view: View) -> np.ndarray:
    """(N,) fraction of the lift height, 0..1, while the target cube is held."""
    height = _of_target(view, view.position)[:, 2] - HALF
    return np.clip(height / LIFT, 0.0, 1.0) * _held(view)


def _expert(view: View) -> ExpertTarget:
    position = _of_target(view, view.position)
    yaw = _of_target(view, lambda name: free_yaw(view, name, _others(name), HALF))
    grasp = pick_up(view, position, yaw, HALF)
    holding = _held(view)
    up = grasp.pose.copy()
    up[:, :3] = view.grasp_position
    up[:, 2] += HALF + LIFT + 0.03 - position[:, 2]
    return ExpertTarget(
        pose=np.where(holding[:, None], up, grasp.pose), width=np.where(holding, 0.0, grasp.width)
    )


def _others(name: str) -> Sequence[str]:
    return [other for other in NAMES if other != name]


def _relative_pose(name: str) -> ObservationTerm:
    """Observation term: pose of a cube relative to the gripper."""
    spec = FieldSpec(
        shape=(5,),
        unit="m, 1",
        frame="base",
        about=(
            f"from the grasp point to the {name} cube's centre; cosine, sine of four times its yaw "
            "relative to the gripper"
        ),
        relations=(
            offset_from_gripper(f"{name}_position"),
            turns_from_gripper(f"{name}_quaternion"),
        ),
    )
    return ObservationTerm(
        spec,
        lambda v: np.concatenate(
            [v.position(name) - v.grasp_position, quarter_turns(v, name)], axis=1
        ),
    )


def task(robot: Robot) -> Task:
    """Returns the task for `robot`; the gripper starts above the middle of the table, pointing
    down."""
    q_start = upright_posture(robot, MIDDLE, 0.0)
    return Task(
        name="pick_by_name",
        brief="Grasp the cube that the instruction names, and lift it eight centimetres.",
        robot=robot,
        handled=tuple(COLOURS),
        scene=partial(_scene, robot),
        reset=partial(_reset, q_start),
        q_posture=q_start,
        observations={
            **proprioception(robot),
            **{f"{name}_cube": _relative_pose(name) for name in NAMES},
            "instruction": ObservationTerm(_TEXT, lambda v: _WORDS[_target_index(v)]),
        },
        rewards={
            "reach": Reward(0.25, _reach),
            "grasp": Reward(0.25, lambda v: _held(v).astype(float)),
            "lift": Reward(0.25, _raised),
            "there": Reward(0.25, lambda v: _success(v).astype(float)),
        },
        success=_success,
        failure=_failure,
        expert=_expert,
        info={"mistaken": _wrong_cube},
        instructions=INSTRUCTIONS,
        instruct=_instruct,
        goal_size=1,
        actions=CartesianDelta(low=WORKSPACE_LOW, high=WORKSPACE_HIGH),
        max_steps=100,
        capacity=Capacity(contacts=48, constraints=192),
        ranges=(
            Range(what="mass", names=NAMES, low=0.5, high=2.0),
            Range(what="friction", names=(*NAMES, "finger_*"), low=0.7, high=1.3),
            *ARM_AND_CAMERAS,
        ),
    )
