"""The stage `export` takes what an action means from the demonstrations or their task."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.stages.release.export import with_meaning
from policies.card import PolicyCard
from policies.export.onnx import ExportConfig
from policies.policy_config import DiffusionPolicyConfig
from robots.control.actions import CartesianDelta
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from sim.make import find_task
from tests.flows.recipe_stages import declared

ACTION = FieldSpec(shape=(3,))


def demonstrations(folder: Path, task: str, action: FieldSpec = ACTION) -> Path:
    """A store of one step of the task."""
    stream = StreamSpec(rate_hz=20.0, fields={"action": action})
    schema = EpisodeSchema(name=task, streams={"policy": stream}, robot="fr3")
    folder.mkdir()
    with EpisodeStore.create(folder / "store.zarr", schema) as store:
        zeros = np.zeros((1, *action.shape), np.float32)
        store.append({"policy": {"action": zeros}}, {})
    return folder


def card(task: str, rate_hz: float = 20.0) -> PolicyCard:
    return PolicyCard(
        task=task,
        rate_hz=rate_hz,
        observation={},
        action=ACTION,
        model=DiffusionPolicyConfig(observation_fields=(), anchor_field=None),
    )


@pytest.mark.parametrize(
    ("task", "rate_hz", "interface"),
    [("reach", 20.0, "cartesian_delta"), ("push_t", 10.0, "pd_target")],
)
def test_the_interface_is_that_of_the_task(
    task: str, rate_hz: float, interface: str, tmp_path: Path
) -> None:
    demos = demonstrations(tmp_path / "demos", task)
    found = with_meaning(ExportConfig(), card(task, rate_hz), demos)
    assert found.action_interface == interface
    assert isinstance(found.steps, CartesianDelta) == (interface == "cartesian_delta")
    assert found.impedance == find_task(task).gains


@pytest.mark.parametrize("task", ["mine", "gym_pusht/PushT-v0"])
def test_actions_of_unknown_meaning_are_refused_with_the_known_ones(
    task: str, tmp_path: Path
) -> None:
    demos = demonstrations(tmp_path / "demos", task)
    known = "pd_target, cartesian_delta, joint_delta, joint_target"
    with pytest.raises(HandoffError, match=f"policy of task '{task}': .* is not known.*{known}"):
        with_meaning(ExportConfig(), card(task), demos)


def test_recorded_actions_may_state_their_meaning(tmp_path: Path) -> None:
    joints = FieldSpec(shape=(14,), unit="rad", interface="joint_target")
    demos = demonstrations(tmp_path / "demos", "fold_towel", joints)
    assert (
        with_meaning(ExportConfig(), card("fold_towel"), demos).action_interface == "joint_target"
    )
    with pytest.raises(
        HandoffError, match="'pd_target', but its recorded actions are 'joint_target"
    ):
        with_meaning(ExportConfig(action_interface="pd_target"), card("fold_towel"), demos)


def test_recorded_actions_precede_those_of_the_task(tmp_path: Path) -> None:
    joints = FieldSpec(shape=(7,), interface="joint_delta")
    found = with_meaning(
        ExportConfig(), card("reach"), demonstrations(tmp_path / "demos", "reach", joints)
    )
    assert (found.action_interface, found.steps) == ("joint_delta", None)


def test_steps_that_are_given_are_kept(tmp_path: Path) -> None:
    steps = CartesianDelta(translation=0.01)
    demos = demonstrations(tmp_path / "demos", "reach")
    assert with_meaning(ExportConfig(steps=steps), card("reach"), demos).steps == steps


def test_steps_of_unknown_length_are_refused_and_may_be_given(tmp_path: Path) -> None:
    deltas = FieldSpec(shape=(4,), interface="cartesian_delta")
    demos = demonstrations(tmp_path / "demos", "blocks", deltas)
    with pytest.raises(HandoffError, match=r"'blocks' are cartesian_delta, .* state no steps"):
        with_meaning(ExportConfig(), card("blocks"), demos)
    steps = CartesianDelta(translation=0.05)
    assert with_meaning(ExportConfig(steps=steps), card("blocks"), demos).steps == steps


def test_positions_of_a_task_with_steps_are_refused(tmp_path: Path) -> None:
    demos = demonstrations(tmp_path / "demos", "reach")
    with pytest.raises(
        HandoffError, match=r"'pd_target', but actions .* 'cartesian_delta'\. Leave"
    ):
        with_meaning(ExportConfig(action_interface="pd_target"), card("reach"), demos)


def test_an_unknown_interface_is_refused_by_plan() -> None:
    with pytest.raises(HandoffError, match=r"'bundle.action_interface' is 'cartesian_dleta'"):
        declared("demo", ["bundle.action_interface=cartesian_dleta"])
