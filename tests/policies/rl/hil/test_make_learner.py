"""Tests the learner of a session: its features, and the conversion of demonstrations."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policies.rl.hil.config import RelativeFeature, ScaledTanhFeature
from policies.rl.hil.make_learner import demonstration_steps, make_learner
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig
from robots.control.gripper_commands import CommandedGripper
from robots.episodes.corrections import FINAL, STREAM, corrections_schema
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.spec import ActionSpec, FieldSpec
from robots.wire.steps import Steps, plain_steps

FIELDS = {name: FieldSpec(shape=(3,)) for name in ("gripper_pose", "goal")} | {
    "width": FieldSpec(shape=(1,))
}
ARM = ActionSpec(low=(-1.0,) * 3, high=(1.0,) * 3, names=("x", "y", "z"))
SAC = replace(SacConfig(), critic=MlpSizes(hidden=(8,)), actor=MlpSizes(hidden=(8,)))


def steps(rows: int = 4) -> Steps:
    """Demonstration steps; entry i of the observations is between 0 and i + 1."""
    obs = np.linspace(0.0, 1.0, rows)[:, None] * np.arange(1, 8, dtype=np.float32)
    no = np.zeros(rows, bool)
    number = np.arange(rows)
    return plain_steps(number * 0, number, obs, np.zeros((rows, 3)), no, obs, no, no, demo=True)


def test_features_use_the_offsets_of_their_fields() -> None:
    learner = make_learner(
        SAC,
        FIELDS,
        ARM,
        [steps()],
        relative_features=[RelativeFeature(field="gripper_pose", other="goal", scale=0.5)],
        scaled_features=[ScaledTanhFeature(field="width", entries=1)],
    )
    features = learner.networks.features
    assert features.relative_features == ((0, 3, 3, 0.5),)
    assert features.scaled_features == ((6, -1, 1, 0.01),)
    assert features.size == 7 + 3 + 1


def test_a_feature_of_an_unknown_field_is_refused() -> None:
    cube = [RelativeFeature(field="cube")]
    with pytest.raises(
        HandoffError, match=r"3 entries of 'cube', .*\['gripper_pose', 'goal', 'width'\]"
    ):
        make_learner(SAC, FIELDS, ARM, [steps()], relative_features=cube)


def test_a_feature_with_more_entries_than_its_field_is_refused() -> None:
    with pytest.raises(HandoffError, match="2 entries of 'width'"):
        make_learner(
            SAC,
            FIELDS,
            ARM,
            [steps()],
            scaled_features=[ScaledTanhFeature(field="width", entries=2)],
        )


@pytest.mark.parametrize("gripper", [False, True])
def test_an_action_with_a_gripper_brings_a_critic_for_it(gripper: bool) -> None:
    names = ("x", "y", "gripper") if gripper else ARM.names
    learner = make_learner(SAC, FIELDS, replace(ARM, names=names), [steps()])
    assert (learner.networks.gripper is not None) == gripper


def test_the_last_solved_step_of_a_demonstration_is_rewarded_and_ends_it(tmp_path: Path) -> None:
    action = ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0), names=("x", "gripper"))
    fields = {name: FieldSpec(shape=(1,)) for name in ("x", "width", "width_target")}
    schema = corrections_schema("reach", 10.0, fields, action)
    open_width = np.full((3, 1), 0.08)
    rows = {
        name: np.zeros((3, *spec.shape), spec.dtype)
        for name, spec in schema.stream(STREAM).fields.items()
    }
    rows |= {"x": np.arange(3.0)[:, None], "width": open_width, "width_target": open_width}
    rows |= {"action": np.array([[0.5, 1.0], [2.0, 1.0], [0.0, -1.0]])}
    rows["success"][-1] = 1
    final = {name: np.full((1, 1), 3.0) for name in fields}
    shaped = {
        stream: {
            name: np.asarray(array, schema.stream(stream).fields[name].dtype)
            for name, array in arrays.items()
        }
        for stream, arrays in ((STREAM, rows), (FINAL, final))
    }
    with EpisodeStore.create(tmp_path / "store.zarr", schema) as store:
        store.append(shaped, {})
        gripper_commands = CommandedGripper(2, width_max=0.08)
        (converted,) = demonstration_steps(store, vector, gripper_commands)
    np.testing.assert_array_equal(converted.observation[:, 0], [0.0, 1.0, 2.0])
    np.testing.assert_array_equal(converted.next_observation[:, 0], [1.0, 2.0, 3.0])
    np.testing.assert_allclose(converted.action, [[0.5, 1.0], [1.0, 1.0], [0.0, -1.0]])
    assert converted.reward.tolist() == [0.0, 0.0, 1.0]
    assert converted.terminated.tolist() == [False, False, True]
    assert not converted.truncated.any()
    assert converted.toggle.tolist() == [False, False, True], (
        "the open gripper is commanded to close"
    )


def vector(obs: Observation) -> np.ndarray:
    """(N, 1) field x."""
    return np.asarray(obs["x"], np.float32)
