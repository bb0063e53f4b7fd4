"""Groups of evaluations: their names, intervals over trainings and episodes, and what is decided."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robots.errors import HandoffError
from sim.evaluation.comparison import Result
from sim.evaluation.groups import (
    CompareConfig,
    compare_groups,
    crossed_bootstrap,
    group_name,
    holm,
)
from sim.evaluation.groups_report import group_tables, to_figures, write_comparison
from sim.evaluation.intervals import bootstrap_mean
from sim.evaluation.protocol import Protocol, digest, protocol_statement

PROTOCOL = Protocol(name="p", engine="gym", task="t", episodes=20, max_steps=9)
FAST = CompareConfig(permutations=2000, resamples=500)


def result(name: str, mean: float, protocol: Protocol = PROTOCOL, seed: int = 0) -> Result:
    """An evaluation whose scores spread by 0.1 about `mean`."""
    scores = mean + 0.1 * np.random.default_rng(seed).standard_normal(protocol.episodes)
    statement = protocol_statement(protocol)
    episodes = [{"score": float(s), "success": bool(s > 0.5)} for s in scores]
    table = {
        "protocol": statement,
        "protocol_digest": digest(statement),
        "episodes": episodes,
        "confidence": 0.95,
    }
    return Result(name, Path("/nowhere") / name, table)


def runs(kind: str, means: tuple[float, ...]) -> list[Result]:
    return [
        result(f"scores@policy.kind={kind},seed={i}", mean, seed=i) for i, mean in enumerate(means)
    ]


@pytest.mark.parametrize(
    ("name", "group"),
    [
        ("scores", "scores"),
        ("scores@seed=3", "scores"),
        ("scores@policy.network.kind=mlp,seed=0", "scores@policy.network.kind=mlp"),
        ("scores@training.seed=0,policy.kind=flow", "scores@policy.kind=flow"),
        ("scores@teacher@seed=1", "scores@teacher"),
        ("scores@reseed=1", "scores@reseed=1"),
    ],
)
def test_a_groups_name_is_that_of_the_evaluation_without_its_seeds(name: str, group: str) -> None:
    assert group_name(name) == group


def test_two_clearly_different_methods_of_five_seeds_are_decided() -> None:
    results = runs("mlp", (0.2, 0.25, 0.3, 0.22, 0.28)) + runs("unet", (0.6, 0.7, 0.65, 0.62, 0.68))
    comparison = compare_groups(results, FAST)
    assert [group.name for group in comparison.groups] == [
        "scores@policy.kind=mlp",
        "scores@policy.kind=unet",
    ]
    assert comparison.adastop is not None
    test, (decision,) = comparison.adastop
    assert (decision.better, decision.worse) == (
        "scores@policy.kind=unet",
        "scores@policy.kind=mlp",
    )
    assert decision.difference == pytest.approx(0.4, abs=0.02)
    assert test.undecided == ()
    (difference,) = comparison.differences
    assert difference.low < 0.4 < difference.high
    # 10 choose 5 are 252 splits, of which 2 are as extreme as the largest.
    assert comparison.smallest_p_value == pytest.approx(2 / 252)


def test_methods_of_one_mean_stay_undecided() -> None:
    results = runs("mlp", (0.4, 0.6, 0.5)) + runs("unet", (0.5, 0.4, 0.6))
    comparison = compare_groups(results, FAST)
    assert comparison.adastop is not None
    assert comparison.adastop[0].undecided == (
        ("scores@policy.kind=mlp", "scores@policy.kind=unet"),
    )


def test_two_seeds_cannot_show_a_difference_and_the_page_says_so(tmp_path: Path) -> None:
    comparison = compare_groups(runs("mlp", (0.1, 0.1)) + runs("unet", (0.9, 0.9)), FAST)
    assert comparison.adastop is not None
    assert comparison.adastop[1] == ()
    write_comparison(comparison, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert "2 evaluations per group cannot show any difference" in page
    assert "0.33" in page


def test_stages_take_the_seeds_in_turn() -> None:
    results = runs("mlp", (0.2, 0.25, 0.3, 0.22, 0.28, 0.26)) + runs(
        "unet", (0.6, 0.7, 0.65, 0.62, 0.68, 0.66)
    )
    comparison = compare_groups(results, replace(FAST, stages=2, alpha=0.4))
    assert comparison.adastop is not None
    (decision,) = comparison.adastop[1]
    # 3 against 3 reach p = 2/20, below the 0.2 that the first of two stages may spend.
    assert decision.stage == 0


def test_one_evaluation_per_group_is_paired_by_episode() -> None:
    results = [result("a", 0.2), result("b", 0.8), result("c", 0.2)]
    comparison = compare_groups(results, FAST)
    assert comparison.adastop is None
    assert [each.agent for each in comparison.paired] == ["b", "c"]
    assert comparison.paired[1].success["p_value"] == 1.0
    b = comparison.paired[0].success
    assert b["only_first"] == 0
    assert comparison.holm[0] == pytest.approx(min(1.0, 2 * float(b["p_value"])))
    # The same noise in both: the difference is exact, because episodes are paired.
    (first, _) = comparison.differences
    assert first.low == pytest.approx(0.6)
    assert first.high == pytest.approx(0.6)


def test_holm_multiplies_the_smallest_p_value_by_the_number_of_tests() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.9]) == [1.0, 1.0]


def test_the_interval_of_one_evaluation_is_that_of_its_episodes() -> None:
    values = np.random.default_rng(1).random(100)
    low, high = crossed_bootstrap(values[None], resamples=10_000)
    expected = bootstrap_mean(values, 0)
    assert (low, high) == pytest.approx(expected, abs=0.004)


def test_the_spread_of_trainings_widens_the_interval() -> None:
    episodes = np.random.default_rng(1).random((1, 100))
    alike = np.repeat(episodes, 5, axis=0)
    spread = alike + np.array([-0.4, -0.2, 0.0, 0.2, 0.4])[:, None]
    narrow, wide = crossed_bootstrap(alike), crossed_bootstrap(spread)
    # Means of five of these offsets spread by 0.283 / sqrt(5) = 0.126.
    assert wide[1] - wide[0] > 3.0 * (narrow[1] - narrow[0])
    assert wide[1] - wide[0] == pytest.approx(3.92 * np.hypot(0.126, 0.029), rel=0.15)


def test_figures_and_page_name_every_evaluation(tmp_path: Path) -> None:
    results = runs("mlp", (0.2, 0.3, 0.25)) + runs("unet", (0.6, 0.7, 0.65))
    comparison = compare_groups(results, FAST)
    write_comparison(comparison, tmp_path)
    figures = json.loads((tmp_path / "comparison.json").read_text())
    assert figures == json.loads(json.dumps(to_figures(comparison)))
    assert figures["groups"][0]["evaluations"] == [each.name for each in results[:3]]
    assert figures["adastop"]["smallest_p_value"] == pytest.approx(0.1)
    page = (tmp_path / "report.html").read_text()
    for each in results:
        assert each.name in page
    assert (tmp_path / "groups.svg").read_text().startswith("<svg")
    assert [len(rows) for _, rows in group_tables(comparison)] == [2, 1, 1]


def test_evaluations_that_cannot_be_compared_are_refused() -> None:
    other = result("b", 0.5, replace(PROTOCOL, max_steps=8))
    for bad, message in (
        ([result("a", 0.1), other], r"a and b differ in \['max_steps'\]"),
        (runs("mlp", (0.1, 0.2)), "are one group"),
        ([result("a", 0.1), result("a", 0.2)], r"\['a'\] are given more than once"),
        (runs("mlp", (0.1, 0.2)) + runs("unet", (0.1,)), "Was a seed left out"),
    ):
        with pytest.raises(HandoffError, match=message):
            compare_groups(bad, FAST)
    with pytest.raises(HandoffError, match="spread evenly over 2 stages"):
        compare_groups(
            runs("mlp", (0.1, 0.2, 0.3)) + runs("unet", (0.1, 0.2, 0.3)), replace(FAST, stages=2)
        )
