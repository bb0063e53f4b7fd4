"""The stream of an arm that another process drives, where that process says what fails."""

from __future__ import annotations

import multiprocessing
from multiprocessing.connection import Connection
from types import SimpleNamespace
from typing import Any

import pytest

from real.driver import driven_stream
from real.driver.channel import DriverChannel
from real.driver.driven_stream import DrivenStream
from real.driver.driver import Driver, DriverLostError
from real.driver.messages import Failing, Passed
from real.motion.stream import StreamConfig

CLOCK = "robot clock: stopped at 4.993 s for 1.0 s. Is the cable plugged in, FCI active?"


class Stuck:
    """A driver's process that never brings its arm to rest."""

    def __init__(self, pipe: Connection) -> None:
        self.pipe = pipe
        self.process = SimpleNamespace(kill=lambda: None, pid=1)

    def receive(self) -> Any:
        return self.pipe.recv()


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> tuple[DrivenStream, Connection]:
    """A stream whose first tick has passed, and the driver's end of its pipe."""
    monkeypatch.setattr(driven_stream, "TICK_SECONDS", 0.05)
    here, there = multiprocessing.Pipe()
    there.send(Passed(SimpleNamespace(target=None), 0))  # type: ignore[arg-type]
    driver: Any = Driver()
    driver._child = Stuck(here)
    space: Any = None
    return DrivenStream(driver, space, StreamConfig(), None, print, on_request=False), there


def test_a_driver_that_cannot_bring_the_arm_to_rest_names_what_failed_first(
    begun: tuple[DrivenStream, Connection],
) -> None:
    stream, there = begun
    DriverChannel(there).tell(Failing(1, CLOCK))
    with pytest.raises(DriverLostError) as lost:
        stream.pass_tick()
    assert str(lost.value).startswith(
        f"{CLOCK} The driver of the arm did not bring it to rest for 0.05 s and was killed. The robot brakes"
    )


def test_the_failure_of_an_earlier_call_is_none_of_a_stream(
    begun: tuple[DrivenStream, Connection],
) -> None:
    stream, there = begun
    DriverChannel(there).tell(Failing(0, CLOCK))
    with pytest.raises(DriverLostError, match=r"^driver of the arm: did not answer for 0.05 s"):
        stream.pass_tick()


def test_a_driver_tells_nobody_who_is_gone(begun: tuple[DrivenStream, Connection]) -> None:
    stream, there = begun
    stream._driver._child.pipe.close()  # type: ignore[union-attr]
    DriverChannel(there).tell(Failing(1, CLOCK))
