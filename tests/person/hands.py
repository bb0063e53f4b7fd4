"""Presses the keys of the page, for a while each, as fingers do."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

FORWARD_BACK = ("ArrowUp", "ArrowDown")
LEFT_RIGHT = ("ArrowLeft", "ArrowRight")
UP_DOWN = ("KeyI", "KeyK")
KEYS = (FORWARD_BACK, LEFT_RIGHT, UP_DOWN)
TURN = ("KeyJ", "KeyL")
"""Keys of the positive and the negative direction, of motions along x, y and z and about z."""
SLOW, TAKE = "ShiftLeft", "Space"
"""Keys that slow down, and that keep the arm without moving it."""
CLOSE, OPEN = "KeyC", "KeyO"
"""Keys of the hand."""
START = "Enter"
"""Key that starts and resumes."""
SPEED, SLOW_SPEED = 0.24, 0.05
"""Speeds of the arm while a key is down, and with the slow key [m/s], from practice."""
RISE = 0.1
"""Time that a key must be down longer, because the speed rises [s]."""
NEAR = 0.08
"""Distance below which the person taps [m]."""
SHORT = 0.06
"""Distance before a place at which a fast key is let go [m]."""
CAUTION = 0.8
"""Share of the way that a tap is meant to go."""
CLOSE_ENOUGH = 0.004
"""Distance that is not corrected [m]."""


class Hands:
    """The keys that are down, each until its time is over."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def press(self, keys: Mapping[str, float], now: float) -> None:
        """Presses keys for so many seconds each; all others are let go.

        Args:
            keys: seconds by key.
            now: the time [s].
        """
        self._until = {key: now + seconds for key, seconds in keys.items()}

    def down(self, now: float) -> tuple[str, ...]:
        """Keys that are down at a time [s]."""
        return tuple(key for key, end in self._until.items() if end > now)


class Steering:
    """Brings the arm to a place: fast to a little before it, then in taps with a look in between,
    because the pictures are late and the arm goes on for a moment."""

    def __init__(self) -> None:
        self._tapped = False

    def keys(self, way: np.ndarray, longest: float) -> dict[str, float]:
        """Seconds by key until the next decision.

        Args:
            way: (3,) way that is left along forward, left and up [m].
            longest: time until then [s].
        """
        if np.abs(way).max() > NEAR:
            self._tapped = False
            seconds = np.maximum(np.abs(way) - SHORT, 0.0) / SPEED + RISE
            return _pressed(way, np.where(np.abs(way) < SHORT, 0.0, seconds), longest)
        self._tapped = not self._tapped
        if not self._tapped:
            return {}
        seconds = np.where(np.abs(way) < CLOSE_ENOUGH, 0.0, CAUTION * np.abs(way) / SLOW_SPEED)
        return {SLOW: longest} | _pressed(way, seconds, longest)


def _pressed(way: np.ndarray, seconds: np.ndarray, longest: float) -> dict[str, float]:
    return {
        ahead if left > 0.0 else behind: float(min(time, longest))
        for (ahead, behind), left, time in zip(KEYS, way, seconds, strict=True)
        if time > 0.0
    }
