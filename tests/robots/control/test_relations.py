"""Fields of one thing relative to another follow from the fields of both."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from robots.control.relations import GRASP_POSE, measured_for, measured_specs, related
from robots.errors import HandoffError
from robots.spec import FieldSpec, Place, Relation
from sim.make import TASKS, EnvConfig, make_vec_env

RELATED = [
    ("pick_cube", "cube_offset"),
    ("pick_cube", "cube_turn"),
    ("pick_cube", "goal_offset"),
    ("lift_cube", "cube_offset"),
    ("lift_cube", "cube_turn"),
    ("flip_switch", "knob_offset"),
    ("pick_by_name", "red_cube"),
    ("open_drawer", "slot_offset"),
    ("open_drawer", "opening"),
    ("peg_insert", "tip_offset"),
    ("peg_insert", "turn"),
    ("peg_insert", "lean"),
]


def state_of(env: Any) -> dict[str, np.ndarray]:
    """Position and quaternion of the body `red`; nothing where there is none."""
    view = env.engine.view
    if "red" not in view.layout.qpos:
        return {}
    return {"position": view.position("red"), "quaternion": view.quaternion("red")}


@pytest.mark.parametrize(("task", "name"), RELATED)
def test_a_field_is_what_its_relations_make_of_the_others(task: str, name: str) -> None:
    """Under random actions, in the axes and entries that the simulator uses."""
    env = make_vec_env(EnvConfig(task=task), 4)
    try:
        relations = env.observation_spec[name].relations
        rng = np.random.default_rng(3)
        observation = env.reset([11, 12, 13, 14])
        for _ in range(15):
            observation = env.step(rng.uniform(-1.0, 1.0, (4, env.action_spec.size))).observation
            for row in range(4):
                values = {field: value[row] for field, value in observation.items()}
                # The cubes of `pick_by_name` are no fields of their own.
                values |= {f"red_{what}": value[row] for what, value in state_of(env).items()}
                found = related(relations, values)
                np.testing.assert_allclose(found, values[name], atol=2e-5)
    finally:
        env.close()


def test_a_marker_stands_still_where_its_field_says() -> None:
    """The markers' positions are no fields of their own."""
    env = make_vec_env(EnvConfig(task="reach_by_name"), 1)
    try:
        relations = env.observation_spec["red_marker"].relations
        observation = env.reset([5])
        marker = observation["red_marker"][0] + observation[GRASP_POSE][0, :3]
        for _ in range(10):
            observation = env.step(np.full((1, env.action_spec.size), 0.7)).observation
        values = {GRASP_POSE: observation[GRASP_POSE][0], "red_marker_position": marker}
        found = related(relations, values)
        np.testing.assert_allclose(found, observation["red_marker"][0], atol=2e-5)
    finally:
        env.close()


@pytest.mark.parametrize("task", sorted(TASKS))
def test_relations_name_fields_that_a_tracker_can_send(task: str) -> None:
    """Everything that they name is observed by the task, or described on its own; shapes fit."""
    env = make_vec_env(EnvConfig(task=task), 1)
    try:
        observed = env.observation_spec
        values: dict[str, np.ndarray] = {GRASP_POSE: np.zeros(6)}
        for name, spec in measured_specs(observed).items():
            assert spec.unit in ("m", "m, m, rad", "1")
            values[name] = np.resize([1.0, 0.0, 0.0, 0.0], spec.shape)
        for spec in observed.values():
            if spec.relations:
                assert related(spec.relations, values).shape == spec.shape
    finally:
        env.close()


def test_an_offset_in_the_axes_of_a_fixture() -> None:
    """A fixture turned by a quarter: what lies along the base's y lies along its x."""
    relation = Relation(kind="offset", origin="hand", target="knob", fixture="switch")
    values = {
        "hand": np.array([0.4, 0.0, 0.3]),
        "knob": np.array([0.4, 0.2, 0.1]),
        "switch": np.array([9.0, 9.0, 0.5 * np.pi]),
    }
    np.testing.assert_allclose(related([relation], values), [0.2, 0.0, -0.2], atol=1e-12)
    spec = FieldSpec(shape=(3,), relations=(relation,))
    assert measured_for(spec) == ["hand", "knob", "switch"]
    described = measured_specs({"knob_offset": spec})
    assert described["switch"].unit == "m, m, rad"
    assert described["hand"].unit == "m"


