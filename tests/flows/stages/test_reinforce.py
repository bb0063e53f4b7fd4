"""RL from scratch of a state-based task as a recipe: declared in YAML, run in simulated
environments, exported, gated, killed and resumed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from flows.reports.results import describe
from flows.runner.artifact import Artifact
from flows.stages.data.config import ScriptedConfig
from flows.stages.learn import reinforce
from flows.stages.learn.config import ReinforcePolicyConfig
from policies.load import load_module
from policies.rl.coarse_to_fine.config import CqnAsConfig
from policies.rl.from_scratch.config import (
    CqnAsAlgorithm,
    FastTd3Algorithm,
    PpoLagrangianAlgorithm,
)
from policies.rl.from_scratch.run import STATE
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from sim.engines.mujoco import MujocoConfig
from sim.evaluation.protocol import Protocol
from sim.recording.config import ExpertDemonstrationsConfig
from tests.flows.recipe_stages import declared, options, run_all
from tests.policies.kill import run_until_killed

TINY = (
    "teacher.num_envs=3",
    "teacher.algorithm.collections=90",
    "teacher.algorithm.save_every=15",
    "teacher.algorithm.batch_size=16",
    "teacher.algorithm.capacity=50",
    "teacher.algorithm.learner.critic.hidden=[16]",
    "teacher.algorithm.learner.actor.hidden=[16]",
    "protocol={uses: reach, episodes: 4, max_steps: 20}",
    "scores.evaluate.videos=0",
)


REACH = Protocol(name="reach", engine="mujoco", task="reach", max_steps=60)
VALUES = ReinforcePolicyConfig(protocol=REACH, algorithm=CqnAsAlgorithm())


def learned(config: ReinforcePolicyConfig, out: Path, progress: Progress) -> None:
    reinforce.run(config, out, progress)


def metrics_of(artifact: Artifact) -> dict[str, Any]:
    return artifact.manifest["metrics"]


def test_a_point_is_reached_for_and_the_policy_evaluated(tmp_path: Path) -> None:
    artifacts = run_all("reach_fast_td3", TINY, tmp_path, only=("teacher", "scores"))
    metrics = metrics_of(artifacts["teacher"])
    # Ten collections without, then two critic updates each, and one policy update for two of them.
    assert (metrics["steps"], metrics["updates"], metrics["policy_updates"]) == (270, 160, 80)
    # 90 collections hold four whole episodes of 20 steps in each of three environments.
    assert metrics["episodes"] >= 12
    assert describe("reinforce", metrics).startswith("270 steps, 160 updates, success ")
    assert metrics_of(artifacts["scores"])["success"]["n"] == 4
    assert (artifacts["teacher"].path / "reinforce.png").stat().st_size > 1000


def test_in_simulated_environments_a_killed_run_ends_with_the_weights_it_would_have_had(
    tmp_path: Path,
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    noise = "teacher.algorithm.learner.noise.high=0.9"
    config = options("reach_fast_td3", [*TINY, noise])["teacher"]
    learned(config, whole, no_progress)
    run_until_killed(3, learned, config, killed)
    assert (killed / STATE).exists()
    learned(config, killed, no_progress)
    expected, got = load_module(whole)[0].state_dict(), load_module(killed)[0].state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_the_recipe_observes_the_controllers_target_and_rewards_success() -> None:
    config = options("reach_fast_td3")["teacher"]
    algorithm = config.algorithm
    assert isinstance(algorithm, FastTd3Algorithm)
    assert "target_offset" in config.fields
    # With the step penalty, waiting short of the goal earns nothing; the atoms span all returns.
    assert config.reward.step == -config.reward.task
    assert algorithm.learner.low <= -1.0 / (1.0 - algorithm.discount)
    assert algorithm.learner.high >= 0.0
    assert algorithm.learner.critic.activation == "relu"


def test_policies_without_demonstrations_are_evaluated_exported_and_gated(tmp_path: Path) -> None:
    """SAC with gSDE, and PPO under a limit on the contact cost: the recipe of smoke size."""
    artifacts = run_all("smoke_reinforce", (), tmp_path)
    for label in ("sac", "limited"):
        metrics = metrics_of(artifacts[f"teacher@algorithm={label}"])
        assert metrics["cost"] >= 0.0
        scores = metrics_of(artifacts[f"scores@algorithm={label}"])
        assert scores["success"]["n"] == 4
        assert scores["cost_low"] <= scores["cost"] <= scores["cost_high"]
        assert metrics_of(artifacts[f"episodes@algorithm={label}"])["episodes"] == 4
        bundle = metrics_of(artifacts[f"bundle@algorithm={label}"])
        assert bundle["golden"] == 64
        assert metrics_of(artifacts[f"gate@algorithm={label}"])["passed"]
    assert metrics_of(artifacts["teacher@algorithm=limited"])["multiplier"] >= 0.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (
            ("teacher.algorithm={kind: ppo_lagrangian}",),
            r"cost_limit is 10\.0, but the environments of the protocol 'reach' report no cost",
        ),
        (("teacher.algorithm={kind: rlpd}",), "rlpd needs demonstrations"),
        (
            ("teacher.algorithm={kind: stream_ac}",),
            "num_envs is 64, but the algorithm stream_ac learns from one stream of steps",
        ),
        (("teacher.algorithm.cost_limit=3",), "'teacher.algorithm.cost_limit' is not read by"),
        (("teacher.algorithm={knid: sac}",), r"unknown key 'teacher.algorithm.knid'"),
        (("teacher.algorithm.discount=1.5",), "less than or equal to 1"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_runs(
    overrides: tuple[str, ...], message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        declared("reach_fast_td3", overrides)


def test_the_limit_of_the_switch_recipe_is_the_only_difference_of_its_two_policies() -> None:
    chosen = options("switch_ppo_lagrangian")
    free, limited = chosen["free"], chosen["limited"]
    assert isinstance(limited.algorithm, PpoLagrangianAlgorithm)
    assert (free.protocol, free.reward, free.fields) == (
        limited.protocol,
        limited.reward,
        limited.fields,
    )
    assert free.algorithm.rollouts == limited.algorithm.rollouts
    assert free.protocol.options["contact_threshold"] > 0.0


@pytest.mark.parametrize(
    ("task", "protocol", "message"),
    [
        ("pick_cube", REACH, "of the task 'pick_cube', the environments of 'reach'"),
        (
            "reach",
            replace(REACH, options={"reward": "sparse"}),
            "the reward 'dense', the environments 'sparse'.*demonstrate.mujoco.reward=sparse",
        ),
    ],
)
def test_scripted_demonstrations_have_task_and_reward_of_the_environments(
    task: str, protocol: Protocol, message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        reinforce.check(replace(VALUES, protocol=protocol), {"demos": ScriptedConfig(task=task)})


def test_demonstrations_with_the_reward_of_the_environments_are_learned_from() -> None:
    sparse = ExpertDemonstrationsConfig(mujoco=MujocoConfig(reward="sparse"))
    recorded = ScriptedConfig(task="reach", demonstrate=sparse)
    protocol = replace(REACH, options={"reward": "sparse"})
    reinforce.check(replace(VALUES, protocol=protocol), {"demos": recorded})


def test_a_sequence_of_actions_is_no_longer_than_an_episode() -> None:
    demos = ScriptedConfig(task="reach")
    longest = replace(VALUES, algorithm=CqnAsAlgorithm(learner=CqnAsConfig(horizon=60)))
    reinforce.check(longest, {"demos": demos})
    longer = replace(VALUES, algorithm=CqnAsAlgorithm(learner=CqnAsConfig(horizon=61)))
    with pytest.raises(HandoffError, match="horizon is 61, but an episode ends after 60 steps"):
        reinforce.check(longer, {"demos": demos})
