"""Precision and recall of hints, worked by hand, and their negative control."""

from __future__ import annotations

import numpy as np
import pytest

from real.hints.usefulness import HintedEpisode, hint_usefulness

RATE = 1.0
"""Three steps are the time before a takeover within which a hint announces it."""


def episode(hint: str, person: str, success: bool) -> HintedEpisode:
    """An episode whose steps with a hint, and of the person, are the stars of two lines."""
    stars = [np.array([mark == "*" for mark in line]) for line in (hint, person)]
    return HintedEpisode(stars[0].astype(np.uint8) * 4, stars[1], success)


def figures(*episodes: HintedEpisode) -> dict[str, tuple[int, int]]:
    found = hint_usefulness(episodes, RATE)
    names = ("precision", "takeovers_announced", "failures_announced", "false_alarms")
    return {name: (found[name]["k"], found[name]["n"]) for name in names}


def test_a_hint_in_time_before_a_takeover_is_right() -> None:
    one = episode("......*...", ".......***", success=True)
    assert figures(one) == {
        "precision": (1, 1),
        "takeovers_announced": (1, 1),
        "failures_announced": (0, 0),
        "false_alarms": (0, 0),
    }


def test_a_hint_long_before_a_takeover_is_wrong_unless_it_is_still_shown() -> None:
    early = episode("*.........", ".......***", success=True)
    assert figures(early)["precision"] == (0, 1)
    assert figures(early)["takeovers_announced"] == (0, 1)
    lasting = episode("*****.....", ".......***", success=True)
    assert figures(lasting)["takeovers_announced"] == (1, 1)


def test_a_hint_counts_for_a_failure_however_early_and_as_a_false_alarm_before_success() -> None:
    failed, solved = episode("*.......", "........", False), episode(".*.*....", "........", True)
    assert figures(failed, solved) == {
        "precision": (1, 3),
        "takeovers_announced": (0, 0),
        "failures_announced": (1, 1),
        "false_alarms": (1, 1),
    }


def test_stretches_before_and_after_a_takeover_are_apart() -> None:
    # Taken over without a hint, given back, then a failure with one.
    both = episode("......**", "..***...", success=False)
    assert figures(both) == {
        "precision": (1, 1),
        "takeovers_announced": (0, 1),
        "failures_announced": (1, 1),
        "false_alarms": (0, 0),
    }


def test_hints_at_random_are_right_as_often_as_chance_allows() -> None:
    # Half of all steps are those of failures, so half of the hints at random are in one.
    episodes = [episode("*" + "." * 49, "." * 50, success=False)] * 20
    episodes += [episode("." * 50, "." * 50, success=True)] * 20
    found = hint_usefulness(episodes, RATE)
    assert found["precision"]["k"] == found["precision"]["n"] == 20
    assert found["informedness"] == 1.0, "every failure is announced, and no success has a hint"
    assert found["random"]["informedness"] == pytest.approx(0.0, abs=0.03)
    assert found["random"]["precision"] == pytest.approx(0.5, abs=0.03)
    assert found["p_value"] == pytest.approx(1 / 201), "none of 200 placements is as informed"
    # A failure has a hint unless all 20 fell elsewhere: 1 - (1 - 1 / 40)^20.
    assert found["random"]["failures_announced"] == pytest.approx(1 - (39 / 40) ** 20, abs=0.03)


def test_hints_without_information_are_no_better_than_their_control() -> None:
    rng = np.random.default_rng(3)
    episodes = []
    for _ in range(300):
        person = np.zeros(60, bool)
        person[30:40] = rng.random() < 0.5
        hint = (rng.random(60) < 0.03).astype(np.uint8)
        episodes.append(HintedEpisode(hint, person, bool(rng.random() < 0.7)))
    found = hint_usefulness(episodes, RATE)
    for name in ("precision", "takeovers_announced", "failures_announced", "false_alarms"):
        share = found[name]["k"] / found[name]["n"]
        assert share == pytest.approx(found["random"][name], abs=0.05), name
    assert found["p_value"] > 0.05
    assert abs(found["informedness"] - found["random"]["informedness"]) < 0.05


def test_no_step_of_the_policy_has_no_figures() -> None:
    assert hint_usefulness([], RATE) == {}
    assert hint_usefulness([episode("...", "***", success=True)], RATE) == {}


def test_no_hint_at_all_has_shares_of_nothing() -> None:
    found = hint_usefulness([episode("....", "....", success=False)], RATE)
    assert (found["hints"], found["precision"]["n"]) == (0, 0)
    assert found["failures_announced"]["k"] == 0
    assert found["random"]["precision"] == 0.0
