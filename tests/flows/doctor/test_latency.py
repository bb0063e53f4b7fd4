"""Wake-ups every millisecond on a clock of the test, percentiles and histogram."""

from __future__ import annotations

import pytest

from flows.doctor.latency import (
    WakeUps,
    histogram,
    percentile,
    rated,
    wake_up_latency,
    wake_ups,
)


class LateClock:
    """A clock whose sleep ends late by given times, one after another."""

    def __init__(self, late_ns: list[int]) -> None:
        self.time = 5_000_000_000
        self.late_ns = iter(late_ns)

    def now(self) -> int:
        """Time [ns]."""
        return self.time

    def sleep(self, seconds: float) -> None:
        """Sleeps, and too long."""
        self.time += round(seconds * 1e9) + next(self.late_ns)


def test_lateness_is_measured_from_the_millisecond_that_was_due() -> None:
    clock = LateClock([10_000, 0, 250_000, 20_000])
    assert wake_ups(0.004, clock.now, clock.sleep) == ([10_000, 0, 250_000, 20_000], 0)


def test_milliseconds_that_pass_during_a_wake_up_are_missed() -> None:
    # Due at 1 ms, awake at 3.5 ms: those of 2 and 3 ms are missed, and the next is due at 4 ms.
    clock = LateClock([2_500_000, 0, 0])
    assert wake_ups(0.005, clock.now, clock.sleep) == ([2_500_000, 0, 0][:3], 2)


def test_percentiles_are_values_that_occurred() -> None:
    hundred = [float(value) for value in range(1, 101)]
    assert percentile(hundred, 0.5) == 50.0
    assert percentile(hundred, 0.99) == 99.0
    assert percentile([7.0], 0.99) == 7.0


def test_the_histogram_has_a_row_for_each_range_up_to_the_largest_value() -> None:
    rows = [line.split() for line in histogram([10.0, 25.0, 30.0, 60.0])]
    assert [(row[1], row[-1]) for row in rows] == [("25", "2"), ("50", "1"), ("100", "1")]
    assert [row[3] for row in rows] == ["#" * 40, "#" * 20, "#" * 20]


def test_a_single_late_wake_up_is_visible_beside_thousands() -> None:
    rows = [line.split() for line in histogram([10.0] * 5000 + [9000.0])]
    assert rows[-1] == [">", "5000", "us", "#", "1"]


def test_measured_numbers_are_part_of_the_check() -> None:
    check = rated(WakeUps([10_000] * 99 + [900_000], 3, 80))
    assert check.status == "ok"
    assert check.values == {
        "p50_us": 10.0,
        "p99_us": 10.0,
        "max_us": 900.0,
        "wake_ups": 100,
        "missed_ms": 3,
        "priority": 80,
    }
    assert "Python, not the arm's C++ loop" in check.found


def test_a_99th_percentile_above_the_limit_is_a_warning() -> None:
    assert rated(WakeUps([301_000] * 100, 0, 0)).status == "warning"
    assert rated(WakeUps([299_000] * 100, 0, 0)).status == "ok"


def test_a_child_process_measures_about_a_thousand_wake_ups_per_second() -> None:
    check = wake_up_latency(0.05)
    assert 1 <= check.values["wake_ups"] <= 50
    assert check.values["wake_ups"] + check.values["missed_ms"] >= 50


@pytest.mark.parametrize("seconds", [0.0, 0.0005])
def test_less_than_one_millisecond_measures_nothing(seconds: float) -> None:
    assert wake_up_latency(seconds).status == "not checked"
