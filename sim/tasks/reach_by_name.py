"""Defines reach by name: move the fingertips to the one of four markers in the air that the
instruction names, and stop there.

This is the smallest problem for a language-conditioned policy on the arm: no contact, three entries
of an action, and only the instruction determines which of four goals is meant. Stopping at another
marker ends the episode. `sim.phrasings` has the same instructions in other words.
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
from robots.language.text import encode, text_field
from robots.spec import XYZ, FieldSpec
from sim.phrasings import PHRASINGS, sentences
from sim.scene.scene import arm_scene
from sim.scene.view import View
from sim.tasks.pick_by_name import COLOURS, NAMES
from sim.tasks.reach import GOAL_HIGH, GOAL_LOW, RANGES, STILL, TOLERANCE
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

INSTRUCTIONS = tuple(f"reach the {name} marker" for name in NAMES)
"""Instruction by the index of the target marker."""
APART = 0.1
"""Minimum distance between two markers [m]."""
_PLACES = 3 * len(NAMES)
"""Number of goal entries that hold the markers' positions; the index of the wording follows."""
_PHRASED = {
    phrasing: tuple(sentences(phrasing, name, NAMES) for name in NAMES) for phrasing in PHRASINGS
}
"""Sentences by the name of a phrasing and the index of the target marker."""
_WORDINGS = tuple(enumerate(INSTRUCTIONS)) + tuple(
    (target, sentence)
    for by_target in _PHRASED.values()
    for target, several in enumerate(by_target)
    for sentence in several
)
"""Index of the target marker and sentence, by the index of the wording; the first four are
`INSTRUCTIONS`."""
_TARGETS = np.array([target for target, _ in _WORDINGS])
_TEXT = text_field(about="which marker to reach, in words")
_WORDS = encode([sentence for _, sentence in _WORDINGS], _TEXT.shape[0])


def _scene(robot: Robot) -> mujoco.MjSpec:
    import mujoco

    spec = arm_scene("reach_by_name", robot, timestep=0.005)
    for name, rgba in COLOURS.items():
        marker = spec.worldbody.add_body(name=name, mocap=True)
        marker.add_geom(
            type=mujoco.mjtGeom.mjGEOM_SPHERE,
            size=[TOLERANCE] * 3,
            rgba=[*rgba[:3], 0.6],
            contype=0,
            conaffinity=0,
        )
    return spec


def _reset(rng: np.random.Generator, start: InitialState) -> None:
    start_posture(rng, start, start.layout.robot.q_home, spread=0.1)
    places: list[np.ndarray] = []
    while len(places) < len(NAMES):
        place = rng.uniform(GOAL_LOW, GOAL_HIGH)
        if all(np.linalg.norm(place - other) >= APART for other in places):
            places.append(place)
    start.goal[:_PLACES] = np.concatenate(places)
    start.goal[_PLACES] = rng.integers(len(NAMES))


def _instruct(start: InitialState, instruction: str) -> None:
    start.goal[_PLACES] = INSTRUCTIONS.index(instruction)


def _rephrase(phrasing: str, rng: np.random.Generator, start: InitialState) -> None:
    target = int(_TARGETS[int(start.goal[_PLACES])])
    several = _PHRASED[phrasing][target]
    sentence = several[rng.integers(len(several))]
    start.goal[_PLACES] = _WORDINGS.index((target, sentence))


def _wording_index(view: View) -> np.ndarray:
    """(N,) index of the instruction's wording."""
    return view.goal[:, _PLACES].astype(np.int64)


def _target_index(view: View) -> np.ndarray:
    """(N,) index of the target marker."""
    return _TARGETS[_wording_index(view)]


def _markers(view: View) -> np.ndarray:
    """(N, 4, 3) positions of the markers [m], base frame."""
    return view.goal[:, :_PLACES].reshape(view.n, len(NAMES), 3)


def _target_position(view: View) -> np.ndarray:
    """(N, 3) position of the target marker [m], base frame."""
    return _markers(view)[np.arange(view.n), _target_index(view)]


def _reached(view: View) -> np.ndarray:
    """(N, 4) bool: the fingertips have stopped at this marker."""
    distance = np.linalg.norm(_markers(view) - view.grasp_position[:, None], axis=2)
    still = np.linalg.norm(view.grasp_velocity[:, :3], axis=1) < STILL
    return (distance < TOLERANCE) & still[:, None]


def _success(view: View) -> np.ndarray:
    return _reached(view)[np.arange(view.n), _target_index(view)]


def _wrong_marker(view: View) -> np.ndarray:
    """(N,) bool: the fingertips have stopped at another marker."""
    return _reached(view).any(axis=1) & ~_success(view)


def _distance(view: View) -> np.ndarray:
    return np.linalg.norm(view.grasp_position - _target_position(view), axis=1)


def _expert(view: View) -> ExpertTarget:
    pose = np.zeros((view.n, 6))
    pose[:, :3] = _target_position(view)
    return ExpertTarget(pose=pose, width=np.full(view.n, view.width_max))


def _marker_offset(number: int) -> ObservationTerm:
    """Observation term: position of a marker relative to the fingertips."""
    about = f"from the grasp point to the {NAMES[number]} marker"
    relations = (offset_from_gripper(f"{NAMES[number]}_marker_position"),)
    spec = FieldSpec(
        shape=(3,), unit="m", frame="base", about=about, names=XYZ, relations=relations
    )
    return ObservationTerm(spec, lambda v: _markers(v)[:, number] - v.grasp_position)


def task(robot: Robot) -> Task:
    """Returns the task for `robot`."""
    return Task(
        name="reach_by_name",
        brief="Move the fingertips to the marker that the instruction names, and stop there.",
        robot=robot,
        scene=partial(_scene, robot),
        reset=_reset,
        q_posture=robot.q_home,
        observations={
            **proprioception(robot, use_gripper=False),
            **{f"{name}_marker": _marker_offset(number) for number, name in enumerate(NAMES)},
            "instruction": ObservationTerm(_TEXT, lambda v: _WORDS[_wording_index(v)]),
        },
        rewards={
            "near": Reward(0.5, lambda v: near(_distance(v), 0.1)),
            "there": Reward(0.5, lambda v: _success(v).astype(float)),
        },
        success=_success,
        failure=_wrong_marker,
        expert=_expert,
        info={"mistaken": lambda v: _wrong_marker(v).astype(float)},
        instructions=INSTRUCTIONS,
        instruct=_instruct,
        phrasings={phrasing: partial(_rephrase, phrasing) for phrasing in PHRASINGS},
        goal_size=_PLACES + 1,
        actions=CartesianDelta(axes=("x", "y", "z")),
        use_gripper=False,
        max_steps=60,
        capacity=Capacity(contacts=16, constraints=64),
        ranges=RANGES,
    )
