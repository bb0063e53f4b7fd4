from typing import cast

import numpy as np
import pytest

from robots.episodes.curation.dataset_quality import QualityConfig, dataset_quality
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.spec import FieldSpec
from tests.robots.episodes.curation.teleoperation import MemoryStore


def store(states, actions, rewards, names=("reward",)) -> EpisodeStore:
    """Episodes with a state and an action of one entry each."""
    fields = {
        "state": FieldSpec(shape=(1,), role="observation"),
        "action": FieldSpec(shape=(1,), role="action"),
        **{name: FieldSpec(shape=(), role="outcome") for name in names},
    }
    episodes = [
        {
            "policy": {
                "state": np.array(state, np.float32)[:, None],
                "action": np.array(action, np.float32)[:, None],
                **{name: np.array(reward, np.float32) for name in names},
            }
        }
        for state, action, reward in zip(states, actions, rewards, strict=True)
    ]
    layout = EpisodeSchema(name="line", streams={"policy": StreamSpec(rate_hz=1.0, fields=fields)})
    return cast(EpisodeStore, MemoryStore(layout, episodes, [{} for _ in episodes]))


SMALL = store([[0, 1, 2], [0, 1, 1]], [[0, 1, 0], [0, 1, 1]], [[0, 0, 4], [1, 1, 0]])


def test_quality_is_the_mean_return_between_the_references():
    quality = dataset_quality(SMALL, QualityConfig(random_return=1.0, best_return=5.0))
    # Returns 4 and 2 have the mean 3, halfway from 1 to 5.
    assert (quality.mean_return, quality.quality, quality.relative) == (3.0, 0.5, False)


def test_without_references_quality_is_relative_to_the_episodes():
    quality = dataset_quality(SMALL)
    assert (quality.quality, quality.relative) == (0.5, True)
    assert any("set random_return=" in sentence for sentence in quality.advice)


def test_distinct_pairs_are_counted_in_bins():
    # Pairs (0, 0) twice, (1, 1) three times, (2, 0) once.
    quality = dataset_quality(SMALL)
    assert (quality.pairs, quality.exact, quality.steps, quality.entries) == (3, True, 6, 2)
    # With two bins, the states 1 and 2 of the range 0 to 2 share the upper one, not the actions.
    assert dataset_quality(SMALL, QualityConfig(bins=2)).pairs == 3
    same = store([[0.0, 1.0, 1.9, 2.0]], [[0, 1, 1, 1]], [[0, 0, 0, 1]])
    assert dataset_quality(same, QualityConfig(bins=2)).pairs == 2
    assert dataset_quality(same, QualityConfig(bins=100)).pairs == 4


def test_coverage_is_relative_to_a_reference_of_the_same_size():
    reference = store(
        [[0, 1, 2, 0, 1, 2], [0, 1, 2]], [[0, 0, 0, 1, 1, 1], [0, 0, 0]], [[0] * 6, [0] * 3]
    )
    quality = dataset_quality(SMALL, reference=reference)
    # The first six of its nine steps have six distinct pairs.
    assert (quality.steps, quality.reference_pairs, quality.coverage) == (6, 6, 0.5)
    assert dataset_quality(reference, reference=reference).coverage == 1.0


