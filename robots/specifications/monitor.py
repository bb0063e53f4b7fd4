"""Measures by how much running episodes meet a formula of signal temporal logic, step by step.

Memory does not grow with the episode: operators at the beginning of the formula keep one number per
robot, those inside others the values of their interval (`robots.specifications.streams`). An
operator without an end inside another one keeps the values of the longest episode.

Shape suffixes: N robots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, Protocol

import numpy as np

from robots.interfaces import Observation
from robots.spec import FieldSpec
from robots.specifications.formula import (
    Formula,
    Junction,
    Not,
    Predicate,
    Temporal,
    Until,
)
from robots.specifications.parser import parse
from robots.specifications.quantities import resolve
from robots.specifications.streams import Episodes, Pair, RobustnessStream, make_stream


class Bounds(NamedTuple):
    """Robustness that an episode may still have, whatever follows."""

    low: np.ndarray
    """(N,) smallest."""
    high: np.ndarray
    """(N,) largest; below 0 the specification can no longer be satisfied."""


class SpecificationMonitor:
    """Robustness of one specification in N episodes that begin together.

    Args:
        text: the formula.
        name: name of the specification, for messages.
        spec: observed fields.
        rate_hz: observations per second.
        max_steps: largest number of actions of an episode, which has one more observation.
        robots: number of episodes, N.

    Raises:
        HandoffError: not a formula, or one that does not fit the fields or the rate.
    """

    def __init__(
        self,
        text: str,
        name: str,
        spec: Mapping[str, FieldSpec],
        *,
        rate_hz: float,
        max_steps: int,
        robots: int = 1,
    ) -> None:
        self._formula = resolve(parse(text, name), spec, rate_hz, name)
        self._name = name
        self._rate_hz = rate_hz
        self._longest = max_steps + 1
        self._robots = robots
        self.reset()

    def reset(self) -> None:
        """Begins new episodes."""
        self._episodes = Episodes(self._name, self._robots)
        self._head = _make_head(self._formula, self._rate_hz, self._longest, self._episodes)

    def update(self, observation: Observation, running: np.ndarray | None = None) -> Bounds:
        """Processes an observation.

        Args:
            observation: per field `(N, ...)`.
            running: (N,) bool, the episodes to which it belongs; all by default. An episode that
                has ended stays so.

        Raises:
            HandoffError: a value of the formula is not a number.
        """
        all_N = np.ones(self._robots, dtype=bool)
        self._episodes.advance(all_N if running is None else running)
        self._head.push(observation)
        return self._head.bounds()

    def finish(self) -> np.ndarray:
        """(N,) robustness of the episodes, which have all ended: inf or -inf where no step decides;
        at least 0 where the specification is satisfied."""
        self._episodes.advance(np.zeros(self._robots, dtype=bool))
        for _ in range(self._head.delay):
            self._head.push(None)
        return self._head.final()


class SpecificationMonitors:
    """Robustness of several specifications in N episodes that begin together.

    Args:
        specifications: formulas by name.
        spec: observed fields.
        rate_hz: observations per second.
        max_steps: largest number of actions of an episode.
        robots: number of episodes, N.

    Raises:
        HandoffError: not a formula, or one that does not fit the fields or the rate.
    """

    def __init__(
        self,
        specifications: Mapping[str, str],
        spec: Mapping[str, FieldSpec],
        *,
        rate_hz: float,
        max_steps: int,
        robots: int = 1,
    ) -> None:
        self._robots = robots
        self._monitors = {
            name: SpecificationMonitor(
                text, name, spec, rate_hz=rate_hz, max_steps=max_steps, robots=robots
            )
            for name, text in specifications.items()
        }

    def reset(self) -> None:
        """Begins new episodes."""
        for monitor in self._monitors.values():
            monitor.reset()

    def update(
        self, observation: Observation, running: np.ndarray | None = None
    ) -> dict[str, Bounds]:
        """Processes an observation, see `SpecificationMonitor.update`; returns bounds by name."""
        return {
            name: monitor.update(observation, running) for name, monitor in self._monitors.items()
        }

    def finish(self) -> list[dict[str, float]]:
        """N robustnesses by name, see `SpecificationMonitor.finish`."""
        final = {name: monitor.finish() for name, monitor in self._monitors.items()}
        return [
            {name: float(values[i]) for name, values in final.items()} for i in range(self._robots)
        ]


class _Head(Protocol):
    """Robustness of a formula from the first step on."""

    delay: int
    """Number of steps after the last observation until the value is final."""

    def push(self, observation: Observation | None) -> None:
        """Processes an observation; None after the last one."""
        ...

    def bounds(self) -> Bounds:
        """Values that are still possible."""
        ...

    def final(self) -> np.ndarray:
        """(N,) value after the last observation and `delay` times None."""
        ...


def _make_head(formula: Formula, rate_hz: float, longest: int, episodes: Episodes) -> _Head:
    match formula:
        case Predicate():
            return _First(make_stream(formula, rate_hz, longest, episodes), 0, 0, episodes)
        case Not():
            return _Opposite(_make_head(formula.of, rate_hz, longest, episodes))
        case Junction():
            left = _make_head(formula.left, rate_hz, longest, episodes)
            right = _make_head(formula.right, rate_hz, longest, episodes)
            return _Combined(left, right, formula.kind)
        case Temporal():
            of = formula.of if formula.kind == "always" else Not(formula.of, formula.position)
            stream = make_stream(of, rate_hz, longest, episodes)
            head = _First(stream, *formula.interval.steps(rate_hz), episodes)
            return head if formula.kind == "always" else _Opposite(head)
        case Until():
            left = make_stream(formula.left, rate_hz, longest, episodes)
            right = make_stream(formula.right, rate_hz, longest, episodes)
            return _FirstUntil(Pair(left, right), *formula.interval.steps(rate_hz), episodes)


class _First:
    """Smallest value of a stream from the step `start` to the step `end`."""

    def __init__(
        self, of: RobustnessStream, start: int, end: int | None, episodes: Episodes
    ) -> None:
        self.delay = of.delay
        self._of = of
        self._start = start
        self._end = np.inf if end is None else end
        self._count = 0
        self._smallest = np.full(len(episodes.length), np.inf)

    def push(self, observation: Observation | None) -> None:
        values = self._of.push(observation)
        if values is None:
            return
        if self._start <= self._count <= self._end:
            self._smallest = np.fmin(self._smallest, values)
        self._count += 1

    def bounds(self) -> Bounds:
        if self._count > self._end:
            return Bounds(self._smallest, self._smallest)
        return Bounds(np.full_like(self._smallest, -np.inf), self._smallest)

    def final(self) -> np.ndarray:
        return self._smallest


class _FirstUntil:
    """Largest value of `right` from the step `start` to the step `end`, or the smallest of `left`
    before it if that is less."""

    def __init__(self, pair: Pair, start: int, end: int | None, episodes: Episodes) -> None:
        self.delay = pair.delay
        self._pair = pair
        self._start = start
        self._end = np.inf if end is None else end
        self._count = 0
        self._best = np.full(len(episodes.length), -np.inf)
        self._held = np.full(len(episodes.length), np.inf)

    def push(self, observation: Observation | None) -> None:
        values = self._pair.push(observation)
        if values is None:
            return
        left, right = values
        if self._start <= self._count <= self._end:
            self._best = np.fmax(self._best, np.minimum(right, self._held))
        self._held = np.fmin(self._held, left)
        self._count += 1

    def bounds(self) -> Bounds:
        if self._count > self._end:
            return Bounds(self._best, self._best)
        return Bounds(self._best, np.maximum(self._best, self._held))

    def final(self) -> np.ndarray:
        return self._best


class _Opposite:
    """Robustness of `not`."""

    def __init__(self, of: _Head) -> None:
        self.delay = of.delay
        self._of = of

    def push(self, observation: Observation | None) -> None:
        self._of.push(observation)

    def bounds(self) -> Bounds:
        low, high = self._of.bounds()
        return Bounds(-high, -low)

    def final(self) -> np.ndarray:
        return -self._of.final()


class _Combined:
    """Robustness of `and` or `or`."""

    def __init__(self, left: _Head, right: _Head, kind: str) -> None:
        self.delay = max(left.delay, right.delay)
        self._left = left
        self._right = right
        self._combine = np.minimum if kind == "and" else np.maximum

    def push(self, observation: Observation | None) -> None:
        self._left.push(observation)
        self._right.push(observation)

    def bounds(self) -> Bounds:
        left, right = self._left.bounds(), self._right.bounds()
        return Bounds(self._combine(left.low, right.low), self._combine(left.high, right.high))

    def final(self) -> np.ndarray:
        return self._combine(self._left.final(), self._right.final())
