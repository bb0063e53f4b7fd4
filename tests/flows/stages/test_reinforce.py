"""RL from scratch of a state-based task as a pipeline: declared in YAML, run in simulated
environments, killed and resumed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from flows.recipes.compose import compose
from flows.recipes.config import PipelineConfig
from flows.recipes.pipeline import stages
from flows.reports.results import describe
from flows.runner.stage import run_stage
from flows.stages import reinforce
from flows.stages.config import ReinforcePolicyConfig
from policies.load import load_module
from policies.rl.from_scratch.config import FastTd3Algorithm, PqlAlgorithm
from policies.rl.from_scratch.run import STATE
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from tests.policies.kill import run_until_killed

TINY = [
    "reinforce.num_envs=3",
    "reinforce.algorithm.collections=90",
    "reinforce.algorithm.save_every=15",
    "reinforce.algorithm.batch_size=16",
    "reinforce.algorithm.capacity=50",
    "reinforce.algorithm.learner.critic.hidden=[16]",
    "reinforce.algorithm.learner.actor.hidden=[16]",
    "protocol.episodes=4",
    "protocol.max_steps=20",
    "evaluate.videos=0",
]


def learned(config: ReinforcePolicyConfig, out: Path, progress: Progress) -> None:
    reinforce.run(config, {}, out, progress)


def declared(*overrides: str) -> ReinforcePolicyConfig:
    stage = stages(compose("reach_fast_td3", [*TINY, *overrides]))[0]
    assert isinstance(stage.config, ReinforcePolicyConfig)
    return stage.config


def test_a_point_is_reached_for_and_the_policy_evaluated(tmp_path: Path) -> None:
    config: PipelineConfig = compose("reach_fast_td3", [f"runs={tmp_path}", *TINY])
    artifacts = {}
    for stage in stages(config):
        inputs = {name: artifacts[upstream.name] for name, upstream in stage.inputs.items()}
        artifacts[stage.name] = run_stage(
            stage, inputs, tmp_path, no_progress, isolate=False
        ).artifact
    assert list(artifacts) == ["reinforce", "evaluate_teacher"]
    metrics = artifacts["reinforce"].manifest["metrics"]
    # Ten collections without, then two critic updates each, and one policy update for two of them.
    assert (metrics["steps"], metrics["updates"], metrics["policy_updates"]) == (270, 160, 80)
    # 90 collections hold four whole episodes of 20 steps in each of three environments.
    assert metrics["episodes"] >= 12
    assert describe("reinforce", metrics).startswith("270 steps, 160 updates, success ")
    assert artifacts["evaluate_teacher"].manifest["metrics"]["success"]["n"] == 4
    assert (artifacts["reinforce"].path / "reinforce.png").stat().st_size > 1000


def test_in_simulated_environments_a_killed_run_ends_with_the_weights_it_would_have_had(
    tmp_path: Path,
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    config = declared("reinforce.algorithm.learner.noise.high=0.9")
    learned(config, whole, no_progress)
    run_until_killed(3, learned, config, killed)
    assert (killed / STATE).exists()
    learned(config, killed, no_progress)
    expected, got = load_module(whole)[0].state_dict(), load_module(killed)[0].state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_the_recipe_observes_the_controllers_target_and_rewards_success() -> None:
    config = compose("reach_fast_td3").reinforce
    assert config is not None
    algorithm = config.algorithm
    assert isinstance(algorithm, FastTd3Algorithm)
    assert "target_offset" in config.fields
    # With the step penalty, waiting short of the goal earns nothing; the atoms span all returns.
    assert config.reward.step == -config.reward.task
    assert algorithm.learner.low <= -1.0 / (1.0 - algorithm.discount)
    assert algorithm.learner.high >= 0.0


def test_either_method_is_a_choice() -> None:
    chosen = partial(compose, "demo")
    released = chosen(["+reinforce=fast_td3"]).reinforce
    parallel = chosen(
        ["+reinforce=pql", "reinforce.algorithm.learner.noise.spread=geometric"]
    ).reinforce
    assert released is not None
    assert parallel is not None
    assert released.algorithm == FastTd3Algorithm()
    assert isinstance(parallel.algorithm, PqlAlgorithm)
    assert parallel.algorithm.critic_per_collection == 8.0
    assert parallel.algorithm.learner.noise.spread == "geometric"


def test_demonstrations_and_finetuning_beside_it_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"remove \['scripted', 'finetune'\]"):
        stages(compose("reach_fast_td3", ["+scripted=expert", "+finetune=dppo"]))
    with pytest.raises(HandoffError, match=r"unknown key 'reinforce.algorithm.beta', did you mean"):
        compose("reach_fast_td3", ["reinforce.algorithm.beta=2"])
