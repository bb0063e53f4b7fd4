"""Computes the robustness of a formula from every step on while the episodes run, each value as
soon as the steps on which it depends have been observed.

A stream gets one observation after another. It returns nothing for its first `delay` steps, and
then the robustness from the step `delay` before the observed one. After the last observation it
gets None as often as needed, until the values of all steps are out. A robot's values are NaN from
the step on at which its episode has ended.

Shape suffixes: N robots.
"""

from __future__ import annotations

from collections import deque
from typing import Protocol

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import Observation
from robots.specifications.formula import (
    Formula,
    Interval,
    Junction,
    Not,
    Predicate,
    Temporal,
    Until,
)
from robots.specifications.quantities import margin


class Episodes:
    """How far N episodes are, which all streams of a formula share."""

    def __init__(self, specification: str, robots: int) -> None:
        self.specification = specification
        """Name of the specification, for messages."""
        self.running = np.ones(robots, dtype=bool)
        """(N,) whether an episode has the newest observation."""
        self.length = np.zeros(robots, dtype=int)
        """(N,) number of observations of each episode."""

    def advance(self, running: np.ndarray) -> None:
        """Counts an observation of the episodes of the mask `running` (N,) bool."""
        self.running = running
        self.length = self.length + running

    def from_step(self, step: int, values_N: np.ndarray) -> np.ndarray:
        """Values from a step on; NaN for episodes that ended before it."""
        return np.where(step < self.length, values_N, np.nan)


class RobustnessStream(Protocol):
    """Robustness of a formula from every step on."""

    delay: int
    """Number of steps by which values are late."""

    def push(self, observation: Observation | None) -> np.ndarray | None:
        """(N,) the value from the step `delay` before this observation on; None if there is none
        yet."""
        ...


def make_stream(
    formula: Formula, rate_hz: float, longest: int, episodes: Episodes
) -> RobustnessStream:
    """Makes the stream of a formula.

    Args:
        formula: a resolved formula.
        rate_hz: observations per second.
        longest: largest number of observations of an episode, to which intervals without an end
            extend.
        episodes: of the formula.
    """
    match formula:
        case Predicate():
            return _Margin(formula, episodes)
        case Not():
            return _Negation(make_stream(formula.of, rate_hz, longest, episodes))
        case Junction():
            left = make_stream(formula.left, rate_hz, longest, episodes)
            right = make_stream(formula.right, rate_hz, longest, episodes)
            return _Both(left, right, formula.kind)
        case Temporal():
            of = make_stream(formula.of, rate_hz, longest, episodes)
            start, end = _within(formula.interval, rate_hz, longest)
            if formula.kind == "always":
                return _Always(of, start, end, episodes)
            return _Negation(_Always(_Negation(of), start, end, episodes))
        case Until():
            left = make_stream(formula.left, rate_hz, longest, episodes)
            right = make_stream(formula.right, rate_hz, longest, episodes)
            return _Until(Pair(left, right), *_within(formula.interval, rate_hz, longest), episodes)


def _within(interval: Interval, rate_hz: float, longest: int) -> tuple[int, int]:
    """First and last step of an interval, at most `longest`."""
    start, end = interval.steps(rate_hz)
    return min(start, longest), longest if end is None else min(end, longest)


class Pair:
    """Two streams whose values come out together, step by step."""

    def __init__(self, left: RobustnessStream, right: RobustnessStream) -> None:
        self.delay = max(left.delay, right.delay)
        self._left = left
        self._right = right
        self._early_left: deque[np.ndarray] = deque()
        self._early_right: deque[np.ndarray] = deque()

    def push(self, observation: Observation | None) -> tuple[np.ndarray, np.ndarray] | None:
        """(N,) both values from the step `delay` before this observation on; None if there are none
        yet."""
        left, right = self._left.push(observation), self._right.push(observation)
        if left is not None:
            self._early_left.append(left)
        if right is not None:
            self._early_right.append(right)
        if not self._early_left or not self._early_right:
            return None
        return self._early_left.popleft(), self._early_right.popleft()


