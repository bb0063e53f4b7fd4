"""RL from scratch of a state-based task as a pipeline: declared in YAML, run in simulated
environments, killed and resumed."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from flows.reports.results import describe
from flows.stages.learn import reinforce
from flows.stages.learn.config import ReinforcePolicyConfig
from policies.load import load_module
from policies.rl.off_policy.train import STATE
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from tests.flows.recipe_stages import options, run_all
from tests.policies.kill import run_until_killed

TINY = [
    "teacher.num_envs=3",
    "teacher.learning.collections=90",
    "teacher.learning.save_every=15",
    "teacher.learning.batch_size=16",
    "teacher.learning.capacity=50",
    "teacher.learning.learner.critic.hidden=[16]",
    "teacher.learning.learner.actor.hidden=[16]",
    "shared.protocol.episodes=4",
    "shared.protocol.max_steps=20",
    "scores.evaluate.videos=0",
]


def learned(config: ReinforcePolicyConfig, out: Path, progress: Progress) -> None:
    reinforce.run(config, out, progress)


def chosen(*overrides: str) -> ReinforcePolicyConfig:
    config = options("reach_fast_td3", [*TINY, *overrides])["teacher"]
    assert isinstance(config, ReinforcePolicyConfig)
    return config


def test_a_point_is_reached_for_and_the_policy_evaluated(tmp_path: Path) -> None:
    artifacts = run_all("reach_fast_td3", TINY, tmp_path)
    assert list(artifacts) == ["teacher", "scores"]
    metrics = artifacts["teacher"].manifest["metrics"]
    # Ten collections without, then two critic updates each, and one policy update for two of them.
    assert (metrics["steps"], metrics["updates"], metrics["policy_updates"]) == (270, 160, 80)
    # 90 collections hold four whole episodes of 20 steps in each of three environments.
    assert metrics["episodes"] >= 12
    assert describe("reinforce", metrics).startswith("270 steps, 160 updates, success ")
    assert artifacts["scores"].manifest["metrics"]["success"]["n"] == 4
    assert (artifacts["teacher"].path / "reinforce.png").stat().st_size > 1000


def test_in_simulated_environments_a_killed_run_ends_with_the_weights_it_would_have_had(
    tmp_path: Path,
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    config = chosen("teacher.learning.learner.noise.high=0.9")
    learned(config, whole, no_progress)
    run_until_killed(3, learned, config, killed)
    assert (killed / STATE).exists()
    learned(config, killed, no_progress)
    expected, got = load_module(whole)[0].state_dict(), load_module(killed)[0].state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_the_recipe_observes_the_controllers_target_and_rewards_success() -> None:
    learning = options("reach_fast_td3")["teacher"].learning
    assert "target_offset" in learning.fields
    # With the step penalty, waiting short of the goal earns nothing; the atoms span all returns.
    assert learning.reward.step == -learning.reward.task
    assert learning.learner.low <= -1.0 / (1.0 - learning.discount)
    assert learning.learner.high >= 0.0


def test_an_unknown_key_is_answered_with_the_known_ones() -> None:
    with pytest.raises(HandoffError, match=r"unknown key 'teacher.learning.beta', "):
        options("reach_fast_td3", ["teacher.learning.beta=2"])
