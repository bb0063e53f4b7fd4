"""PPO and PPO-Lagrangian from scratch: what a run leaves, what a killed one goes on from, and how
costs enter."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.load import load_module, load_policy
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.collection.seeds import CountedSeeds
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import (
    FromScratchConfig,
    PpoAlgorithm,
    PpoLagrangianAlgorithm,
)
from policies.rl.from_scratch.rollout_env import StateRolloutEnv
from policies.rl.from_scratch.run import CURVE, STATE
from policies.rl.from_scratch.train import train_from_scratch
from policies.rl.networks.config import MlpSizes
from robots.errors import HandoffError
from robots.interfaces import Progress, Step, no_progress
from tests.policies.kill import run_until_killed
from tests.policies.rl.walking import Walking, solved_share

LAYERS = MlpSizes(hidden=(16,), layer_norm=False)
SMALL: dict[str, Any] = {
    "rollouts": 12,
    "rollout_steps": 8,
    "actor": LAYERS,
    "critic": LAYERS,
    "discount": 0.9,
    "epochs": 2,
    "batch_size": 16,
    "save_every": 3,
}
PLAIN = FromScratchConfig(algorithm=PpoAlgorithm(**SMALL), fields=("place",), first_seed=0)
LIMITED = replace(
    PLAIN, algorithm=PpoLagrangianAlgorithm(**SMALL, cost_limit=1.0, cost_rate=0.1, cost_gain=0.0)
)


class Costly(Walking):
    """Every step costs the length of its action."""

    def step(self, action: np.ndarray) -> Step:
        running = ~self._over()
        result = super().step(action)
        cost = np.abs(action[:, 0]) * running
        return result._replace(info={**result.info, "cost": cost})


def learned(
    config: FromScratchConfig, make: type[Walking], saves: bool, out: Path, progress: Progress
) -> dict[str, Any]:
    return train_from_scratch(config, "walking", partial(make, 3, saves), out, progress)


def curve(out: Path) -> list[dict[str, float]]:
    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    return [
        {name: value for name, value in entry.items() if name != "cpu_seconds"} for entry in entries
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_module(folder)[0].state_dict()


def test_a_run_leaves_a_deterministic_policy_its_curve_and_a_picture(tmp_path: Path) -> None:
    metrics = learned(PLAIN, Walking, True, tmp_path, no_progress)
    assert (metrics["rollouts"], metrics["steps"], metrics["updates"]) == (12, 12 * 8 * 3, 12)
    assert "cost" not in metrics
    assert [entry["rollouts"] for entry in curve(tmp_path)] == [3, 6, 9, 12]
    assert "multiplier" not in curve(tmp_path)[0]
    assert (tmp_path / "reinforce.png").stat().st_size > 1000
    assert not (tmp_path / STATE).exists()
    policy = load_policy(tmp_path)
    obs = np.array([[[0.5]], [[-1.5]]])
    chunk = policy(obs, np.zeros((2, 1, 1)))
    np.testing.assert_array_equal(chunk, policy(obs, np.ones((2, 1, 1))))
    assert np.abs(chunk).max() <= 1.0


def test_the_curve_goes_to_the_loggers_under_the_number_of_rollouts(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = replace(PLAIN, loggers=("tensorboard",))
    learned(config, Walking, True, tmp_path, no_progress)
    # The picture is in a file of its own of the same second, which may be read before the other one:
    # their names end with the numbers of the writers of this process, 10 before 9.
    folder = str(tmp_path / "tensorboard")
    events = EventAccumulator(folder, purge_orphaned_data=False).Reload()
    logged = events.Scalars("return")
    assert [one.step for one in logged] == [3, 6, 9, 12]
    expected = [entry["return"] for entry in curve(tmp_path)]
    assert [one.value for one in logged] == pytest.approx(expected)
    assert events.Images("curve")[0].step == 12


@pytest.mark.parametrize(("config", "make"), [(PLAIN, Walking), (LIMITED, Costly)])
def test_a_killed_run_ends_with_the_weights_it_would_have_had(
    config: FromScratchConfig, make: type[Walking], tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    learned(config, make, True, whole, no_progress)
    run_until_killed(2, learned, config, make, True, killed)
    assert (killed / STATE).exists()
    learned(config, make, True, killed, no_progress)
    assert curve(killed) == curve(whole)
    expected, got = weights(whole), weights(killed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_environments_that_cannot_be_saved_resume_with_new_episodes(tmp_path: Path) -> None:
    run_until_killed(2, learned, PLAIN, Walking, False, tmp_path)
    before = curve(tmp_path)
    metrics = learned(PLAIN, Walking, False, tmp_path, no_progress)
    assert curve(tmp_path)[:2] == before
    assert metrics["steps"] == 12 * 8 * 3


def test_the_multiplier_rises_with_the_excess_of_the_mean_cost_of_ended_episodes(
    tmp_path: Path,
) -> None:
    """After one rollout of 8 steps: from .001 by .1 times the excess over the limit of 0.5."""
    options = {"rollouts": 1, "save_every": 1, "init_std": 2.0, "cost_limit": 0.5}
    config = replace(LIMITED, algorithm=replace(LIMITED.algorithm, **options))
    ended: list[float] = []

    class Watched(Costly):
        total = np.zeros(3)

        def step(self, action: np.ndarray) -> Step:
            result = super().step(action)
            self.total = self.total + result.info["cost"]
            over = result.terminated | result.truncated
            ended.extend(self.total[over].tolist())
            self.total = np.where(over, 0.0, self.total)
            return result

    learned(config, Watched, True, tmp_path, no_progress)
    assert len(ended) >= 3
    entry = curve(tmp_path)[0]
    assert entry["cost"] == pytest.approx(np.mean(ended))
    assert np.mean(ended) > 0.5
    assert entry["multiplier"] == pytest.approx(0.001 + 0.1 * (np.mean(ended) / 0.5 - 1.0))


def test_a_limit_on_a_cost_that_is_not_reported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"cost_limit is 1\.0, but these environments report no"):
        learned(LIMITED, Walking, True, tmp_path, no_progress)


def test_without_a_limit_the_cost_is_reported_and_changes_no_bit(tmp_path: Path) -> None:
    free, costly = tmp_path / "free", tmp_path / "costly"
    for folder in (free, costly):
        folder.mkdir()
    learned(PLAIN, Walking, True, free, no_progress)
    metrics = learned(PLAIN, Costly, True, costly, no_progress)
    assert metrics["cost"] > 0.0
    expected, got = weights(free), weights(costly)
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_rollouts_execute_clipped_actions_and_tell_costs_in_limits() -> None:
    state_env = StateEnv(Costly(2), ("place",), CountedSeeds(0), RewardShaping())
    env = StateRolloutEnv(state_env, discount=0.9, cost_limit=5.0)
    env.begin()
    # Places -1.27 and 1.01 of the seeds 0 and 1: away from 0, so both episodes take five steps.
    outwards = torch.tensor([[-3.0], [0.5]])
    for number in range(5):
        result = env.step(outwards)
        assert result.cost_N is not None
        assert result.cost_N.tolist() == pytest.approx([1.0 / 5.0, 0.5 / 5.0])
        assert result.truncated_N.tolist() == [number == 4] * 2
    assert env.take_costs() == pytest.approx([1.0, 0.5])
    assert env.take_costs() == []


@pytest.mark.parametrize("algorithm", [PLAIN.algorithm, LIMITED.algorithm])
def test_it_learns_to_walk_to_the_middle(algorithm: Any, tmp_path: Path) -> None:
    """From starts on both sides, whatever their distance; the first policy solves far fewer."""
    options = {"rollouts": 60, "rollout_steps": 20, "batch_size": 60, "save_every": 20}
    config = replace(PLAIN, algorithm=replace(algorithm, **options))
    learned(config, Costly, True, tmp_path, no_progress)
    assert solved_share(tmp_path) > 0.9
