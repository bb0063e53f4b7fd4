import pytest

from real.motion.watchdog import Freshness, Watchdog, WatchdogConfig
from robots.errors import HandoffError, SafetyError


def test_watchdog_climbs_its_ladder_with_age():
    watchdog = Watchdog(WatchdogConfig(), 0.1, 99.0)
    assert watchdog.judge(99.0) is Freshness.FRESH
    watchdog.feed(100.0)
    assert watchdog.judge(100.14) is Freshness.FRESH
    assert watchdog.judge(100.16) is Freshness.HOLD
    assert watchdog.judge(100.31) is Freshness.DECELERATE
    with pytest.raises(SafetyError, match=r"no valid action for 0\.510 s, limit 0\.5 s"):
        watchdog.judge(100.51)


def test_the_watchdog_is_armed_from_the_start():
    watchdog = Watchdog(WatchdogConfig(), 0.1, 99.0)
    assert watchdog.judge(99.16) is Freshness.HOLD
    with pytest.raises(SafetyError, match=r"no valid action for 0\.510 s"):
        watchdog.judge(99.51)


def test_a_watchdog_that_would_end_the_episode_before_it_stops_the_arm_is_refused():
    with pytest.raises(HandoffError, match=r"0\.6 s, not below fault_seconds 0\.5 s"):
        Watchdog(WatchdogConfig(), 0.2, 0.0)
