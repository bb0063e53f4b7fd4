"""States when a simulated camera captures its pictures, and when each arrives at the controller.

A real camera runs on its own clock: a policy observes the newest picture that has arrived, which
was captured tens of milliseconds earlier, and now and then one is late or lost.
"""

from __future__ import annotations

import math
import zlib

import numpy as np

from robots.config import Delay, Hertz, Seconds, ShareBelowOne, config
from robots.errors import HandoffError

KEPT_SECONDS = 2.0
"""How long a twin's world remembers its states [s]; no picture is older."""
_BLOCK = 256
"""Pictures whose delays are drawn at once."""


@config
class CameraClockConfig:
    """Rate, delays and losses of the simulated cameras."""

    rate_hz: Hertz = 30.0
    """Pictures per second of each camera [1/s]; its first one is at a random moment of the
    period."""
    latency: Delay = 0.03
    """Time from the capture of a picture until the controller has it [s]."""
    jitter: Delay = 0.0
    """Largest further delay of a picture [s], drawn anew for each."""
    drop: ShareBelowOne = 0.0
    """Share of the pictures that are lost, drawn anew for each."""
    max_age: Seconds = 0.5
    """Age of the newest picture above which the episode ends with a fault [s]."""

    def __post_init__(self) -> None:
        oldest = self.latency + self.jitter + 1.0 / self.rate_hz
        if not oldest < self.max_age < KEPT_SECONDS:
            raise HandoffError(
                f"cameras: max_age is {self.max_age:g} s, expected more than latency, jitter and period together "
                f"({oldest:g} s) and less than {KEPT_SECONDS:g} s."
            )


class CameraClock:
    """Capture times of one camera in one episode; the same seed gives the same times.

    Args:
        config: rate, delays and losses.
        name: name of the camera; cameras have clocks of their own.
        seed: seed of the episode.
    """

    def __init__(self, config: CameraClockConfig, name: str, seed: int) -> None:
        self._config = config
        self._rng = np.random.default_rng([seed, zlib.crc32(name.encode())])
        # The camera has been running since before the episode.
        self._first = -KEPT_SECONDS - self._rng.uniform(0.0, 1.0 / config.rate_hz)
        self._arrivals = np.zeros(0)

    def newest(self, now: float) -> float:
        """Capture time of the newest picture that has arrived at the time `now` [s]; negative for
        one from before the episode, minus infinity if none has arrived."""
        count = math.floor((now - self._first) * self._config.rate_hz) + 1
        while len(self._arrivals) < count:
            self._draw()
        arrived = np.flatnonzero(self._arrivals[:count] <= now)
        return self._captured(int(arrived[-1])) if len(arrived) else -math.inf

    def _captured(self, number: int) -> float:
        # To the millisecond, at which the twin's world has its states.
        return round(self._first + number / self._config.rate_hz, 3)

    def _draw(self) -> None:
        """Draws the arrivals of further pictures; that of a lost one is infinite."""
        config, first = self._config, len(self._arrivals)
        captured = [self._captured(number) for number in range(first, first + _BLOCK)]
        late = self._rng.uniform(0.0, 1.0, _BLOCK) * config.jitter
        lost = self._rng.uniform(0.0, 1.0, _BLOCK) < config.drop
        arrivals = np.where(lost, np.inf, np.array(captured) + config.latency + late)
        self._arrivals = np.concatenate([self._arrivals, arrivals])
