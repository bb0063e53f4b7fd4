"""Learning from nothing to a saved policy: what it leaves, and what it goes on from after
SIGKILL."""

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
from policies.rl.from_scratch.config import (
    FastTd3Algorithm,
    FromScratchConfig,
    PqlAlgorithm,
)
from policies.rl.from_scratch.replay_files import REPLAY_FOLDER
from policies.rl.from_scratch.run import CURVE, STATE
from policies.rl.from_scratch.train import train_from_scratch
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.fast_td3 import FastTd3
from policies.rl.off_policy.fast_td3_config import (
    FastTd3Config,
    PerEnvNoiseConfig,
)
from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import Progress
from tests.policies.kill import run_until_killed
from tests.policies.rl.walking import Walking, solved_share

LAYERS = MlpSizes(hidden=(16,), activation="relu", layer_norm=False)
SMALL = FromScratchConfig(
    algorithm=FastTd3Algorithm(
        learner=FastTd3Config(
            critic=LAYERS,
            actor=LAYERS,
            atoms=21,
            low=-8.0,
            high=0.0,
            noise=PerEnvNoiseConfig(low=0.1, high=0.8),
        ),
        collections=40,
        batch_size=16,
        # For three environments: fewer than the steps made, so that the oldest are overwritten.
        capacity=25,
        discount=0.9,
        n_step=2,
        critic_per_collection=1.5,
        learning_starts=3,
        random_collections=2,
        save_every=5,
    ),
    fields=("place",),
    first_seed=0,
)


def with_options(**options: Any) -> FromScratchConfig:
    """`SMALL` with other options of its algorithm."""
    return replace(SMALL, algorithm=replace(SMALL.algorithm, **options))


def learned(
    config: FromScratchConfig, saves: bool, out: Path, progress: Progress
) -> dict[str, Any]:
    return train_from_scratch(config, "walking", partial(Walking, 3, saves), out, progress)


def quiet(done: int, total: int, note: str = "") -> None:
    """Nobody looks."""


def curve(out: Path) -> list[dict[str, float]]:
    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    return [
        {name: value for name, value in entry.items() if name != "cpu_seconds"} for entry in entries
    ]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    return out, learned(SMALL, True, out, quiet)


def test_updates_and_policy_updates_keep_their_ratios_to_the_steps_made(
    whole: tuple[Path, dict[str, Any]],
) -> None:
    _, metrics = whole
    # 37 collections after the start, 1.5 critic updates each; one policy update for two of them.
    assert (metrics["collections"], metrics["steps"], metrics["updates"]) == (40, 120, 55)
    assert metrics["policy_updates"] == 27


def test_what_comes_out_is_a_policy_like_any_other(whole: tuple[Path, dict[str, Any]]) -> None:
    out, _ = whole
    module, card = load_module(out)
    assert (card.task, list(card.observation), card.action.shape) == ("walking", ["place"], (1,))
    assert card.model.kind == "actor"
    policy = load_policy(out)
    obs = np.array([[[0.5]], [[-1.5]]])
    chunk = policy(obs, np.zeros((2, 1, 1)))
    again = policy(obs, np.ones((2, 1, 1)))
    np.testing.assert_array_equal(chunk, again)
    assert np.abs(chunk).max() <= 1.0
    # The running statistics travel with it.
    assert float(module.state_dict()["half_range"][0]) not in (0.0, 1.0)
    assert (out / "reinforce.png").stat().st_size > 1000
    assert not (out / STATE).exists()
    assert not (out / REPLAY_FOLDER).exists()


