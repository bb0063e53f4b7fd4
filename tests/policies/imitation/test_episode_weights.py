"""Training draws the windows of an episode in proportion to the weight that its metadata state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from policies.data.frames import FrameStorage
from policies.imitation.config import MixedStore, PretrainConfig
from policies.imitation.objective import ImitationBatches, TrainingSetup, prepare
from policies.imitation.pretrain import pretrain
from policies.training.config import TrainingConfig
from robots.episodes.curation.edit import Edits, write_edited
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.conftest import TINY

CONFIG = PretrainConfig(
    policy=TINY,
    training=TrainingConfig(
        steps=6, learning_rate=1e-3, batch_size=8, log_every=2, precision="fp32"
    ),
    validation_fraction=0.2,
)
CPU = torch.device("cpu")
EPISODES = 12


def prepared(demos: Path, config: PretrainConfig = CONFIG) -> TrainingSetup:
    return prepare(config, demos, FrameStorage(), CPU)


def weighted(demos: Path, out: Path, weights: Sequence[Any]) -> Path:
    """A copy of the twelve demonstrations whose episodes state these weights, written by hand: an
    edit refuses what is no weight."""
    shutil.copytree(demos / "store.zarr", out / "store.zarr")
    file = out / "store.zarr" / "index.json"
    index = json.loads(file.read_text())
    episodes = [entry for segment in index["segments"] for entry in segment["episodes"]]
    for episode, weight in zip(episodes, weights, strict=True):
        episode["metadata"]["weight"] = weight
    file.write_text(json.dumps(index))
    return out


def same_training(one: TrainingSetup, other: TrainingSetup) -> bool:
    """Whether policy, windows and batches of two trainings are the same, bit for bit."""
    batches = [ImitationBatches(each.split.train, each.mixture, 8, 0) for each in (one, other)]
    first, second = one.module.state_dict(), other.module.state_dict()
    return all(torch.equal(first[name], second[name]) for name in first) and all(
        torch.equal(getattr(batches[0](step), part), getattr(batches[1](step), part))
        for step in range(40)
        for part in ("chunk_BHA", "padded_BH")
    )


@pytest.mark.parametrize("weight", [1, 1.0, 0.25, 3e5])
def test_equal_weights_train_as_none(demos: Path, tmp_path: Path, weight: float) -> None:
    plain, same = prepared(demos), prepared(weighted(demos, tmp_path / "w", [weight] * EPISODES))
    assert same_training(plain, same)
    assert plain.mixture == same.mixture
    assert plain.split.train.digest() == same.split.train.digest()


def test_an_episode_of_weight_0_is_treated_as_if_it_were_deleted(
    demos: Path, tmp_path: Path
) -> None:
    kept = weighted(demos, tmp_path / "kept", [1, 0, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0])
    (tmp_path / "less").mkdir()
    edits = Edits(delete=(1, 5, 11))
    write_edited(demos / "store.zarr", tmp_path / "less" / "store.zarr", edits)
    one, other = prepared(kept), prepared(tmp_path / "less")
    assert same_training(one, other)
    assert len(one.split.held_out) == len(other.split.held_out)
    assert torch.equal(one.split.held_out.chunk_NHA, other.split.held_out.chunk_NHA)


def test_weights_change_the_draws_and_neither_normalisation_nor_held_out_episodes(
    demos: Path, tmp_path: Path
) -> None:
    plain = prepared(demos)
    setup = prepared(weighted(demos, tmp_path / "w", [2, 1] * (EPISODES // 2)))
    assert torch.equal(plain.split.train.chunk_NHA, setup.split.train.chunk_NHA)
    assert torch.equal(plain.split.held_out.chunk_NHA, setup.split.held_out.chunk_NHA)
    weight_N = setup.split.train.weight_N
    assert weight_N is not None
    drawn = np.concatenate([setup.mixture.batch(50, step, 0) for step in range(200)])
    counts = np.bincount(drawn, minlength=len(weight_N))
    ratio = counts[weight_N == 2].mean() / counts[weight_N == 1].mean()
    assert ratio == pytest.approx(2.0, rel=0.01)


def test_windows_of_an_episode_have_its_weight(demos: Path, tmp_path: Path) -> None:
    config = replace(CONFIG, validation_fraction=0.0)
    weights = [1 + number for number in range(EPISODES)]
    setup = prepared(weighted(demos, tmp_path / "w", weights), config)
    # Episodes of 10 to 21 steps have one window less than steps.
    expected = np.repeat(weights, np.arange(10, 22) - 1)
    assert np.array_equal(np.asarray(setup.split.train.weight_N), expected)


def test_a_checkpoint_is_that_of_its_weights(demos: Path, tmp_path: Path) -> None:
    digests = {
        prepared(weighted(demos, tmp_path / f"w{heavy}", [heavy] + [1] * 11)).split.train.digest()
        for heavy in (1, 2, 3)
    }
    assert len(digests) == 3


def test_stores_of_a_mixture_keep_their_shares(demos: Path, tmp_path: Path) -> None:
    other = weighted(demos, tmp_path / "other", [5, 0, 1] * (EPISODES // 3))
    config = replace(CONFIG, mixture=(MixedStore(path=str(other), weight=3.0),))
    setup = prepared(demos, config)
    first = setup.mixture.counts[0]
    drawn = np.concatenate([setup.mixture.batch(16, step, 0) for step in range(10)])
    assert [(drawn < first).sum(), (drawn >= first).sum()] == [40, 120]
    assert setup.mixture.groups[0] is None


@pytest.mark.parametrize("weight", [-1, "2", True, [1]])
def test_what_is_no_weight_is_refused_with_store_and_episode(
    demos: Path, tmp_path: Path, weight: Any
) -> None:
    path = weighted(demos, tmp_path / "w", [1, 1, weight, *[1] * 9])
    with pytest.raises(HandoffError) as refused:
        prepared(path)
    assert f"{path}: weight of episode 2 is {weight!r}, expected a number" in str(refused.value)


def test_a_weight_of_a_store_of_the_mixture_is_refused_with_its_name(
    demos: Path, tmp_path: Path
) -> None:
    path = weighted(demos, tmp_path / "other", [1, -2, *[1] * 10])
    with pytest.raises(HandoffError, match=f"{path}: weight of episode 1 is -2"):
        prepared(demos, replace(CONFIG, mixture=(MixedStore(path=str(path)),)))


def test_a_store_without_a_weight_above_0_is_refused(demos: Path, tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match="all 12 episodes have the weight 0"):
        prepared(weighted(demos, tmp_path / "w", [0] * EPISODES))


def test_a_policy_is_trained_on_weighted_episodes(demos: Path, tmp_path: Path) -> None:
    path = weighted(demos, tmp_path / "w", [2, 0, 1] * (EPISODES // 3))
    (tmp_path / "out").mkdir()
    metrics = pretrain(CONFIG, path, tmp_path / "out", no_progress)
    assert np.isfinite(metrics["loss"])
    assert metrics["windows_per_store"] == {"demos": metrics["windows"]}
