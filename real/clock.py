"""Robot time: on hardware it passes by itself; before a person a twin's must, too."""

from __future__ import annotations

import time
from collections.abc import Callable

from robots.errors import HandoffError
from robots.interfaces import Clock

_POLL = 0.0002
"""Host seconds between looks at the robot's time: well below its period of 1 ms."""


class WallClock:
    """A `robots.interfaces.Clock` that waits until the robot's own time has passed.

    Calls are scheduled on the time due, not on the time reached, so that a late tick does not delay
    those after it.
    """

    def __init__(self, robot_time: Callable[[], float], patience: float = 1.0) -> None:
        """Reads robot time [s] from `robot_time`; `patience` [host s] without any progress counts
        as a dead robot."""
        self._robot_time, self._patience = robot_time, patience
        self._due: float | None = None

    def now(self) -> float:
        """Robot time [s]."""
        return self._robot_time()

    def advance(self, seconds: float) -> float:
        """Waits until `seconds` after the last due time have passed on the robot, returns robot
        time [s].

        Raises:
            HandoffError: robot time stands still.
        """
        reached = self._robot_time()
        due = (reached if self._due is None else self._due) + seconds
        # Later than one whole tick: the schedule starts anew, or lost time would be made up at
        # once.
        self._due = due if due > reached - seconds else reached + seconds
        moved = time.monotonic()
        while reached < self._due:
            time.sleep(_POLL)
            previous, reached = reached, self._robot_time()
            if reached != previous:
                moved = time.monotonic()
            elif time.monotonic() - moved > self._patience:
                raise HandoffError(
                    f"robot clock: stands at {reached:.3f} s for {self._patience} s. Is the cable in, FCI active?"
                )
        return reached


class PacedClock:
    """A clock whose time passes when asked, such as a lockstep twin's, kept to the pace of the
    wall: for a person."""

    LATE = 0.05
    """Lag behind the wall from which on the schedule starts anew [s]: lost time is not made up by
    haste."""

    def __init__(
        self,
        clock: Clock,
        now: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        """`now` and `sleep` are the wall's [s]."""
        self._clock, self._wall, self._sleep = clock, now, sleep
        self._due = now()

    def now(self) -> float:
        """See `robots.interfaces.Clock`."""
        return self._clock.now()

    def advance(self, seconds: float) -> float:
        """See `robots.interfaces.Clock`; returns when as much time has passed on the wall, too."""
        reached = self._clock.advance(seconds)
        self._due += seconds
        ahead = self._due - self._wall()
        if ahead > 0.0:
            self._sleep(ahead)
        elif ahead < -self.LATE:
            self._due = self._wall()
        return reached
