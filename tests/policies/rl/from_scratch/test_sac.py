"""SAC and RLPD from scratch: exploration, demonstrations, and runs that are killed."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.load import load_module
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.from_scratch.config import (
    FromScratchConfig,
    RlpdAlgorithm,
    RlpdLearnerConfig,
    SacAlgorithm,
    SacLearnerConfig,
)
from policies.rl.from_scratch.demonstrations import demonstration_steps
from policies.rl.from_scratch.learners import exported_actor, make_learner
from policies.rl.from_scratch.train import train_from_scratch
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GaussianExplorationConfig, GsdeConfig
from policies.rl.replay.transitions import Sizes
from robots.config import validate
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress
from robots.spec import FieldSpec
from tests.policies.kill import run_until_killed
from tests.policies.rl.walking import Walking, solved_share

LAYERS = MlpSizes(hidden=(16,), activation="relu", layer_norm=False)
SHORT: dict[str, Any] = {
    "collections": 40,
    "batch_size": 16,
    "capacity": 100,
    "discount": 0.9,
    "learning_starts": 3,
    "save_every": 10,
}
SAC = SacAlgorithm(learner=SacLearnerConfig(critic=LAYERS, actor=LAYERS), **SHORT)
GSDE = replace(SAC, exploration=GsdeConfig(steps=4))
RLPD = RlpdAlgorithm(
    learner=RlpdLearnerConfig(critic=LAYERS, actor=LAYERS, critics=3),
    minibatches=2,
    demo_share=0.25,
    **SHORT,
)


def config_of(algorithm: Any) -> FromScratchConfig:
    return FromScratchConfig(algorithm=algorithm, fields=("place",), first_seed=0)


def learned(
    algorithm: Any, demos: Path | None, out: Path, progress: Progress = no_progress
) -> dict[str, Any]:
    make = partial(Walking, 3, True)
    return train_from_scratch(config_of(algorithm), "walking", make, out, progress, "", demos)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_module(folder)[0].state_dict()


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two episodes: 1.2 -> .7 -> .2, solved, and one that is cut off."""
    path = tmp_path_factory.mktemp("demos") / "store.zarr"
    number = FieldSpec(shape=())
    fields = {
        "place": FieldSpec(shape=(1,), unit="m"),
        "action": FieldSpec(shape=(1,)),
        "reward": number,
        "success": FieldSpec(shape=(), dtype="uint8"),
    }
    schema = EpisodeSchema(
        name="walking", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    )
    with EpisodeStore.create(path, schema) as store:
        for places, rewards, success in (
            ([1.2, 0.7], [-0.7, -0.2], [0, 1]),
            ([-1.0, -0.9, -0.8], [-0.9, -0.8, -0.7], [0, 0, 0]),
        ):
            frames = {
                "place": np.array(places)[:, None],
                "action": np.full((len(places), 1), -1.0 if success[-1] else 0.2),
                "reward": np.array(rewards),
                "success": np.array(success, np.uint8),
            }
            store.append({"policy": frames}, {"success": bool(success[-1])})
    return path


def test_one_update_per_collection_after_the_start(tmp_path: Path) -> None:
    metrics = learned(SAC, None, tmp_path)
    # 40 collections, of which the first 3 only collect.
    assert (metrics["steps"], metrics["updates"], metrics["policy_updates"]) == (120, 37, 37)
    twice = tmp_path / "twice"
    twice.mkdir()
    assert learned(replace(SAC, updates_per_collection=2.0), None, twice)["updates"] == 74


@pytest.mark.parametrize("algorithm", [SAC, GSDE])
def test_a_killed_run_ends_with_the_weights_it_would_have_had(
    algorithm: SacAlgorithm, tmp_path: Path
) -> None:
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    for folder in (whole, killed):
        folder.mkdir()
    learned(algorithm, None, whole)
    run_until_killed(2, learned, algorithm, None, killed)
    learned(algorithm, None, killed)
    expected, got = weights(whole), weights(killed)
    assert all(torch.equal(expected[name], got[name]) for name in expected)


def test_gsde_keeps_its_noise_for_some_steps_and_gaussian_noise_for_one() -> None:
    vector = np.full((2, 1), 0.5, np.float32)
    for algorithm, same in ((GSDE, [True, True, True, False]), (SAC, [False] * 4)):
        learner = make_learner(algorithm, Sizes(observation=1, action=1), 2, 0)
        acts = [learner.act(vector, np.random.default_rng(step)) for step in range(5)]
        assert [np.array_equal(a, b) for a, b in pairwise(acts)] == same


