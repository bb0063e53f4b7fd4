"""The search for the lowest score: a planted place, noise, and scores that say nothing."""

from __future__ import annotations

import numpy as np
import pytest

from sim.environment_families.search import (
    Scores,
    SearchConfig,
    count_candidates,
    search_worst,
)
from sim.sensitivity.design import DesignConfig, draw_design
from sim.sensitivity.factors import ArmFactor

CONFIG = SearchConfig(corners=False, rounds=5, parents=4, children=4)
FACTORS = {name: ArmFactor(what="payload", low=0.0, high=1.0) for name in ("a", "b", "c")}


def design(points: int = 16) -> np.ndarray:
    return draw_design(FACTORS, DesignConfig(points=points))[:, :-1]


def planted(at: tuple[float, ...], seed: int = 0) -> Scores:
    """Episodes that succeed more often the farther the parameters are from a place; the same
    episodes, so the same luck, for every candidate."""
    luck = np.random.default_rng(seed).random(100)

    def scores(places: np.ndarray, number: int) -> np.ndarray:
        chance = np.linalg.norm(places - np.array(at), axis=1) / np.sqrt(len(at))
        return (luck < chance[:, None]).astype(float)

    return scores


def ignoring(scores: Scores) -> Scores:
    """The same scores, given to other candidates of the round: the control."""
    rng = np.random.default_rng(1)

    def shuffled(places: np.ndarray, number: int) -> np.ndarray:
        return rng.permutation(scores(places, number))

    return shuffled


@pytest.mark.parametrize("at", [(1.0, 0.0, 1.0), (0.3, 0.7, 0.5)], ids=("corner", "inside"))
def test_the_planted_worst_place_is_found_and_not_by_a_search_that_ignores_outcomes(
    at: tuple[float, ...],
) -> None:
    def distance(scores: Scores) -> float:
        return float(np.linalg.norm(search_worst(design(), CONFIG, scores)[0].places - at))

    found = [distance(planted(at, seed)) for seed in range(5)]
    control = [distance(ignoring(planted(at, seed))) for seed in range(5)]
    assert max(found) < 0.25
    assert np.mean(control) > 2.0 * np.mean(found)


def test_a_worst_corner_is_tried_at_once_where_corners_are_candidates() -> None:
    config = SearchConfig(rounds=0)
    best = search_worst(design(2), config, planted((1.0, 0.0, 1.0)))[0]
    assert (best.places.tolist(), best.round, best.mean) == ([1.0, 0.0, 1.0], 0, 0.0)


def test_candidates_stay_within_the_bounds_and_are_as_many_as_announced() -> None:
    config = SearchConfig(rounds=3, parents=2, children=3, spread=1.0)
    asked: list[int] = []

    def scores(places: np.ndarray, number: int) -> np.ndarray:
        asked.append(len(places))
        return planted((0.0, 0.0, 0.0))(places, number)

    tried = search_worst(design(), config, scores)
    assert asked == [8 + 16, 6, 6, 6]
    assert len(tried) == count_candidates(config, 3) == 42
    places = np.array([each.places for each in tried])
    assert places.min() == 0.0
    assert places.max() == 1.0
    means = [each.mean for each in tried]
    assert means == sorted(means)


def test_the_seed_decides_the_children_alone() -> None:
    first = search_worst(design(), CONFIG, planted((0.3, 0.7, 0.5)))
    again = search_worst(design(), CONFIG, planted((0.3, 0.7, 0.5)))
    other = search_worst(
        design(), SearchConfig(corners=False, rounds=5, seed=1), planted((0.3, 0.7, 0.5))
    )
    assert [each.places.tolist() for each in first] == [each.places.tolist() for each in again]
    begun = [
        sorted(each.places.tolist() for each in run if each.round == 0) for run in (first, other)
    ]
    assert begun[0] == begun[1]
    later = [[each.places.tolist() for each in run if each.round == 1] for run in (first, other)]
    assert later[0] != later[1]
