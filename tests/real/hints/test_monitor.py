"""Hints from constructed series: limits by solved episodes, and when a hint is shown."""

from __future__ import annotations

import numpy as np
import pytest

from real.hints.causes import HintCause
from real.hints.config import CorrectionHints, HintConfig, HintSource, ValueDropSource
from real.hints.monitor import HintMonitor, known_measures, recorded_measures
from real.hints.signals import (
    HINT,
    Disagreement,
    MeasuredSignal,
    ValueDrop,
    correction_signals,
    hint_fields,
)
from robots.errors import HandoffError

RATE = 10.0
CONFIG = HintConfig(recent=4, least=2, seconds=0.3)


def monitor(quantile: float = 0.5, config: HintConfig = CONFIG) -> HintMonitor:
    """Limits of the measure `novelty` as it is."""
    return HintMonitor(config, [MeasuredSignal(HintCause.NOVELTY, quantile, "novelty")], RATE)


def played(
    watched: HintMonitor, values: list[float], *, solved: bool, person: tuple[int, ...] = ()
) -> list[int]:
    """The hints of an episode with these values; the person acts at the steps `person`."""
    hints = [
        watched.step({"novelty": value}, person=step in person).value
        for step, value in enumerate(values)
    ]
    watched.end(solved=solved)
    return hints


def test_a_limit_is_the_quantile_of_the_largest_values_of_solved_episodes() -> None:
    watched = monitor()
    assert played(watched, [0.0, 9.0], solved=True) == [0, 0]
    assert watched.limits == {}, "one solved episode is too few"
    played(watched, [1.0, 3.0, 2.0], solved=True)
    assert watched.limits == {"novelty": 6.0}
    played(watched, [99.0], solved=False)
    assert watched.limits == {"novelty": 6.0}, "an episode that failed sets no limit"
    assert played(watched, [5.9, 6.1, 0.0], solved=False) == [0, 4, 4]


def test_only_the_newest_solved_episodes_count() -> None:
    watched = monitor()
    for value in (9.0, 9.0, 1.0, 1.0, 1.0, 1.0):
        played(watched, [value], solved=True)
    assert watched.limits == {"novelty": 1.0}


def test_what_was_before_a_takeover_or_by_the_person_sets_no_limit() -> None:
    watched = monitor()
    played(watched, [50.0, 50.0, 1.0, 2.0], solved=True, person=(1,))
    played(watched, [2.0, 7.0], solved=True, person=(1,))
    assert watched.limits == {}, "the person solved the second one"
    played(watched, [2.0], solved=True)
    assert watched.limits == {"novelty": 2.0}


def test_a_hint_lasts_its_time_and_ends_when_the_person_acts() -> None:
    watched = monitor()
    played(watched, [1.0], solved=True)
    played(watched, [1.0], solved=True)
    assert played(watched, [2.0, 0.0, 0.0, 0.0, 0.0], solved=False) == [4, 4, 4, 0, 0]
    assert played(watched, [2.0, 0.0, 0.0, 0.0], solved=False, person=(1,)) == [4, 0, 0, 0]


def test_a_value_that_falls_gives_a_hint_and_one_that_rises_or_rests_gives_none() -> None:
    watched = HintMonitor(CONFIG, [ValueDrop(0.9, steps=4)], RATE)

    def play(values: list[float], *, solved: bool) -> list[int]:
        # Without a spread a fall is relative to the largest value alone.
        hints = [
            watched.step({"value": v, "value_spread": 0.0}, person=False).value for v in values
        ]
        watched.end(solved=solved)
        return hints

    rising = [0.1 * number for number in range(8)]
    # Solved episodes whose values fall by 4 % and 8 % at most: the 90 % quantile is 7.6 %.
    play([0.5, 0.48, 0.6], solved=True)
    play([0.5, 0.46, 0.6], solved=True)
    assert watched.limits == {"value_drop": pytest.approx(0.076)}
    assert not any(play(rising, solved=False))
    assert not any(play([0.5] * 8, solved=False))
    assert play([0.5, 0.5, 0.45, 0.45, 0.45, 0.45, 0.45, 0.45], solved=False) == [
        0,
        0,
        *[1] * 5,
        0,
    ], "from the fall until it has left the window of four steps, and two steps longer"
    slow = [0.5 - 0.01 * number for number in range(8)]
    assert not any(play(slow, solved=False)), "0.03 of 0.5 within the window is below the limit"


