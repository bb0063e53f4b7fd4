"""The options of the benchmark of an hour at the twin."""

from __future__ import annotations

import argparse

import pytest

from tests.benchmarks import arm_hour


@pytest.mark.parametrize("text", ["0", "-1", "nan", "inf", "0.02"])
def test_a_time_without_several_episodes_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="expected at least 1"):
        arm_hour.minutes(text)
    assert arm_hour.minutes("1") == 1.0
