"""Tests the schedule of the guide against values computed by hand."""

import numpy as np
import pytest

from policies.rl.off_policy.jsrl import GuideSchedule, JsrlCurriculum, JsrlRandom
from robots.config import validate
from robots.errors import HandoffError


def test_the_curriculum_goes_from_all_steps_to_none_in_equal_stages() -> None:
    assert GuideSchedule(JsrlCurriculum(max_horizon=60, stages=10)).horizons.tolist() == list(
        range(60, -1, -6)
    )
    assert GuideSchedule(JsrlCurriculum(max_horizon=5, stages=2)).horizons.tolist() == [5, 2, 0]


def test_the_guide_acts_in_exactly_the_first_steps() -> None:
    schedule = GuideSchedule(JsrlCurriculum(max_horizon=2))
    guide, own = np.ones((4, 1)), np.zeros((4, 1))
    executed = schedule.act(np.zeros(4, np.int64), np.arange(4), guide, own)
    assert executed[:, 0].tolist() == [1, 1, 0, 0]


def test_the_first_evaluation_sets_the_reference_and_later_ones_that_reach_it_advance() -> None:
    schedule = GuideSchedule(JsrlCurriculum(tolerance=0.1))
    assert [schedule.record_evaluation(value) for value in (0.5, 0.46, 0.44, 0.6, 0.53, 0.54)] == [
        False,  # The reference: 0.5.
        True,  # At least 0.45.
        False,
        True,  # The reference is 0.6 from here on: at least 0.54.
        False,
        True,
    ]
    assert schedule.stage == 3


@pytest.mark.parametrize("kind", [JsrlCurriculum, JsrlRandom])
def test_a_guide_that_solves_too_little_stops_the_training(
    kind: type[JsrlCurriculum] | type[JsrlRandom],
) -> None:
    schedule = GuideSchedule(kind(episodes=4, min_guide_success=0.5))
    for solved in (True, False, False):
        schedule.record_episode(solved)
    with pytest.raises(HandoffError, match=r"0\.25 of the episodes .* min_guide_success is 0\.5"):
        schedule.record_episode(False)


def test_a_success_rate_of_zero_never_advances() -> None:
    schedule = GuideSchedule(JsrlCurriculum(tolerance=0.99, window=1))
    assert [schedule.record_evaluation(value) for value in (0.1, 0.0, 0.0, 0.0)] == [False] * 4
    assert schedule.stage == 0
    # Nor where 0 is the best moving average so far.
    schedule = GuideSchedule(JsrlCurriculum(window=2))
    schedule.guide_success = 0.1
    assert [schedule.record_evaluation(value) for value in (0.0, 0.0, 0.0)] == [False] * 3


def test_an_evaluation_is_so_many_episodes() -> None:
    schedule = GuideSchedule(JsrlCurriculum(episodes=2))
    outcomes = (True, True, True, False, True, True)
    # Success rates 1, 0.5 and 1: the first is the reference, the second is below it.
    assert [schedule.record_episode(solved) for solved in outcomes] == [False] * 5 + [True]
    assert schedule.evaluations == 3


def test_the_moving_success_rate_is_over_the_window() -> None:
    schedule = GuideSchedule(JsrlCurriculum(window=2))
    # Means of two: -, 0.5, 0.25 (too low), 0.5.
    assert [schedule.record_evaluation(value) for value in (0.5, 0.5, 0.0, 1.0)] == [
        False,
        False,
        False,
        True,
    ]


def test_the_curriculum_ends_without_the_guide() -> None:
    schedule = GuideSchedule(JsrlCurriculum(stages=2))
    advanced = [schedule.record_evaluation(1.0) for _ in range(5)]
    assert advanced == [False, True, True, False, False]
    assert schedule.horizon(np.arange(2)).tolist() == [0, 0]


def test_random_lengths_are_uniform_and_belong_to_the_episode() -> None:
    schedule = GuideSchedule(JsrlRandom(max_horizon=3), seed=1)
    assert schedule.horizon(np.arange(5)).tolist() == [3] * 5, "the guide is evaluated first"
    assert not schedule.record_evaluation(1.0)
    lengths = schedule.horizon(np.arange(8000))
    # Four values, a quarter each; the standard error is 0.005.
    assert np.bincount(lengths, minlength=4) / 8000 == pytest.approx([0.25] * 4, abs=0.025)
    assert schedule.horizon(np.array([17])) == lengths[17]


def test_a_restored_schedule_continues() -> None:
    config = JsrlCurriculum(window=2, episodes=2)
    before = GuideSchedule(config)
    for value in (0.5, 0.5, 0.5):
        before.record_evaluation(value)
    before.record_episode(True)
    after = GuideSchedule(config)
    after.load_state_dict(before.state_dict())
    assert after.stage == 1
    # With the pending success an evaluation of 0.5, as good as the best.
    assert [one.record_episode(False) for one in (before, after)] == [True, True]
    assert [one.record_evaluation(0.4) for one in (before, after)] == [False, False]


@pytest.mark.parametrize("key", ["stages", "window", "episodes", "min_guide_success"])
def test_impossible_schedules_are_refused(key: str) -> None:
    with pytest.raises(HandoffError, match=f"'schedule.{key}' is 0"):
        validate(JsrlCurriculum, {key: 0}, "schedule")


def test_the_random_schedule_has_no_stages() -> None:
    with pytest.raises(HandoffError, match=r"unknown key 'schedule\.stages'"):
        validate(JsrlRandom, {"stages": 3}, "schedule")
