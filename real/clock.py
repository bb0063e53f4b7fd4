"""Provides clocks of robot time: one that follows the robot's own, one that paces a twin's."""

from __future__ import annotations

import time
from collections.abc import Callable

from robots.errors import HandoffError
from robots.interfaces import Clock

_POLL = 0.0002
"""Time between reads of the robot's time, well below its period of 1 ms [host s]."""


class WallClock:
    """A `robots.interfaces.Clock` that waits until the robot's own time has passed.

    Ticks are scheduled from the time at which the last one was due, so a late tick does not delay
    those after it.

    Args:
        robot_time: returns the robot's time [s].
        patience: time without progress of robot time after which the robot counts as dead [host s].
    """

    def __init__(self, robot_time: Callable[[], float], patience: float = 1.0) -> None:
        self._robot_time = robot_time
        self._patience = patience
        self._due: float | None = None

    def now(self) -> float:
        """Robot time [s]."""
        return self._robot_time()

    def advance(self, seconds: float) -> float:
        """Waits until robot time is `seconds` after the last due time; returns robot time [s].

        Raises:
            HandoffError: robot time makes no progress.
        """
        reached = self._robot_time()
        due = (reached if self._due is None else self._due) + seconds
        # A delay beyond one tick shifts the schedule; otherwise lost time would be made up at once.
        self._due = due if due > reached - seconds else reached + seconds
        progressed = time.monotonic()
        while reached < self._due:
            time.sleep(_POLL)
            previous, reached = reached, self._robot_time()
            if reached != previous:
                progressed = time.monotonic()
            elif time.monotonic() - progressed > self._patience:
                raise HandoffError(
                    f"robot clock: stopped at {reached:.3f} s for {self._patience} s. "
                    "Is the cable plugged in, FCI active?"
                )
        return reached


class PacedClock:
    """Paces a clock that passes on request, such as a lockstep twin's, to wall time, so that a
    person can watch.

    Args:
        clock: the clock to be paced.
        now: returns the wall time [s].
        sleep: waits for a wall time [s].
    """

    LATE = 0.05
    """Lag behind wall time above which the schedule is shifted [s]; lost time is not made up."""

    def __init__(
        self,
        clock: Clock,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._clock = clock
        self._wall = now
        self._sleep = sleep
        self._due = now()

    def now(self) -> float:
        """See `robots.interfaces.Clock`."""
        return self._clock.now()

    def advance(self, seconds: float) -> float:
        """See `robots.interfaces.Clock`; returns when `seconds` of wall time have passed as
        well."""
        reached = self._clock.advance(seconds)
        self._due += seconds
        ahead = self._due - self._wall()
        if ahead > 0.0:
            self._sleep(ahead)
        elif ahead < -self.LATE:
            self._due = self._wall()
        return reached