def test_sets_of_an_expert_a_mixture_and_chance_are_in_the_order_of_the_paper():
    rng = np.random.default_rng(0)

    def episodes(share_of_expert: float) -> EpisodeStore:
        states, actions, rewards = [], [], []
        for _ in range(40):
            expert = rng.uniform() < share_of_expert
            action = np.ones(25) if expert else rng.integers(-1, 2, 25)
            state = np.clip(np.cumsum(action), -20, 25)
            states.append(state)
            actions.append(action)
            rewards.append(np.diff(state, prepend=0.0))
        return store(states, actions, rewards)

    config = QualityConfig(random_return=0.0, best_return=25.0)
    chance = episodes(0.0)
    expert, mixed = (
        dataset_quality(episodes(share), config, reference=chance) for share in (1.0, 0.5)
    )
    lowest = dataset_quality(chance, config, reference=chance)
    assert expert.quality == pytest.approx(1.0)
    assert (expert.quality or 0.0) > (mixed.quality or 0.0) > (lowest.quality or 0.0)
    assert (expert.coverage or 0.0) < (mixed.coverage or 0.0)
    assert lowest.coverage == 1.0
    assert any("behaviour cloning" in sentence for sentence in expert.advice)
    assert not any("unconstrained" in sentence for sentence in expert.advice)
    assert any("unconstrained off-policy" in sentence for sentence in lowest.advice)


def test_many_pairs_are_estimated_within_two_per_cent():
    rng = np.random.default_rng(0)
    states, actions = rng.uniform(size=(2, 1, 40_000))
    one = store(states, actions, np.zeros((1, 40_000)))
    exact = dataset_quality(one, QualityConfig(bins=1000))
    estimated = dataset_quality(one, QualityConfig(bins=1000, exact_pairs=1000))
    assert (exact.exact, estimated.exact) == (True, False)
    assert estimated.pairs == pytest.approx(exact.pairs, rel=0.02)


def test_bins_that_are_too_fine_are_reported():
    rng = np.random.default_rng(0)
    fine = store(rng.uniform(size=(1, 500)), rng.uniform(size=(1, 500)), np.zeros((1, 500)))
    assert any("QualityConfig(bins=10)" in sentence for sentence in dataset_quality(fine).advice)
    assert not any(
        "QualityConfig(bins=10)" in sentence for sentence in dataset_quality(SMALL).advice
    )


def test_without_rewards_there_is_no_quality():
    quality = dataset_quality(store([[0, 1]], [[0, 1]], [[0, 0]], names=()))
    assert (quality.mean_return, quality.quality) == (None, None)
    assert quality.advice[0].startswith("There are no rewards")


def test_a_reward_must_be_chosen_among_several_and_must_exist():
    several = store([[0, 1]], [[0, 1]], [[0, 1]], names=("reward", "dense_reward"))
    with pytest.raises(HandoffError, match="choose one by reward="):
        dataset_quality(several)
    assert dataset_quality(several, QualityConfig(reward="dense_reward")).mean_return == 1.0
    with pytest.raises(HandoffError, match="'rewad' is no field of one number"):
        dataset_quality(several, QualityConfig(reward="rewad"))


def test_a_reference_of_another_task_is_refused():
    other = cast(MemoryStore, store([[0]], [[0]], [[0]]))
    fields = {"goal": FieldSpec(shape=(1,), role="observation")}
    layout = EpisodeSchema(name="other", streams={"policy": StreamSpec(rate_hz=1.0, fields=fields)})
    reference = cast(EpisodeStore, MemoryStore(layout, other.stored, other.about))
    with pytest.raises(HandoffError, match="Is it of another task"):
        dataset_quality(SMALL, reference=reference)


def test_coverage_is_no_advice_where_no_episode_is_better_than_chance():
    states, actions = [[0, 1, 2], [2, 1, 0]], [[0, 1, 0], [1, 0, 1]]
    config = QualityConfig(random_return=0.0, best_return=1.0)

    def advice(rewards) -> list[str]:
        made = store(states, actions, rewards)
        quality = dataset_quality(made, config, reference=made)
        assert quality.coverage == 1.0
        return [each for each in quality.advice if "% of the pairs" not in each]

    failed = advice([[0, 0, 0], [0, 0, 0]])
    assert len(failed) == 1
    assert failed[0].startswith("No episode is better than a random policy")
    once = advice([[0, 0, 0], [0, 0, 1]])
    assert any("unconstrained off-policy" in sentence for sentence in once)
    assert not any("random policy" in sentence for sentence in once)
