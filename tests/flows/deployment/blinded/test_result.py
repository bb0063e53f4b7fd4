"""Figures and page of a comparison that is over."""

from __future__ import annotations

import pytest

from flows.deployment.blinded.result import figures
from flows.deployment.blinded.result_page import page
from flows.deployment.blinded.rounds import Attempt, Counting
from flows.deployment.blinded.sealed_order import SealedOrder
from flows.reports.dataset_text import counted
from tests.flows.deployment.blinded.played import attempt, outcomes, played_out, sealed, stands


def pairs_of(order: SealedOrder, won: list[tuple[bool, bool]]) -> list[Attempt]:
    """Episodes in which policy a and policy b win or lose as stated, pair by pair."""
    return [
        attempt(2 * pair + place, pair, place, each[policy])
        for pair, each in enumerate(won)
        for place, policy in enumerate(order.order(pair))
    ]


def test_wins_losses_and_ties_are_those_of_the_policies_whatever_the_order() -> None:
    order = sealed("x", pairs=5, preference=True)
    won = [(True, False), (True, True), (False, False), (False, True), (True, False)]
    played = pairs_of(order, won)
    place_of_b = {pair: order.order(pair).index(1) for pair in range(5)}
    answers = {0: place_of_b[0], 1: None, 3: place_of_b[3]}
    result = figures(order, stands(order, played), played, answers)
    (compared,) = result["comparisons"]
    counts = [compared[name] for name in ("wins", "losses", "ties", "both")]
    assert counts == [2, 1, 2, 1]
    assert compared["difference"]["mean"] == pytest.approx(-0.2)
    assert compared["better"] is None
    a, b = result["policies"]
    assert (a["name"], a["success"]["k"], a["success"]["n"]) == ("a", 3, 5)
    assert (b["success"]["k"], a["preferred"], b["preferred"]) == (2, 0, 2)
    told = result["preferences"]
    assert (told["answers"], told["no_difference"], told["not_answered"]) == (3, 1, 2)
    assert told["p_value"] == pytest.approx(0.5)
    assert result["pairs"]["ended"] == "pairs"
    assert "were not told apart in 5 pairs" in result["outcome"]


def test_the_effect_of_the_place_is_reported() -> None:
    order = sealed("x", pairs=12)
    # Whoever is first wins.
    played = [
        attempt(2 * pair + place, pair, place, place == 0)
        for pair in range(12)
        for place in range(2)
    ]
    result = figures(order, stands(order, played), played, {})
    effect = result["order"]
    assert [rate["k"] for rate in effect["places"]] == [12, 0]
    assert (effect["only_first"], effect["only_second"]) == (12, 0)
    assert effect["p_value"] < 0.001
    assert result["comparisons"][0]["better"] is None
    for each in result["policies"]:
        first, second = each["by_place"]
        assert (first["k"], second["k"]) == (first["n"], 0)


def test_a_decision_is_stated_with_the_better_policy_and_its_pair() -> None:
    order = sealed("x")
    played = played_out(order, (0.0, 1.0), 0)
    known = stands(order, played)
    result = figures(order, known, played, {})
    (compared,) = result["comparisons"]
    assert compared["better"] == "b"
    assert compared["decided_after"] == len(known.played) < 15
    assert result["pairs"]["ended"] == "test"
    assert result["outcome"].startswith("b succeeds more often than a")
    assert result["policies"][0]["success"]["n"] == len(known.played)


def test_a_repeated_episode_is_counted_for_the_policy_that_acted() -> None:
    order = sealed("x", pairs=2)
    played = pairs_of(order, [(True, True), (True, True)])
    acting = order.order(1)[0]
    redone = attempt(9, 1, 0, counting=Counting.REPEATED)
    attempts = [*played[:2], redone, *played[2:]]
    result = figures(order, stands(order, attempts), attempts, {})
    repeated = [each["repeated"] for each in result["policies"]]
    assert repeated == [int(acting == 0), int(acting == 1)]
    names = {row["episode"]: row["policy"] for row in result["episodes"]}
    assert names[9] == "ab"[acting]


def test_three_policies_are_compared_in_all_their_pairs() -> None:
    order = sealed("x", 3, pairs=30)
    played = played_out(order, (0.9, 0.9, 0.0), 1)
    result = figures(order, stands(order, played), played, {})
    better = {(one["first"], one["second"]): one["better"] for one in result["comparisons"]}
    assert better == {("a", "b"): None, ("a", "c"): "a", ("b", "c"): "b"}
    assert result["policies"][2]["success"]["n"] < result["policies"][0]["success"]["n"]
    assert len("\n".join(page(result))) > 2000


def test_the_page_has_the_outcome_and_escapes_names() -> None:
    order = sealed("x", pairs=3, preference=True)
    hostile = order.policies[0]._replace(name="<script>alert(1)</script>")
    order = order._replace(policies=(hostile, order.policies[1]))
    played = outcomes(order, (1.0, 0.0), 0)
    result = figures(order, stands(order, played), played, {0: 0})
    text = "\n".join(page(result))
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    for expected in ("wins", "First against second", "Preferences", order.secret):
        assert expected in text


def test_a_difference_of_nothing_has_no_minus_and_places_have_their_names() -> None:
    order = sealed("x", pairs=2)
    played = pairs_of(order, [(True, True), (True, True)])
    text = "\n".join(page(figures(order, stands(order, played), played, {})))
    assert "+0.00 (+0.00 to +0.00)" in text
    assert "<td>first<td>2 of 2, " in text
    assert "first episode alone: 0 pairs, " in text
    played = pairs_of(order, [(True, False), (True, True)])
    text = "\n".join(page(figures(order, stands(order, played), played, {})))
    alone = int(order.order(0)[0] == 0)
    assert f"first episode alone: {counted(alone, 'pair')}, " in text