class _Margin:
    """Robustness of a predicate."""

    delay = 0

    def __init__(self, comparison: Predicate, episodes: Episodes) -> None:
        self._comparison = comparison
        self._episodes = episodes

    def push(self, observation: Observation | None) -> np.ndarray:
        running = self._episodes.running
        if observation is None:
            return np.full(len(running), np.nan)
        values = margin(self._comparison, observation)
        if np.isnan(values[running]).any():
            raise HandoffError(
                f"specification '{self._episodes.specification}', character {self._comparison.position}: a compared "
                "value is not a number. Was a sensor lost?"
            )
        return np.where(running, values, np.nan)


class _Negation:
    """Robustness of `not`."""

    def __init__(self, of: RobustnessStream) -> None:
        self.delay = of.delay
        self._of = of

    def push(self, observation: Observation | None) -> np.ndarray | None:
        values = self._of.push(observation)
        return None if values is None else -values


class _Both:
    """Robustness of `and` or `or`."""

    def __init__(self, left: RobustnessStream, right: RobustnessStream, kind: str) -> None:
        self._pair = Pair(left, right)
        self.delay = self._pair.delay
        self._combine = np.minimum if kind == "and" else np.maximum

    def push(self, observation: Observation | None) -> np.ndarray | None:
        values = self._pair.push(observation)
        return None if values is None else self._combine(*values)


class _Always:
    """Robustness of `always[start, end]` in steps: a minimum over a sliding window."""

    def __init__(self, of: RobustnessStream, start: int, end: int, episodes: Episodes) -> None:
        self.delay = of.delay + end
        self._of = of
        self._width = end - start + 1
        self._end = end
        self._episodes = episodes
        self._count = 0
        self._window = _SlidingMinimum()

    def push(self, observation: Observation | None) -> np.ndarray | None:
        values = self._of.push(observation)
        if values is None:
            return None
        self._window.append(values)
        if self._count >= self._width:
            self._window.drop()
        step = self._count - self._end
        self._count += 1
        if step < 0:
            return None
        smallest = self._window.minimum()
        # A window in which an episode has no step is satisfied.
        smallest = np.where(np.isnan(smallest), np.inf, smallest)
        return self._episodes.from_step(step, smallest)


class _SlidingMinimum:
    """Minimum of a queue that ignores NaN, in constant time per value on average: the older half
    keeps the minima of its ends, and is filled from the newer one when it is empty."""

    def __init__(self) -> None:
        self._old: list[np.ndarray] = []
        self._new: list[np.ndarray] = []
        self._new_minimum: np.ndarray | None = None

    def append(self, values: np.ndarray) -> None:
        """Adds the newest values (N,)."""
        self._new.append(values)
        least = self._new_minimum
        self._new_minimum = values if least is None else np.fmin(least, values)

    def drop(self) -> None:
        """Removes the oldest values."""
        if not self._old:
            self._old = list(np.fmin.accumulate(np.stack(self._new[::-1])))
            self._new = []
            self._new_minimum = None
        self._old.pop()

    def minimum(self) -> np.ndarray:
        """(N,) smallest values in the queue, which is not empty."""
        if not self._old:
            assert self._new_minimum is not None
            return self._new_minimum
        if self._new_minimum is None:
            return self._old[-1]
        return np.fmin(self._old[-1], self._new_minimum)


class _Until:
    """Robustness of `until[start, end]` in steps."""

    def __init__(self, pair: Pair, start: int, end: int, episodes: Episodes) -> None:
        self.delay = pair.delay + end
        self._pair = pair
        self._start = start
        self._end = end
        self._episodes = episodes
        self._count = 0
        self._window: deque[tuple[np.ndarray, np.ndarray]] = deque(maxlen=end + 1)

    def push(self, observation: Observation | None) -> np.ndarray | None:
        values = self._pair.push(observation)
        if values is None:
            return None
        self._window.append(values)
        step = self._count - self._end
        self._count += 1
        if step < 0:
            return None
        lefts, rights = (np.stack(each) for each in zip(*self._window, strict=True))
        held = np.full_like(lefts, np.inf)
        np.fmin.accumulate(lefts[:-1], out=held[1:])
        # An episode that has ended has no right; one without any is violated.
        reached = np.minimum(rights, held)[self._start :]
        best = np.fmax.reduce(np.where(np.isnan(reached), -np.inf, reached), initial=-np.inf)
        return self._episodes.from_step(step, best)
