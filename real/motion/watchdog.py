"""Judges how old the newest action is, beside the stream of references: where the process of the
policy stands still, the arm comes to rest all the same."""

from __future__ import annotations

from enum import Enum
from typing import Annotated

from pydantic import Field

from robots.config import check_positive, config
from robots.errors import HandoffError, SafetyError


@config
class WatchdogConfig:
    """Age limits of the newest valid action."""

    hold_periods: Annotated[float, Field(gt=0.0, le=10.0)] = 1.5
    """Age above which the last target is held [policy periods]."""
    stop_periods: Annotated[float, Field(gt=0.0, le=20.0)] = 3.0
    """Age above which the reference is brought to rest where it is [policy periods]."""
    fault_seconds: Annotated[float, Field(gt=0.0, le=10.0)] = 0.5
    """Age above which the episode ends with a fault [s]."""

    def __post_init__(self) -> None:
        check_positive("watchdog", self, ("hold_periods", "stop_periods", "fault_seconds"))
        if self.hold_periods >= self.stop_periods:
            raise HandoffError(
                f"watchdog: hold_periods {self.hold_periods} is not below stop_periods {self.stop_periods}."
            )

    def check_period(self, period: float) -> None:
        """Checks that an old action brings the arm to rest before it ends the episode.

        Args:
            period: policy period [s].

        Raises:
            HandoffError: it does not.
        """
        if self.stop_periods * period >= self.fault_seconds:
            raise HandoffError(
                f"watchdog: stop_periods {self.stop_periods} at a policy period of {period:.3g} s is "
                f"{self.stop_periods * period:.3g} s, not below fault_seconds {self.fault_seconds} s."
            )


class Freshness(Enum):
    """Verdict of the watchdog on the newest action's age."""

    FRESH = "fresh"
    HOLD = "hold"
    DECELERATE = "decelerate"


class Watchdog:
    """Judges the age of the newest valid action; before the first, that of the start.

    Args:
        config: age limits.
        period: policy period [s].
        time: robot time of the start [s].

    Raises:
        HandoffError: age limits that do not fit the period.
    """

    def __init__(self, config: WatchdogConfig, period: float, time: float) -> None:
        config.check_period(period)
        self._config = config
        self._period = period
        self._newest = time

    def feed(self, time: float) -> None:
        """Notes that a valid action was executed at robot time `time` [s]."""
        self._newest = time

    def judge(self, time: float) -> Freshness:
        """The verdict at robot time `time` [s].

        Raises:
            SafetyError: the newest action is older than `fault_seconds`.
        """
        age = time - self._newest
        if age > self._config.fault_seconds:
            raise SafetyError(
                f"watchdog: no valid action for {age:.3f} s, limit {self._config.fault_seconds} s. Did the policy hang?"
            )
        if age > self._config.stop_periods * self._period:
            return Freshness.DECELERATE
        return Freshness.HOLD if age > self._config.hold_periods * self._period else Freshness.FRESH
