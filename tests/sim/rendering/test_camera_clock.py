"""When simulated cameras capture their pictures, and when these arrive."""

from __future__ import annotations

import numpy as np
import pytest

from robots.errors import HandoffError
from sim.rendering.camera_clock import CameraClock, CameraClockConfig

TIMES = np.round(np.arange(0.0, 20.0, 0.05), 3)


def ages(config: CameraClockConfig, seed: int = 0, name: str = "front") -> np.ndarray:
    """Ages of the newest picture at policy steps of 20 Hz [s]."""
    clock = CameraClock(config, name, seed)
    return np.array([now - clock.newest(now) for now in TIMES])


def test_the_newest_picture_is_between_the_latency_and_one_period_more_old():
    found = ages(CameraClockConfig(rate_hz=30.0, latency=0.04))
    assert found.min() >= 0.04 - 1e-3
    assert found.max() <= 0.04 + 1.0 / 30.0 + 1e-3
    # 20 Hz and 30 Hz beat, so that the age varies.
    assert found.max() - found.min() > 0.01


def test_the_same_seed_gives_the_same_times_and_cameras_have_their_own():
    config = CameraClockConfig(jitter=0.05, drop=0.2)
    assert np.array_equal(ages(config, 3), ages(config, 3))
    assert not np.array_equal(ages(config, 3), ages(config, 4))
    assert not np.array_equal(ages(config, 3), ages(config, 3, "wrist"))


def test_times_do_not_depend_on_when_they_are_asked():
    config = CameraClockConfig(jitter=0.05, drop=0.2)
    clock = CameraClock(config, "front", 0)
    backwards = [clock.newest(now) for now in TIMES[::-1]][::-1]
    again = CameraClock(config, "front", 0)
    assert backwards == [again.newest(now) for now in TIMES]


def test_lost_pictures_leave_the_one_before():
    config = CameraClockConfig(rate_hz=30.0, latency=0.0, drop=0.5, max_age=1.9)
    found = ages(config)
    # Half of the pictures are at most one period old, a quarter one period older, and so on.
    assert np.mean(found <= 1.0 / 30.0 + 1e-3) == pytest.approx(0.5, abs=0.08)
    assert np.mean(found <= 2.0 / 30.0 + 1e-3) == pytest.approx(0.75, abs=0.08)


def test_a_late_picture_does_not_replace_a_newer_one():
    found = ages(CameraClockConfig(rate_hz=100.0, latency=0.0, jitter=0.1))
    # The newest of those that arrived: the age is far below the largest delay.
    assert np.median(found) < 0.05


def test_a_camera_that_sends_nothing_has_an_old_picture():
    config = CameraClockConfig(rate_hz=30.0, drop=0.999)
    assert max(ages(config)) > 2.0


def test_a_limit_that_every_picture_exceeds_is_refused():
    with pytest.raises(HandoffError, match=r"max_age is 0\.05 s, expected more than latency"):
        CameraClockConfig(rate_hz=30.0, latency=0.03, max_age=0.05)
    with pytest.raises(HandoffError, match="less than 2 s"):
        CameraClockConfig(max_age=5.0)
