"""Predicted rates of placements: arithmetic on known times, and a real measurement."""

from __future__ import annotations

from itertools import count

import pytest

from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.collection.placement_profile import (
    PIECES,
    PlacementTimes,
    StepRate,
    measure,
    predict,
    recommended,
    step_rate,
)
from policies.rl.collection.split_chunk_env import SplitChunkEnv
from policies.rl.on_policy.token_actor import TokenActor
from robots.interfaces import no_progress
from sim.processes.vec_env import ProcessVecEnv
from tests.policies.rl.on_policy.test_token_actor import reading
from tests.toy_envs.word_line import WordLine


def pieces(**seconds: list[float]) -> PlacementTimes:
    found = PlacementTimes(100.0, 2)
    found.seconds |= seconds
    return found


def test_known_pieces_give_known_rates() -> None:
    found = pieces(
        infer=[0.2] * 4,
        simulate=[0.2] * 4,
        simulate_there=[0.22] * 4,
        simulate_part=[0.11] * 2,
        overlapped=[0.125] * 8,
        learn=[1.0],
    )
    rates = predict(found, 10)
    assert rates["collocated"].steps_per_s == pytest.approx(1000 / (10 * 0.4 + 1.0))
    assert rates["disaggregated"].steps_per_s == pytest.approx(1000 / (10 * 0.42 + 1.0))
    assert rates["hybrid"].steps_per_s == pytest.approx(1000 / (10 * 2 * 0.125 + 0.11 + 1.0))
    assert found.transfer == pytest.approx(0.02)
    for rate in rates.values():
        assert rate.low == pytest.approx(rate.steps_per_s) == rate.high


def test_the_interval_is_as_wide_as_the_measurements_scatter() -> None:
    calm = predict(pieces(infer=[0.1] * 20, simulate=[0.1] * 20), 10)["collocated"]
    rough = predict(pieces(infer=[0.05, 0.15] * 10, simulate=[0.1] * 20), 10)["collocated"]
    assert calm.high - calm.low < 1e-9
    assert rough.low < rough.steps_per_s < rough.high
    assert rough.high - rough.low > 0.05 * rough.steps_per_s


@pytest.mark.parametrize(
    ("collocated", "hybrid", "chosen"),
    [((95.0, 105.0), (96.0, 110.0), "collocated"), ((95.0, 99.0), (140.0, 160.0), "hybrid")],
)
def test_the_simplest_that_is_not_surely_slower_is_recommended(
    collocated: tuple[float, float], hybrid: tuple[float, float], chosen: str
) -> None:
    rates = {
        name: StepRate(sum(one) / 2, *one)
        for name, one in (("collocated", collocated), ("hybrid", hybrid))
    }
    assert recommended(rates) == chosen


def test_all_pieces_are_measured_and_the_environments_remain_usable() -> None:
    policy = reading()
    envs = [WordLine(8), ProcessVecEnv(WordLine, 8), ProcessVecEnv(WordLine, 8, 2)]
    try:
        asked = (policy, 3, count(), 0.99)
        here, there = ChunkEnv(envs[0], *asked), ChunkEnv(envs[1], *asked)
        parts = SplitChunkEnv(envs[2], *asked)  # type: ignore[arg-type]
        learned = []
        actor = TokenActor(policy, "token", None)
        found = measure(actor, here, there, parts, lambda: learned.append(1), 0.0, no_progress)
        assert learned == [1]
        assert {piece for piece in PIECES if found.seconds[piece]} == set(PIECES)
        assert min(min(times) for times in found.seconds.values()) > 0.0
        assert 0.0 < found.actions <= 24.0
        assert all(rate.low <= rate.steps_per_s <= rate.high for rate in predict(found, 5).values())
        parts.begin()
        assert parts.observation().shape == here.observation().shape
    finally:
        for env in envs:
            env.close()


def test_a_rate_is_that_of_the_mean_time_within_its_interval() -> None:
    rate = step_rate(100, [0.4, 0.5, 0.6])
    assert rate.steps_per_s == pytest.approx(200.0)
    assert 100.0 / 0.6 <= rate.low < 200.0 < rate.high <= 250.0
    assert step_rate(100, [0.5] * 3) == StepRate(200.0, 200.0, 200.0)
