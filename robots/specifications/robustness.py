"""Measures by how much a recorded episode meets a formula of signal temporal logic.

The quantitative semantics are those of Fainekos and Pappas (Theoretical Computer Science 410,
2009) and Donze and Maler (FORMATS 2010) in discrete time: a predicate `a < b` has the robustness
`b - a`, `and` and `always` take the smallest, `or` and `eventually` the largest, and `not` changes
the sign. `left until right` holds `left` at the steps before the one of `right`, as Fainekos and
Pappas have it; Donze and Maler include that step. An episode is finite: an interval that reaches
beyond its end has the steps that there are. An interval without any step is satisfied by `always`
(inf) and violated by `eventually` and `until` (-inf).

Shape suffixes: T steps of the episode.
"""

from __future__ import annotations

import numpy as np

from robots.interfaces import Observation
from robots.specifications.formula import (
    Formula,
    Junction,
    Not,
    Predicate,
    Temporal,
)
from robots.specifications.quantities import margin


def robustness(formula: Formula, fields: Observation, rate_hz: float) -> np.ndarray:
    """(T,) robustness of a formula from every step of an episode on; the first entry is that of the
    whole episode. The episode satisfies the formula if it is at least 0.

    Args:
        formula: a resolved formula.
        fields: per field `(T, ...)` the observations, 1 / `rate_hz` s apart.
        rate_hz: observations per second.
    """
    match formula:
        case Predicate():
            return margin(formula, fields)
        case Not():
            return -robustness(formula.of, fields, rate_hz)
        case Junction():
            left = robustness(formula.left, fields, rate_hz)
            right = robustness(formula.right, fields, rate_hz)
            return np.minimum(left, right) if formula.kind == "and" else np.maximum(left, right)
        case Temporal():
            of_T = robustness(formula.of, fields, rate_hz)
            start, end = formula.interval.steps(rate_hz)
            if formula.kind == "always":
                return _smallest(of_T, start, end)
            return -_smallest(-of_T, start, end)
        case _:
            left = robustness(formula.left, fields, rate_hz)
            right = robustness(formula.right, fields, rate_hz)
            return _until(left, right, *formula.interval.steps(rate_hz))


def _smallest(values_T: np.ndarray, start: int, end: int | None) -> np.ndarray:
    """(T,) smallest value from `start` to `end` steps later; inf where there is none."""
    steps = len(values_T)
    shift = min(start, steps)
    if end is None or end >= steps:
        later = np.minimum.accumulate(values_T[::-1])[::-1][shift:]
        return np.concatenate([later, np.full(shift, np.inf)])
    padded = np.concatenate([values_T, np.full(end, np.inf)])
    windows = np.lib.stride_tricks.sliding_window_view(padded, end - start + 1)
    return windows[start : start + steps].min(axis=1)


def _until(left_T: np.ndarray, right_T: np.ndarray, start: int, end: int | None) -> np.ndarray:
    """(T,) largest value of `right` from `start` to `end` steps later, or the smallest of `left`
    before it if that is less; -inf where there is none."""
    steps = len(left_T)
    best_T = np.full(steps, -np.inf)
    held_T = np.full(steps, np.inf)
    last = steps - 1 if end is None else min(end, steps - 1)
    for later in range(last + 1):
        row = slice(0, steps - later)
        if later >= start:
            best_T[row] = np.maximum(best_T[row], np.minimum(right_T[later:], held_T[row]))
        held_T[row] = np.minimum(held_T[row], left_T[later:])
    return best_T