def test_falls_and_disagreement_are_relative_to_the_value() -> None:
    drop, unsure = ValueDrop(0.5, steps=2), Disagreement(0.5)
    assert drop({"value": 0.9, "value_spread": 0.1}, 0) == 0.0
    assert drop({"value": 0.5, "value_spread": 0.1}, 1) == pytest.approx(0.4 / (0.9 + 0.1))
    assert unsure({"value": -0.3, "value_spread": 0.1}, 0) == pytest.approx(0.1 / (0.3 + 0.1))
    assert unsure({"value": 0.0, "value_spread": 0.0}, 1) == 0.0, "not divided by nothing"
    assert drop({}, 2) is None
    assert unsure({}, 2) is None


def test_a_fall_across_the_persons_steps_is_none() -> None:
    watched = HintMonitor(HintConfig(recent=2, least=1), [ValueDrop(0.5, steps=10)], RATE)
    high, low = {"value": 1.0, "value_spread": 0.0}, {"value": 0.1, "value_spread": 0.0}
    watched.step(high, person=False)
    watched.end(solved=True)
    watched.step(high, person=False)
    assert watched.step(low, person=False) is HintCause.VALUE_DROP
    watched.end(solved=False)
    watched.step(high, person=False)
    watched.step(high, person=True)
    assert watched.step(low, person=False) is HintCause.NONE


def test_late_success_compares_with_the_time_of_solved_episodes() -> None:
    config = CorrectionHints(success=HintSource(quantile=0.5), recent=3, least=1, seconds=0.1)
    watched = HintMonitor(config, correction_signals(config, RATE, threshold=0.8), RATE)

    def play(probabilities: list[float], *, solved: bool) -> list[int]:
        measured = [
            watched.step({"success_probability": p} if p >= 0 else {}, person=False).value
            for p in probabilities
        ]
        watched.end(solved=solved)
        return measured

    # Unknown before the first step; out of sight until step 2, at 0.2 s.
    play([-1.0, 0.1, 0.1, 0.9], solved=True)
    assert watched.limits == {"no_success": 0.2}
    assert play([-1.0, 0.1, 0.1, 0.1, 0.1, 0.9], solved=False) == [0, 0, 0, 8, 8, 0]


def test_a_session_that_is_resumed_has_the_limits_that_it_had() -> None:
    config = CorrectionHints(
        value=ValueDropSource(quantile=0.7), disagreement=HintSource(), recent=5, least=2
    )
    signals = correction_signals(config, RATE, None)
    names = list(hint_fields(signals))
    assert names == [HINT, "value", "value_spread"]
    rng = np.random.default_rng(0)
    live = HintMonitor(config, signals, RATE)
    again = HintMonitor(config, correction_signals(config, RATE, None), RATE)
    for episode in range(9):
        rows: dict[str, list[float]] = {name: [] for name in ["intervention", *names]}
        for step in range(20):
            person = 5 <= step < 8 and episode % 2 == 0
            # No policy had come before the third step of the first episode.
            known = episode > 0 or step > 2
            found = rng.standard_normal(2).astype(np.float32)
            measures = {"value": float(found[0]), "value_spread": float(abs(found[1]))}
            measures = measures if known else {}
            causes = live.step(measures, person=person)
            row = {**recorded_measures(measures, names[1:]), HINT: causes, "intervention": person}
            for name, value in row.items():
                rows[name].append(value)
        live.end(solved=episode != 3)
        columns = {name: np.array(column, np.float32) for name, column in rows.items()}
        again.replay(columns, solved=episode != 3)
    assert live.limits.keys() == {"value_drop", "disagreement"}
    assert again.limits == live.limits


def test_unknown_measures_are_recorded_as_finite_numbers_and_read_back_as_unknown() -> None:
    names = ["value", "value_spread", "novelty"]
    assert recorded_measures({}, names) == {"value": 0.0, "value_spread": -1.0, "novelty": -1.0}
    assert known_measures(recorded_measures({}, names)) == {}
    measures = {"value": -1.0, "value_spread": 0.5}
    assert known_measures(recorded_measures(measures, names)) == measures


def test_limits_of_more_episodes_than_are_kept_are_refused() -> None:
    with pytest.raises(HandoffError, match="least is 30, expected at most recent"):
        HintConfig(least=30)
