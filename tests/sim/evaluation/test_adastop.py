from typing import Literal

import numpy as np
import pytest

import sim.evaluation.adastop
from robots.errors import HandoffError
from sim.evaluation.adastop import (
    AdaStop,
    AdaStopConfig,
    adastop,
    boundary,
    max_over_pairs,
    null_differences,
)


def normal_agents(
    runs: int, shift: float, agents: int = 2, permute: Literal["all", "pairs"] = "all"
):
    """Share of `runs` comparisons, n=5, K=5, B=1000, in which any pair was decided, and the runs
    per agent.

    Agent i scores N(i shift, 1).
    """
    random = np.random.default_rng(0)
    names = [f"agent-{i}" for i in range(agents)]
    decided = used = 0
    for _ in range(runs):
        config = AdaStopConfig(permutations=1000, permute=permute, seed=int(random.integers(2**31)))

        def run_stage(stage, running):
            return {name: random.normal(shift * names.index(name), 1.0, 5) for name in running}

        test, decisions = adastop(names, run_stage, config)
        decided += bool(decisions)
        used += 5 * test.stage
    return decided / runs, used / runs


def signed_maximum(differences_BP):
    return differences_BP.max(axis=1)


def test_error_on_300_nulls_stays_below_8_percent_and_the_signed_null_exceeds_it(monkeypatch):
    assert normal_agents(300, shift=0.0)[0] <= 0.08
    # The negative control: the null of the released code errs twice as often.
    monkeypatch.setattr(sim.evaluation.adastop, "max_over_pairs", signed_maximum)
    assert normal_agents(300, shift=0.0)[0] > 0.08


def test_pairs_of_equal_seeds_keep_the_error_too():
    assert normal_agents(300, shift=0.0, permute="pairs")[0] <= 0.08


@pytest.mark.slow
def test_error_on_3000_nulls_is_5_percent():
    # Binomial 95 % band around .05 for 3000 runs: .042 to .058.
    assert 0.035 <= normal_agents(3000, shift=0.0)[0] <= 0.06
    assert normal_agents(3000, shift=0.0, agents=3)[0] <= 0.065


def test_two_standard_deviations_are_found_before_all_is_run():
    power, used = normal_agents(60, shift=2.0)
    assert power >= 0.98
    assert used < 12


def test_null_of_two_against_two_scores_takes_its_three_values():
    # Of the six ways to choose two of {1, 1, 0, 0} one sums to 2, four to 1, one to 0: differences
    # 2, 0, -2.
    values = null_differences(
        np.array([1.0, 1.0]), np.zeros(2), "all", 6000, np.random.default_rng(0)
    )
    sums, counts = np.unique(values, return_counts=True)
    assert sums.tolist() == [-2.0, 0.0, 2.0]
    assert (counts / 6000).tolist() == pytest.approx([1 / 6, 4 / 6, 1 / 6], abs=0.02)


def test_null_of_pairs_turns_the_signs_of_the_differences():
    # Differences 1 and 2 with any signs: -3, -1, 1, 3, each in a quarter of the draws.
    values = null_differences(
        np.array([1.0, 4.0]), np.array([0.0, 2.0]), "pairs", 4000, np.random.default_rng(0)
    )
    sums, counts = np.unique(values, return_counts=True)
    assert sums.tolist() == [-3.0, -1.0, 1.0, 3.0]
    assert (counts / 4000).tolist() == pytest.approx([0.25] * 4, abs=0.03)


def test_null_is_drawn_whole_when_memory_bounds_a_batch(monkeypatch):
    monkeypatch.setattr(sim.evaluation.adastop, "BATCH", 40)
    assert null_differences(np.ones(5), np.zeros(5), "all", 11, np.random.default_rng(0)).shape == (
        11,
    )


def test_largest_difference_is_absolute():
    assert max_over_pairs(np.array([[1.0, -3.0], [2.0, 0.5]])).tolist() == [3.0, 2.0]


def test_boundary_leaves_fewer_draws_beyond_than_may_be_spent():
    values = np.arange(1.0, 101.0)
    # 5 % of 100 draws: fewer than 5 beyond, so 97..100 are.
    assert boundary(values, spent=0, draws=100, level=0.05) == 96.0
    # Two were spent before and are no longer among the values: two more.
    assert boundary(values[:98], spent=2, draws=100, level=0.05) == 96.0
    assert boundary(values, spent=0, draws=100, level=0.01) == 100.0
    assert boundary(values, spent=5, draws=100, level=0.05) == np.inf


def test_four_scores_can_decide_nothing_at_5_percent():
    # A third of the permutations of two against two scores is as extreme as the extremest.
    test = AdaStop(["a", "b"], AdaStopConfig(n=2, stages=1))
    assert test.add({"a": [9.0, 9.0], "b": [0.0, 0.0]}) == ()
    assert test.over
    assert test.undecided == (("a", "b"),)


def test_agents_that_score_the_same_never_differ_significantly():
    _, decisions = adastop(["a", "b"], lambda stage, running: dict.fromkeys(running, [0.3] * 5))
    assert decisions == ()


def test_plain_difference_is_decided_at_once_with_its_size():
    # 2 of 252 permutations of five against five scores are as extreme: under 1 %, the level of the
    # first of 5 stages.
    test = AdaStop(["a", "b"])
    (decision,) = test.add({"a": [0, 1, 2, 3, 4], "b": [10, 11, 12, 13, 14]})
    assert (decision.better, decision.worse, decision.stage) == ("b", "a", 0)
    assert decision.difference == pytest.approx(10.0)
    assert test.over
    assert test.running == ()


def test_decided_agent_leaves_and_the_others_go_on():
    random = np.random.default_rng(1)
    stages = []

    def run_stage(stage, running):
        stages.append(running)
        return {name: random.normal(50.0 if name == "c" else 0.0, 1.0, 5) for name in running}

    test, decisions = adastop(["a", "b", "c"], run_stage)
    assert {(d.better, d.worse) for d in decisions} == {("c", "a"), ("c", "b")}
    assert test.undecided == (("a", "b"),)
    assert stages[-1] == ("a", "b")
    assert len(stages) == 5


def test_same_seed_decides_the_same():
    scores = [{"a": np.sin(np.arange(5) + k), "b": 1 + np.cos(np.arange(5) + k)} for k in range(5)]
    outcomes = [adastop(["a", "b"], lambda stage, running: scores[stage])[1] for _ in range(2)]
    assert outcomes[0] == outcomes[1] != ()


def test_scores_must_be_complete_and_finite():
    test = AdaStop(["a", "b"])
    with pytest.raises(HandoffError, match="scores of b are"):
        test.add({"a": [0.0] * 5})
    with pytest.raises(HandoffError, match="5 finite numbers"):
        test.add({"a": [0.0] * 5, "b": [np.nan] * 5})


def test_nothing_can_be_added_after_the_end():
    test = AdaStop(["a", "b"], AdaStopConfig(stages=1))
    test.add({"a": [0.0] * 5, "b": [0.0] * 5})
    with pytest.raises(HandoffError, match="over after stage 1"):
        test.add({"a": [0.0] * 5, "b": [0.0] * 5})


@pytest.mark.parametrize("agents", [["a"], ["a", "a"]])
def test_two_different_agents_are_needed(agents):
    with pytest.raises(HandoffError, match="two distinct names"):
        AdaStop(agents)
