"""Weights of episodes: what a store states, and what is computed from groups, returns and by hand."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from robots.episodes.curation.dataset_quality import (
    QualityConfig,
    dataset_quality,
    normalised_returns,
)
from robots.episodes.curation.examination import ExamineConfig
from robots.episodes.curation.examine import examine
from robots.episodes.curation.weighting import (
    HandWeight,
    WeightsConfig,
    computed_weights,
    parse_hand_weights,
    shares,
    weight_groups,
)
from robots.episodes.curation.weights import MOST_WEIGHTS, episode_weight, store_weights
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.episodes.write_episodes import write_episodes
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.robots.episodes.curation.teleoperation import MemoryStore

SCHEMA = EpisodeSchema(
    name="line",
    streams={
        "policy": StreamSpec(
            rate_hz=1.0,
            fields={
                "state": FieldSpec(shape=(1,), role="observation"),
                "reward": FieldSpec(shape=(), role="outcome"),
            },
        )
    },
)


def store(lengths: Sequence[int], metadata: Sequence[dict[str, Any]] | None = None) -> EpisodeStore:
    """Episodes of these lengths with a reward of 1 in every step."""
    episodes = [
        {"policy": {"state": np.zeros((n, 1), np.float32), "reward": np.ones(n, np.float32)}}
        for n in lengths
    ]
    about = [dict(entry) for entry in metadata or [{}] * len(lengths)]
    return cast(EpisodeStore, MemoryStore(SCHEMA, episodes, about))


WORDS = store(
    (60, 20, 10, 10),
    [
        {"instruction": "fold", "success": True},
        {"instruction": "fold", "success": False},
        {"instruction": "lift", "success": True},
        {"success": True},
    ],
)


def totals(weights: np.ndarray) -> list[float]:
    """Shares of the groups fold, lift and none."""
    steps = weights * np.array([60, 20, 10, 10])
    parts = [steps[:2].sum(), steps[2], steps[3]]
    return (np.array(parts) / steps.sum()).tolist()


def test_groups_get_equal_totals_and_keep_the_ratios_within_them() -> None:
    weights = computed_weights(WORDS, WeightsConfig(balance="instruction"))
    assert totals(weights) == pytest.approx([1 / 3] * 3, abs=2e-3)
    assert weights[0] == weights[1]


@pytest.mark.parametrize(
    ("exponent", "expected"),
    [(0.0, [1, 1, 1]), (0.5, [80**0.5, 10**0.5, 10**0.5]), (1.0, [80, 10, 10])],
)
def test_totals_are_in_proportion_to_steps_to_the_exponent(
    exponent: float, expected: list[float]
) -> None:
    weights = computed_weights(WORDS, WeightsConfig(balance="instruction", exponent=exponent))
    assert totals(weights) == pytest.approx(np.array(expected) / sum(expected), abs=2e-3)


def test_the_exponent_1_leaves_all_weights_at_1() -> None:
    assert (
        computed_weights(WORDS, WeightsConfig(balance="instruction", exponent=1.0)).tolist()
        == [1] * 4
    )


def test_shares_of_stores_are_those_of_the_smoothed_sizes() -> None:
    # 16 and 4 to the power 0.5 are 4 and 2; nothing is drawn from an empty store.
    assert shares([16, 4, 0], 0.5).tolist() == pytest.approx([2 / 3, 1 / 3, 0.0])
    assert shares([16, 4, 0], 0.0).tolist() == [0.5, 0.5, 0.0]


def test_groups_are_balanced_after_weights_by_hand() -> None:
    failed = HandWeight(key="success", value=False, weight=0.0)
    weights = computed_weights(WORDS, WeightsConfig(balance="instruction", by_hand=(failed,)))
    assert weights[1] == 0
    assert totals(weights) == pytest.approx([1 / 3] * 3, abs=2e-3)


def test_weights_by_hand_are_multiplied() -> None:
    by_hand = parse_hand_weights(["success=true:2", "instruction=fo*:3", "instruction=fold:0.5"])
    weights = computed_weights(WORDS, WeightsConfig(by_hand=by_hand))
    assert weights.tolist() == [3.0, 1.5, 2.0, 2.0]


def test_a_number_is_no_truth_value() -> None:
    numbers = store((5, 5), [{"grade": 1}, {"grade": True}])
    for word, expected in (("grade=1:4", [4, 1]), ("grade=true:4", [1, 4])):
        config = WeightsConfig(by_hand=parse_hand_weights([word]))
        assert computed_weights(numbers, config).tolist() == expected


def test_new_weights_do_not_depend_on_those_that_a_store_states() -> None:
    stated = store((10, 30), [{"operator": "a", "weight": 9}, {"operator": "b"}])
    weights = computed_weights(stated, WeightsConfig(balance="operator"))
    assert weights.tolist() == [2.0, 0.667]


def test_a_value_with_a_colon_is_read_up_to_the_last_one() -> None:
    assert parse_hand_weights(["session=2026-11-26 10:30:0.5"]) == (
        HandWeight(key="session", value="2026-11-26 10:30", weight=0.5),
    )


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("operator=ada", "expected KEY=VALUE:WEIGHT"),
        ("ada:2", "expected KEY=VALUE:WEIGHT"),
        ("=ada:2", "expected KEY=VALUE"),
        ("operator=ada:", "the weight is ''"),
        ("operator=ada:-1", "the weight is '-1', expected a number of 0 to"),
        ("operator=ada:nan", "the weight is 'nan'"),
        ("operator=ada:inf", "the weight is 'inf'"),
    ],
)
def test_a_word_that_is_no_weight_is_refused(word: str, said: str) -> None:
    with pytest.raises(HandoffError, match=said.replace("(", r"\(")):
        parse_hand_weights([word])


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (WeightsConfig(balance="instuction"), "no episode states 'instuction'; did you mean"),
        (WeightsConfig(by_hand=parse_hand_weights(["x=1:2"])), "no episode states 'x'"),
        (
            WeightsConfig(by_hand=parse_hand_weights(["success=yes:2"])),
            "no episode has success=yes",
        ),
        (
            WeightsConfig(by_hand=parse_hand_weights(["success=*:0"])),
            "all 4 episodes have the weight 0",
        ),
    ],
)
def test_what_no_episode_states_is_refused(config: WeightsConfig, said: str) -> None:
    with pytest.raises(HandoffError, match=said.replace("*", r"\*")):
        computed_weights(WORDS, config)


def test_returns_become_weights_between_worst_and_best_episode() -> None:
    # Returns of 60, 20, 10 and 10.
    weights = computed_weights(WORDS, WeightsConfig(quality=QualityConfig()))
    assert weights.tolist() == [1.0, 0.2, 0.0, 0.0]


def test_returns_outside_the_references_are_cut() -> None:
    returns = normalised_returns(WORDS, QualityConfig(random_return=15.0, best_return=55.0))
    assert returns.tolist() == [1.0, 0.125, 0.0, 0.0]


def test_the_mean_normalised_return_is_the_trajectory_quality() -> None:
    config = QualityConfig(random_return=0.0, best_return=80.0)
    expected = dataset_quality(WORDS, config).quality
    assert normalised_returns(WORDS, config).mean() == pytest.approx(expected)


def test_equal_returns_are_no_weights() -> None:
    with pytest.raises(HandoffError, match="Are all rewards the same"):
        computed_weights(store((5, 5)), WeightsConfig(quality=QualityConfig()))


def test_many_different_weights_are_rounded_to_two_digits() -> None:
    lengths = range(1, 3001)
    few = computed_weights(store(lengths[:900]), WeightsConfig(quality=QualityConfig()))
    many = computed_weights(store(lengths), WeightsConfig(quality=QualityConfig()))
    # 1455 / 2999 and 455 / 899 to two and to three digits.
    assert (many[1455], few[455]) == (0.49, 0.506)
    assert len(np.unique(many)) <= MOST_WEIGHTS


def test_groups_of_a_table_have_their_shares_before_and_after() -> None:
    rows = weight_groups(["a", "b", "a"], np.array([10, 20, 10]), np.ones(3), np.array([0, 1, 2]))
    assert [(row.name, row.episodes, row.steps) for row in rows] == [("a", 2, 20), ("b", 1, 20)]
    assert [(row.before, row.after) for row in rows] == [(0.5, 0.5), (0.5, 0.5)]
    assert (
        weight_groups(["a", "b"], np.array([10, 30]), np.ones(2), np.array([3, 1]))[0].after == 0.5
    )


@pytest.mark.parametrize("value", [None, "1", True, -0.1, float("nan"), float("inf"), 10**400, []])
def test_what_is_no_number_of_0_or_more_is_no_weight(value: Any) -> None:
    assert episode_weight({"weight": value}) is None


def test_a_weight_that_is_not_stated_is_1() -> None:
    assert store_weights("s", store((3, 3, 3), [{}, {"weight": 0}, {"weight": 2.5}])).tolist() == [
        1,
        0,
        2.5,
    ]


def test_a_weight_that_was_edited_to_nan_is_refused_with_its_episode(tmp_path: Path) -> None:
    arrays = [{"action": np.zeros((4, 1), np.float32)}] * 2
    write_episodes(
        tmp_path / "s.zarr", arrays, task="t", rate_hz=1.0, metadata=[{"weight": 12345.0}] * 2
    )
    index = tmp_path / "s.zarr" / "index.json"
    index.write_text(index.read_text().replace("12345.0", "NaN", 1))
    with pytest.raises(HandoffError, match="towel: weight of episode 0 is nan, expected a number"):
        store_weights("towel", EpisodeStore.open(tmp_path / "s.zarr"))


def test_too_many_different_weights_are_refused() -> None:
    count = MOST_WEIGHTS + 1
    many = store([1] * count, [{"weight": 1 + number} for number in range(count)])
    with pytest.raises(HandoffError, match=f"s: {count} different weights of episodes, at most"):
        store_weights("s", many)


def faults(metadata: Sequence[dict[str, Any]]) -> list[tuple[str, tuple[int, ...], str]]:
    """What the doctor finds in the labels of twelve episodes."""
    entries = [*metadata, *[{}] * (12 - len(metadata))]
    config = ExamineConfig()
    found = examine(store(range(20, 32), entries), config, no_progress).findings
    return [
        (each.severity, each.episodes, each.sentence) for each in found if each.check == "labels"
    ]


def test_the_doctor_names_the_episodes_whose_weight_is_none() -> None:
    assert faults([{"weight": 2}, {"weight": 0}]) == []
    ((severity, episodes, sentence),) = faults([{"weight": 1}, {"weight": "high"}, {"weight": -1}])
    assert (severity, episodes) == ("error", (1, 2))
    assert sentence.startswith("The weight of episodes 1 and 2 is no number of 0 to 1e+12.")


def test_the_doctor_finds_that_nothing_would_be_drawn() -> None:
    ((severity, _, sentence),) = faults([{"weight": 0}] * 12)
    assert severity == "error"
    assert "all 12 episodes have the weight 0" in sentence
