"""WSRL with a gripper: a policy that was learned offline from recorded actions goes on in a session,
with the gripper as a continuous entry."""

from __future__ import annotations

import numpy as np
import pytest

from flows.runner.artifact import Artifact
from policies.checkpoint import read_card
from policies.policy_config import LearnedActorConfig
from policies.rl.hil.config import HilSerlConfig, HilWsrlConfig, commands_gripper
from robots.episodes.corrections import STREAM
from robots.episodes.store import EpisodeStore
from robots.spec import ActionSpec
from tests.flows.recipe_stages import run_all

RECIPE = """
name: wsrl
shared:
  env:
    task: pick_cube
    observation_fields: &fields
      [grasp_pose, target_offset, width, width_target, cube_offset, goal_offset]
  protocol: {uses: pick_cube, episodes: 2}
  evaluate: {batch: 2, videos: 0}
stages:
  recorded: {uses: scripted, with: {task: pick_cube, episodes: 6}}
  offline:
    uses: offline
    inputs: {demos: recorded}
    with:
      algorithm:
        kind: cal_ql
        observation_fields: *fields
        updates: 30
        batch_size: 32
        actions: 2
        target_actions: 2
        sac: &sac {critic: {hidden: [16]}, actor: {hidden: [16]}}
      reward: {kind: success}
  demos: {uses: demonstrate, with: {episodes: 2}}
  corrected:
    uses: correct
    inputs: {demos: demos, policy: offline}
    with:
      steps: 150
      speed: 0.0
      backlog: 20
      relative_features: []
      scaled_features: []
      algorithm:
        kind: wsrl
        reward: task
        sac: *sac
        online: {training_starts: 50, batch_size: 32, minibatches: 1, updates_per_step: 0.5}
  scores: {uses: evaluate, inputs: {policy: corrected}}
"""
STEPS = 150


@pytest.fixture(scope="module")
def corrected(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    folder = tmp_path_factory.mktemp("wsrl")
    (folder / "wsrl.yaml").write_text(RECIPE)
    return run_all(str(folder / "wsrl.yaml"), (), folder / "runs")["corrected"]


def test_the_policy_has_a_continuous_gripper_and_no_critic_of_its_commands(
    corrected: Artifact,
) -> None:
    assert corrected.manifest["metrics"]["steps"] >= STEPS
    assert corrected.manifest["metrics"]["updates"] == 50
    model = read_card(corrected.path).model
    assert isinstance(model, LearnedActorConfig)
    assert model.card.hand is None
    assert model.card.action == 5


def test_what_the_policy_proposed_for_the_gripper_was_executed(corrected: Artifact) -> None:
    store = EpisodeStore.open(corrected.path / "store.zarr")
    alone = store.column(STREAM, "intervention").ravel() == 0
    gripper = store.column(STREAM, "action")[alone, -1]
    np.testing.assert_array_equal(gripper, store.column(STREAM, "action_policy")[alone, -1])
    between = np.abs(gripper) < 0.9
    assert between.mean() > 0.1, "commands would be at the bounds"


def test_the_gripper_is_commanded_by_the_other_algorithms() -> None:
    action = ActionSpec(low=(-1.0,) * 2, high=(1.0,) * 2, names=("x", "gripper"))
    assert commands_gripper(HilSerlConfig(), action)
    assert not commands_gripper(HilWsrlConfig(), action)
