"""Stream AC(lambda) from scratch: what a run leaves, what a killed one goes on from, and what is
refused."""

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
from policies.rl.collection.seeds import CountedSeeds
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import FromScratchConfig, StreamAcAlgorithm
from policies.rl.from_scratch.run import CURVE, STATE, ScratchRun
from policies.rl.from_scratch.streaming import StreamRun
from policies.rl.from_scratch.train import train_from_scratch
from policies.rl.streaming.stream_ac import Learned, StreamAc
from robots.config import validate
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from tests.policies.kill import run_until_killed
from tests.policies.rl.walking import LIMIT, Walking, solved_share

ALGORITHM = StreamAcAlgorithm(hidden=(16,), steps=120, discount=0.9, save_every=20)
SMALL = FromScratchConfig(algorithm=ALGORITHM, fields=("place",), first_seed=0)


def learned(
    config: FromScratchConfig, saves: bool, out: Path, progress: Progress
) -> dict[str, Any]:
    return train_from_scratch(config, "walking", partial(Walking, 1, saves), out, progress)


def curve(out: Path) -> list[dict[str, float]]:
    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    return [
        {name: value for name, value in entry.items() if name != "cpu_seconds"} for entry in entries
    ]


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_module(folder)[0].state_dict()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    out = tmp_path_factory.mktemp("whole")
    return out, learned(SMALL, True, out, no_progress)


def test_every_step_is_learned_from_once(whole: tuple[Path, dict[str, Any]]) -> None:
    out, metrics = whole
    assert (metrics["steps"], metrics["updates"]) == (120, 120)
    assert metrics["episodes"] >= 120 // LIMIT
    assert [entry["steps"] for entry in curve(out)] == [20, 40, 60, 80, 100, 120]
    assert all(0.0 < entry["critic_step"] <= 1.0 for entry in curve(out))
    # Nothing but policy and curve is left: no replay, no state.
    assert not (out / STATE).exists()
    assert (out / "reinforce.png").stat().st_size > 1000


def test_the_saved_policy_is_the_learners_mean(tmp_path: Path) -> None:
    env, seeds = Walking(1), CountedSeeds(0)
    state_env = StateEnv(env, ("place",), seeds, SMALL.reward)
    run = StreamRun(ALGORITHM, ScratchRun(SMALL, state_env, seeds, tmp_path, step="steps"))
    run.resume()
    run.learn(no_progress)
    run.run.save_policy(run.actor(), "walking", "")
    places = np.linspace(-2.0, 2.0, 9)[:, None]
    chunk = load_policy(tmp_path)(places[:, None], np.zeros((9, 1, 1)))
    np.testing.assert_allclose(chunk[:, 0], run.learner.act(places), atol=1e-5)
    assert len(np.unique(chunk)) > 1


@pytest.mark.parametrize("call", [2, 5])
def test_a_killed_run_ends_with_the_weights_it_would_have_had(
    call: int, whole: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    run_until_killed(call, learned, SMALL, True, tmp_path)
    assert curve(tmp_path) == curve(whole[0])[:call]
    metrics = learned(SMALL, True, tmp_path, no_progress)
    expected, got = weights(whole[0]), weights(tmp_path)
    assert all(torch.equal(expected[name], got[name]) for name in expected)
    assert curve(tmp_path) == curve(whole[0])
    assert metrics["episodes"] == whole[1]["episodes"]


def test_a_state_within_an_episode_holds_its_traces(tmp_path: Path) -> None:
    """Saved after the first step of an episode, which the start does not end."""
    config = replace(SMALL, algorithm=replace(ALGORITHM, steps=40, save_every=1))
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    learned(config, True, whole, no_progress)
    run_until_killed(1, learned, config, True, killed)
    state = torch.load(killed / STATE, weights_only=False)
    assert state["learner"]["actor"]["traces"].any()
    learned(config, True, killed, no_progress)
    expected, got = weights(whole), weights(killed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_another_seed_is_another_policy(whole: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    learned(replace(SMALL, seed=1), True, tmp_path, no_progress)
    assert not torch.equal(weights(whole[0])["actor.0.weight"], weights(tmp_path)["actor.0.weight"])


def test_an_environment_that_cannot_be_saved_resumes_with_a_new_episode(tmp_path: Path) -> None:
    run_until_killed(3, learned, SMALL, False, tmp_path)
    before = curve(tmp_path)
    metrics = learned(SMALL, False, tmp_path, no_progress)
    assert curve(tmp_path)[:3] == before
    assert (metrics["steps"], metrics["updates"]) == (120, 120)


def test_the_environment_gets_actions_within_their_bounds() -> None:
    seen: list[np.ndarray] = []

    class Watched(Walking):
        def step(self, action: np.ndarray) -> Any:
            seen.append(action.copy())
            return super().step(action)

    env = Watched(1)
    seeds = CountedSeeds(0)
    state_env = StateEnv(env, ("place",), seeds, SMALL.reward)
    run = StreamRun(ALGORITHM, ScratchRun(SMALL, state_env, seeds, Path(), step="steps"))
    # A mean far beyond the bound.
    run.learner.actor.biases[-1][0] = 5.0
    state_env.begin()
    run.learner.begin(state_env.observation[0])
    decision = run.learner.decide(np.random.default_rng(0))
    run._step()
    assert float(decision.action_A) > 1.0
    assert seen[0].tolist() == [[1.0]]


def test_several_environments_are_refused(tmp_path: Path) -> None:
    env = Walking(3)
    with pytest.raises(
        HandoffError, match="num_envs is 3, but the algorithm stream_ac learns from"
    ):
        train_from_scratch(SMALL, "walking", lambda: env, tmp_path, no_progress)
    assert env.closed


def test_figures_that_are_not_finite_stop_it_with_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learn = StreamAc.learn

    def lost(self: StreamAc, *arguments: Any, **options: Any) -> Learned:
        return learn(self, *arguments, **options)._replace(td_error=float("inf"))

    monkeypatch.setattr(StreamAc, "learn", lost)
    with pytest.raises(HandoffError, match=r"\['td_error'\] not finite after 20 steps"):
        learned(SMALL, True, tmp_path, no_progress)


def test_released_options() -> None:
    released = StreamAcAlgorithm()
    assert (released.learning_rate, released.trace_lambda, released.discount) == (1.0, 0.8, 0.99)
    assert (released.actor_kappa, released.critic_kappa) == (3.0, 2.0)
    assert (released.sparsity, released.entropy, released.hidden) == (0.9, 0.01, (128, 128))
    assert not released.bootstrap_time_limits


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("actor_kappa", 0.0),
        ("sparsity", 1.0),
        ("trace_lambda", 1.1),
        ("entropy", -0.1),
        ("learning_rate", 2.0),
        ("steps", 0),
    ],
)
def test_options_out_of_range_are_refused(option: str, value: float) -> None:
    options = {"algorithm": {"kind": "stream_ac", option: value}}
    with pytest.raises(HandoffError, match=rf"'algorithm.{option}' is {value}"):
        validate(FromScratchConfig, options)


def test_it_learns_to_walk_to_the_middle(tmp_path: Path) -> None:
    """From starts on both sides, whatever their distance; random actions solve far fewer."""
    config = replace(SMALL, algorithm=replace(ALGORITHM, hidden=(32,), steps=6000, save_every=3000))
    learned(config, True, tmp_path, no_progress)
    assert solved_share(tmp_path) > 0.9
