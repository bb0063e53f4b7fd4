import pytest

from real.clock import PacedClock, WallClock
from robots.errors import HandoffError
from tests.real.fakes import FakeClock


class RobotTime:
    """Moves on by 1 ms every time it is read."""

    def __init__(self, step=1):
        self.milliseconds, self.step = 5000, step

    def __call__(self):
        self.milliseconds += self.step
        return self.milliseconds / 1000.0


def test_advance_waits_for_the_robots_time():
    clock = WallClock(RobotTime())
    begin = clock.now()
    assert clock.advance(0.01) >= begin + 0.01


def test_late_tick_does_not_delay_the_next():
    time = RobotTime()
    clock = WallClock(time)
    first = clock.advance(0.010)
    time.milliseconds += 5
    assert clock.advance(0.010) == pytest.approx(first + 0.010, abs=0.0015)


def test_time_lost_by_a_stall_is_not_made_up():
    time = RobotTime()
    clock = WallClock(time)
    clock.advance(0.010)
    time.milliseconds += 1000
    after = clock.advance(0.010)
    assert clock.advance(0.010) == pytest.approx(after + 0.010, abs=0.0015)


def test_robot_whose_time_stands_is_an_error():
    with pytest.raises(HandoffError, match=r"stopped at 5\.000 s"):
        WallClock(RobotTime(step=0), patience=0.05).advance(0.004)


class Wall:
    """A wall clock that sleeping alone moves."""

    def __init__(self):
        self.time, self.slept = 100.0, []

    def __call__(self):
        return self.time

    def sleep(self, seconds):
        self.slept.append(seconds)
        self.time += seconds


def test_paced_time_passes_no_faster_than_the_wall():
    wall = Wall()
    clock = PacedClock(FakeClock(), wall, wall.sleep)
    for _ in range(5):
        clock.advance(0.004)
    assert clock.now() == pytest.approx(0.020)
    assert wall.time == pytest.approx(100.020)


def test_paced_time_makes_up_for_a_late_tick_but_not_for_a_stall():
    wall = Wall()
    clock = PacedClock(FakeClock(), wall, wall.sleep)
    wall.time += 0.010
    for _ in range(5):
        clock.advance(0.004)
    assert wall.time == pytest.approx(100.020)
    wall.time += 1.0
    clock.advance(0.004)
    clock.advance(0.004)
    assert wall.time == pytest.approx(101.024)