@pytest.mark.parametrize("call", [4, 8])
def test_a_killed_run_ends_with_the_weights_it_would_have_had(
    call: int, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run_until_killed(call, learned, SMALL, True, tmp_path)
    assert curve(tmp_path) == curve(whole[0])[:call]
    metrics = learned(SMALL, True, tmp_path, quiet)
    expected, got = load_module(whole[0])[0].state_dict(), load_module(tmp_path)[0].state_dict()
    assert expected.keys() == got.keys()
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert curve(tmp_path) == curve(whole[0])
    assert {name: metrics[name] for name in ("updates", "episodes")} == {
        name: whole[1][name] for name in ("updates", "episodes")
    }


def test_a_run_killed_between_steps_and_state_resumes_from_the_state_before(
    whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    """The newest steps are on the disk, the matching state is not, so they are collected again."""
    run_until_killed(3, learned, SMALL, True, tmp_path)
    older = (tmp_path / STATE).read_bytes()
    run_until_killed(1, learned, SMALL, True, tmp_path)
    assert (tmp_path / STATE).read_bytes() != older
    (tmp_path / STATE).write_bytes(older)
    learned(SMALL, True, tmp_path, quiet)
    expected, got = load_module(whole[0])[0].state_dict(), load_module(tmp_path)[0].state_dict()
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_another_seed_is_another_policy(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    learned(replace(SMALL, seed=1), True, tmp_path, quiet)
    expected, got = load_module(whole[0])[0].state_dict(), load_module(tmp_path)[0].state_dict()
    assert not torch.equal(expected["actor.0.weight"], got["actor.0.weight"])


def test_files_of_overwritten_steps_are_removed(tmp_path: Path) -> None:
    run_until_killed(7, learned, SMALL, True, tmp_path)
    # 35 collections of 3 steps, of which the newest 75 are kept: those before step 30 are gone.
    assert sorted(int(file.stem) for file in (tmp_path / REPLAY_FOLDER).glob("*.pt")) == [
        30,
        45,
        60,
        75,
        90,
    ]


def test_environments_that_cannot_be_saved_resume_with_new_episodes(tmp_path: Path) -> None:
    run_until_killed(4, learned, SMALL, False, tmp_path)
    before = curve(tmp_path)
    metrics = learned(SMALL, False, tmp_path, quiet)
    assert curve(tmp_path)[:4] == before
    assert metrics["steps"] == 120
    assert metrics["episodes"] > before[-1]["episodes"]


def test_other_options_start_a_new_run(tmp_path: Path) -> None:
    run_until_killed(2, learned, SMALL, True, tmp_path)
    other = with_options(collections=15)
    learned(other, True, tmp_path, quiet)
    assert [entry["collections"] for entry in curve(tmp_path)] == [5, 10, 15]


def test_missing_replay_files_are_reported(tmp_path: Path) -> None:
    run_until_killed(4, learned, SMALL, True, tmp_path)
    (tmp_path / REPLAY_FOLDER / "15.pt").unlink()
    with pytest.raises(HandoffError, match=r"15\.pt: is missing"):
        learned(SMALL, True, tmp_path, quiet)


def test_rewards_that_are_not_finite_stop_it_with_a_reason(tmp_path: Path) -> None:
    class Broken(Walking):
        def step(self, action):
            return super().step(action)._replace(reward=np.full(self.num_envs, np.nan))

    env = Broken(3)
    with pytest.raises(HandoffError, match="environment 0 is nan, expected a finite number"):
        train_from_scratch(SMALL, "walking", lambda: env, tmp_path, quiet)
    assert env.closed


def test_weights_that_are_not_finite_stop_it_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(self: FastTd3, minibatches: object) -> dict[str, torch.Tensor]:
        return {"critic_loss": torch.tensor(torch.inf)}

    monkeypatch.setattr(FastTd3, "update", lost)
    with pytest.raises(HandoffError, match=r"\['critic_loss'\] not finite after 5 collections"):
        learned(SMALL, True, tmp_path, quiet)


def test_it_learns_to_walk_to_the_middle(tmp_path: Path) -> None:
    """From starts on both sides, whatever their distance; random actions solve far fewer."""
    assert isinstance(SMALL.algorithm, FastTd3Algorithm)
    config = with_options(
        collections=400,
        capacity=400,
        batch_size=64,
        save_every=100,
        learner=replace(
            SMALL.algorithm.learner, learning_rate=3e-3, actor_learning_rate=3e-3, weight_decay=0.0
        ),
    )
    learned(config, True, tmp_path, quiet)
    assert solved_share(tmp_path) > 0.9


def test_released_options_of_both_methods() -> None:
    fast, parallel = FastTd3Algorithm(), PqlAlgorithm()
    assert (fast.critic_per_collection, fast.learner.critic_per_policy) == (2.0, 2.0)
    assert (parallel.critic_per_collection, parallel.learner.critic_per_policy) == (8.0, 2.0)
    assert (fast.learner.noise.spread, parallel.learner.noise.spread) == ("uniform", "linear")
    with pytest.raises(HandoffError, match=r"'algorithm.batch_size' is 0"):
        validate(FromScratchConfig, {"algorithm": {"kind": "fast_td3", "batch_size": 0}})