def test_the_exported_gsde_policy_is_the_learners_mean(tmp_path: Path) -> None:
    learner = make_learner(GSDE, Sizes(observation=1, action=1), 3, 0)
    learner.observe(np.array([[0.5], [1.5], [-2.0]]), np.ones(3, bool), np.random.default_rng(0))
    card, arrays = exported_actor(learner)
    x = (np.array([[0.7]]) - arrays["centre"]) / arrays["half_range"]
    hidden = np.maximum(x @ arrays["actor.0.weight"] + arrays["actor.0.bias"], 0.0)
    action = np.tanh(hidden @ arrays["actor.1.weight"] + arrays["actor.1.bias"])
    assert card.fixed_log_std is not None
    np.testing.assert_allclose(action, learner.act(np.array([[0.7]], np.float32)), atol=1e-6)


def test_demonstrations_become_steps_with_shaped_rewards(demos: Path) -> None:
    env = Walking(1)
    fields = {"place": env.observation_spec["place"]}
    shaping = RewardShaping(task=1.0, step=-1.0, success=5.0)
    first, second = demonstration_steps(demos, fields, env.action_spec, shaping)
    assert first.reward.tolist() == pytest.approx([-0.7 - 1.0, -0.2 - 1.0 + 5.0])
    assert first.terminated.tolist() == [False, True]
    assert first.truncated.tolist() == [False, False]
    assert first.next_observation[0].tolist() == first.observation[1].tolist()
    # The last step of the episode that was cut off has no next observation.
    assert second.reward.tolist() == pytest.approx([-0.9 - 1.0, -0.8 - 1.0])
    assert second.terminated.tolist() == [False, False]
    assert second.truncated.tolist() == [False, True]
    assert second.next_observation[:, 0].tolist() == pytest.approx([-0.9, -0.8])
    assert first.demo.all()


def test_rlpd_fills_the_share_of_every_minibatch_with_demonstrations(
    demos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from policies.rl.off_policy.sac import Sac

    shares: list[tuple[int, int]] = []
    update = Sac.update

    def watched(self: Sac, minibatches: Any) -> Any:
        shares.extend((int(batch.demo_B.sum()), batch.rows) for batch in minibatches)
        return update(self, minibatches)

    monkeypatch.setattr(Sac, "update", watched)
    metrics = learned(RLPD, demos, tmp_path)
    # Two minibatches of 16 rows per update, 4 of them demonstrated.
    assert shares == [(4, 16)] * (2 * metrics["updates"])
    assert metrics["updates"] == 37


def test_demonstrations_that_are_missing_or_not_read_are_refused(
    demos: Path, tmp_path: Path
) -> None:
    with pytest.raises(HandoffError, match="rlpd needs demonstrations"):
        learned(RLPD, None, tmp_path)
    with pytest.raises(HandoffError, match="sac reads no demonstrations"):
        learned(SAC, demos, tmp_path)


def test_demonstrations_of_another_task_are_refused(demos: Path) -> None:
    env = Walking(1)
    with pytest.raises(HandoffError, match=r"lack \['twice'\]"):
        list(
            demonstration_steps(
                demos, {"twice": FieldSpec(shape=(1,))}, env.action_spec, RewardShaping()
            )
        )
    with pytest.raises(HandoffError, match=r"'place': \(\(1,\), \(3,\)\)"):
        list(
            demonstration_steps(
                demos, {"place": FieldSpec(shape=(3,))}, env.action_spec, RewardShaping()
            )
        )


def test_a_key_that_the_algorithm_does_not_read_is_refused() -> None:
    for kind, key in (("sac", "cost_limit"), ("sac", "demo_share"), ("ppo", "cost_limit")):
        with pytest.raises(HandoffError, match=f"unknown key 'algorithm.{key}'"):
            validate(FromScratchConfig, {"algorithm": {"kind": kind, key: 0.5}})
    exploration = {"kind": "gsde", "log_std_min": -5.0}
    with pytest.raises(HandoffError, match=r"unknown key 'algorithm\.exploration\.log_std_min'"):
        validate(FromScratchConfig, {"algorithm": {"kind": "sac", "exploration": exploration}})
    with pytest.raises(HandoffError, match=r"'algorithm.cost_limit' is -1\.0"):
        validate(FromScratchConfig, {"algorithm": {"kind": "ppo_lagrangian", "cost_limit": -1.0}})


@pytest.mark.parametrize(
    "exploration", [GaussianExplorationConfig(), GsdeConfig(steps=3, log_std_init=-1.0)]
)
def test_sac_learns_to_walk_to_the_middle(exploration: Any, tmp_path: Path) -> None:
    rates = {"learning_rate": 3e-3, "actor_learning_rate": 3e-3, "temperature_learning_rate": 3e-3}
    algorithm = replace(
        SAC,
        learner=replace(SAC.learner, init_temperature=0.1, tau=0.05, **rates),
        exploration=exploration,
        collections=400,
        batch_size=64,
        save_every=100,
    )
    learned(algorithm, None, tmp_path)
    assert solved_share(tmp_path) > 0.9
