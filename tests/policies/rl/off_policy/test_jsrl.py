"""Tests the schedule of the guide against values computed by hand."""

import numpy as np
import pytest

from policies.rl.off_policy.jsrl import GuideSchedule, JsrlConfig
from robots.errors import HandoffError


def test_the_curriculum_goes_from_all_steps_to_none_in_equal_stages() -> None:
    assert GuideSchedule(JsrlConfig(max_horizon=60, stages=10)).horizons.tolist() == list(
        range(60, -1, -6)
    )
    assert GuideSchedule(JsrlConfig(max_horizon=5, stages=2)).horizons.tolist() == [5, 2, 0]


def test_the_guide_acts_in_exactly_the_first_steps() -> None:
    schedule = GuideSchedule(JsrlConfig(max_horizon=2))
    guide, own = np.ones((4, 1)), np.zeros((4, 1))
    executed = schedule.act(np.zeros(4, np.int64), np.arange(4), guide, own)
    assert executed[:, 0].tolist() == [1, 1, 0, 0]


def test_the_first_evaluation_sets_the_reference_and_later_ones_that_reach_it_advance() -> None:
    schedule = GuideSchedule(JsrlConfig(tolerance=0.1))
    assert [schedule.record_evaluation(value) for value in (0.5, 0.46, 0.44, 0.6, 0.53, 0.54)] == [
        False,  # The bar: 0.5.
        True,  # At least 0.45.
        False,
        True,  # The bar is 0.6 from here on: at least 0.54.
        False,
        True,
    ]
    assert schedule.stage == 3


def test_a_negative_return_is_tolerated_downwards() -> None:
    schedule = GuideSchedule(JsrlConfig(tolerance=0.1))
    assert [schedule.record_evaluation(value) for value in (-10.0, -10.9, -11.1)] == [
        False,
        True,
        False,
    ]


def test_the_moving_return_is_over_the_window() -> None:
    schedule = GuideSchedule(JsrlConfig(window=2))
    # Means of two: -, 1.0, 0.5 (too low), 1.0.
    assert [schedule.record_evaluation(value) for value in (0.0, 2.0, -1.0, 3.0)] == [
        False,
        False,
        False,
        True,
    ]


def test_the_curriculum_ends_without_the_guide() -> None:
    schedule = GuideSchedule(JsrlConfig(stages=2))
    advanced = [schedule.record_evaluation(1.0) for _ in range(5)]
    assert advanced == [False, True, True, False, False]
    assert schedule.horizon(np.arange(2)).tolist() == [0, 0]


def test_random_lengths_are_uniform_and_belong_to_the_episode() -> None:
    schedule = GuideSchedule(JsrlConfig(max_horizon=3, variant="random"), seed=1)
    lengths = schedule.horizon(np.arange(8000))
    # Four values, a quarter each; the standard error is 0.005.
    assert np.bincount(lengths, minlength=4) / 8000 == pytest.approx([0.25] * 4, abs=0.025)
    assert schedule.horizon(np.array([17])) == lengths[17]
    assert not schedule.record_evaluation(1.0)


def test_a_restored_schedule_continues() -> None:
    config = JsrlConfig(window=2)
    before = GuideSchedule(config)
    for value in (0.5, 0.5, 0.5):
        before.record_evaluation(value)
    after = GuideSchedule(config)
    after.load_state_dict(before.state_dict())
    assert after.stage == 1
    assert [one.record_evaluation(0.4) for one in (before, after)] == [False, False]
    assert [one.record_evaluation(0.7) for one in (before, after)] == [True, True]


@pytest.mark.parametrize(
    "config", [JsrlConfig(stages=0), JsrlConfig(window=0), JsrlConfig(max_horizon=-1)]
)
def test_impossible_schedules_are_refused(config: JsrlConfig) -> None:
    with pytest.raises(HandoffError, match="jsrl: stages"):
        GuideSchedule(config)
