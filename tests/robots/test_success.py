"""Threshold, detector and report against numbers computed by hand."""

import numpy as np
import pytest

from robots.errors import HandoffError
from robots.proportions import clopper_pearson
from robots.spec import FieldSpec
from robots.success import (
    DetectorConfig,
    SuccessContract,
    SuccessDetector,
    choose_threshold,
    first_success,
    report_threshold,
)

DETECTOR = DetectorConfig(threshold=0.8, release=0.5, steps=3)


def test_a_success_is_detected_at_the_last_of_the_required_steps():
    assert first_success(np.array([0.1, 0.9, 0.9, 0.9, 0.9]), DETECTOR) == 3


def test_a_single_high_step_is_no_success():
    assert first_success(np.array([0.1, 1.0, 0.1, 1.0, 0.1, 1.0]), DETECTOR) is None


def test_a_dip_above_the_release_continues_counting():
    assert first_success(np.array([0.8, 0.5, 0.5]), DETECTOR) == 2


def test_a_dip_below_the_release_restarts_counting():
    assert first_success(np.array([0.9, 0.9, 0.49, 0.9, 0.9, 0.9]), DETECTOR) == 5


def test_counting_does_not_begin_between_release_and_threshold():
    assert first_success(np.full(9, 0.79), DETECTOR) is None


def test_a_success_is_detected_once_per_episode_and_again_after_a_reset():
    detector = SuccessDetector(DetectorConfig(steps=1), robots=2)
    detected = [detector.update(np.array([0.9, 0.9])).tolist() for _ in range(2)]
    assert detected == [[True, True], [False, False]]
    detector.reset(np.array([False, True]))
    assert detector.update(np.array([0.9, 0.9])).tolist() == [False, True]


def test_a_step_without_the_further_condition_does_not_count():
    detector = SuccessDetector(DetectorConfig(steps=2), robots=1)
    allowed = [True, False, True, True]
    detected = [bool(detector.update(np.ones(1), np.array([flag]))[0]) for flag in allowed]
    assert detected == [False, False, False, True]


def test_logits_are_refused():
    with pytest.raises(HandoffError, match="Are these logits"):
        SuccessDetector(DETECTOR).update(np.array([3.2]))


def test_nan_is_refused():
    with pytest.raises(HandoffError, match="expected values in"):
        SuccessDetector(DETECTOR).update(np.array([np.nan]))


def test_a_release_above_the_threshold_is_refused():
    with pytest.raises(HandoffError, match=r"release 0\.9"):
        SuccessDetector(DetectorConfig(threshold=0.8, release=0.9))


def scores(*groups: tuple[float, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Probabilities and labels of groups (score, successes, failures)."""
    probability = np.concatenate([np.full(right + wrong, score) for score, right, wrong in groups])
    success = np.concatenate([np.arange(right + wrong) < right for _, right, wrong in groups])
    return probability, success


def test_the_threshold_lies_between_the_last_accepted_score_and_the_next():
    assert choose_threshold(*scores((0.9, 30, 0), (0.7, 0, 30))) == pytest.approx(0.8)


def test_the_threshold_has_the_highest_recall_at_the_required_precision():
    # 20 of 20, then 38 of 40 = .95, then 48 of 60 = .8.
    groups = scores((0.9, 20, 0), (0.8, 18, 2), (0.7, 10, 10))
    assert choose_threshold(*groups, precision=0.95) == pytest.approx(0.75)
    assert choose_threshold(*groups, precision=0.94) == pytest.approx(0.75)
    assert choose_threshold(*groups, precision=0.80) == pytest.approx(0.5)


def test_equal_scores_are_accepted_together():
    groups = scores((0.9, 20, 0), (0.8, 10, 10))
    assert choose_threshold(*groups) == pytest.approx(0.85)


def test_rarer_successes_need_a_higher_threshold():
    # At the even share 38 / 40; at one success in 101, 1 * 38/48 against 100 * 2/12 is far below.
    groups = scores((0.9, 20, 0), (0.8, 18, 2), (0.7, 10, 10))
    assert choose_threshold(*groups, success_share=1 / 101) == pytest.approx(0.85)


def test_the_threshold_is_never_below_the_lowest():
    assert choose_threshold(*scores((0.9, 30, 0), (0.1, 0, 30)), lowest=0.7) == pytest.approx(0.7)


def test_a_precision_estimated_from_too_few_successes_is_refused():
    # 1 / (1 - .95) = 20 successes are needed.
    assert choose_threshold(*scores((0.9, 20, 0), (0.6, 0, 50))) == pytest.approx(0.75)
    with pytest.raises(
        HandoffError,
        match=r"19 successes are held out, .* from at least 20",
    ):
        choose_threshold(*scores((0.9, 19, 0), (0.6, 0, 50)))


def test_a_classifier_that_is_not_precise_enough_is_refused():
    with pytest.raises(HandoffError, match=r"precision is 0\.500 at best"):
        choose_threshold(*scores((0.9, 30, 30)))


def test_one_class_alone_is_refused():
    with pytest.raises(HandoffError, match="0 successes of 5"):
        choose_threshold(np.linspace(0.0, 1.0, 5), np.zeros(5, dtype=bool))


def test_the_report_counts_steps_and_episodes():
    probability = np.array(
        [[0.9, 0.9, 0.1, 0.1], [0.1, 0.9, 0.9, 0.9], [0.1, 0.1, 0.1, 0.1]]
    ).ravel()
    success = np.array([[0, 0, 0, 0], [0, 0, 1, 1], [0, 1, 1, 1]], dtype=bool).ravel()
    episode = np.repeat([4, 7, 9], 4)
    report = report_threshold(
        probability, success, episode, DetectorConfig(threshold=0.8, release=0.5, steps=2)
    )
    assert report.precision == (2, 5, *clopper_pearson(2, 5))
    assert report.recall[:2] == (2, 5)
    assert report.false_positives[:2] == (3, 7)
    assert report.false_episodes[:2] == (1, 3)
    assert report.missed_episodes[:2] == (1, 2)


def test_a_proportion_of_nothing_has_the_interval_from_0_to_1():
    probability, success = np.zeros(4), np.array([True, True, False, False])
    precision = report_threshold(probability, success, np.zeros(4), DETECTOR).precision
    assert (precision.n, precision.low, precision.high) == (0, 0.0, 1.0)
    assert np.isnan(precision.share)


CONTRACT = SuccessContract(
    task="lamp",
    rate_hz=10.0,
    observation={"arm": FieldSpec(shape=(2,))},
    detector=DETECTOR,
    training_data="d" * 64,
)


def test_a_contract_survives_json():
    assert SuccessContract.from_json(CONTRACT.to_json()) == CONTRACT


def test_a_contract_of_another_version_is_refused():
    with pytest.raises(HandoffError, match="version 2, this build reads 1"):
        SuccessContract.from_json(CONTRACT.to_json().replace('"version": 1', '"version": 2'))


def test_a_contract_that_is_no_json_is_refused():
    with pytest.raises(HandoffError, match="not JSON"):
        SuccessContract.from_json("{")