def test_a_place_is_a_point_of_a_thing_that_lies_and_of_a_fixture() -> None:
    """A peg that lies along the base's x, 0.1 m long, and a fixture turned by a quarter."""
    half = np.sqrt(0.5)
    # A quarter turn about y: the peg's z axis is the base's x axis. Its length is not quite 1.
    values = {
        "peg": np.array([0.4, 0.1, 0.2]),
        "turned": 1.02 * np.array([half, 0.0, half, 0.0]),
        "socket": np.array([0.5, 0.0, 0.5 * np.pi]),
    }
    tip = Place(position="peg", quaternion="turned", point=(0.0, 0.0, -0.05))
    rim = Place(fixture="socket", point=(0.2, 0.0, 0.03))
    apart = Relation(kind="offset", origin=rim, target=tip)
    np.testing.assert_allclose(related([apart], values), [-0.15, -0.1, 0.17], atol=1e-12)
    turned = Relation(kind="offset", origin=rim, target=tip, fixture="socket", entries=(2, 0))
    np.testing.assert_allclose(related([turned], values), [0.17, -0.1], atol=1e-12)
    lean = Relation(kind="lean", target=tip)
    np.testing.assert_allclose(related([lean], values), [1.0, 0.0], atol=1e-12)
    # What stands still in the base needs no field.
    bin_ = Relation(kind="offset", origin="peg", target=Place(point=(0.4, 0.0, 0.0)))
    np.testing.assert_allclose(related([bin_], values), [0.0, -0.1, -0.2], atol=1e-12)
    assert measured_for(FieldSpec(shape=(3,), relations=(bin_,))) == ["peg"]
    described = measured_specs({"tip_offset": FieldSpec(shape=(3,), relations=(apart,))})
    shapes = {name: (spec.shape, spec.unit) for name, spec in described.items()}
    fixture = ((3,), "m, m, rad")
    assert shapes == {"peg": ((3,), "m"), "turned": ((4,), "1"), "socket": fixture}


@pytest.mark.parametrize(("yaw", "turn"), [(0.3, 0.3), (1.4, 1.4 - 0.5 * np.pi), (-3.0, 0.1416)])
def test_a_square_turn_is_less_than_an_eighth(yaw: float, turn: float) -> None:
    upright, socket = Place(quaternion="peg"), Place(fixture="socket")
    values = {"peg": np.array([1.0, 0.0, 0.0, 0.0]), "socket": np.array([0.5, 0.1, yaw])}
    relation = Relation(kind="square_turn", origin=upright, target=socket)
    np.testing.assert_allclose(related([relation], values), [turn], atol=1e-4)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no origin": ({"kind": "offset", "target": "knob"}, "origin is empty"),
    "no orientation": (
        {"kind": "square_turn", "origin": "peg", "target": Place(fixture="socket")},
        "origin is 'peg', expected a place with a quaternion or a fixture",
    ),
    "no axis": ({"kind": "lean", "target": Place(position="peg")}, "expected a place with a quat"),
    "no box": (
        {"kind": "quarter_turns", "origin": "hand", "target": Place(quaternion="peg")},
        "target is .* expected a field",
    ),
    "no entry": (
        {"kind": "offset", "origin": "hand", "target": "knob", "entries": (3,)},
        r"entries \[3\], expected below 3",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_relation_of_what_is_missing_is_refused(kind: str) -> None:
    options, why = REFUSED[kind]
    with pytest.raises(HandoffError, match=why):
        Relation(**options)


def test_a_measured_field_needs_nothing_else() -> None:
    assert measured_for(FieldSpec(shape=(3,))) == []
    assert measured_specs({"goal": FieldSpec(shape=(3,))}) == {}
