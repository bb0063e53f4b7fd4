"""Finds the usual ranges of the entries of a stream, and the observation that follows each action,
from a few episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from robots.episodes.curation.checks.layout import StreamLayout

Motion = Literal["position", "difference"]
"""What an action sets: the observed value itself, or its change from one step to the next."""
_MOST_DISCRETE = 5
"""Largest number of distinct values of an entry that switches rather than moves."""
_LEAST_CORRELATION = {"position": 0.5, "difference": 0.3}
"""Smallest correlation of an action with the observation that follows it."""
_MOST_PAIRED = 32
"""Largest number of entries of a pairing."""
_LONGEST_SHIFT = 5
"""Largest lag at which action and observation are compared to find the pairing [steps]."""


@dataclass(frozen=True)
class Pairing:
    """Entries of an action, and the entries of the observation that follow them."""

    action: np.ndarray
    """(n,) numbers of the action's entries."""
    observation: np.ndarray
    """(n,) numbers of the observation's entries."""
    motion: Motion


@dataclass(frozen=True)
class StreamProfile:
    """Usual figures of the D entries of a stream."""

    scale: np.ndarray
    """(D,) median over episodes of the range of an entry; 0 if it never varies."""
    noise: np.ndarray
    """(D,) standard deviation of the noise from step to step."""
    discrete: np.ndarray
    """(D,) bool: entries that switch between few values."""
    pairings: tuple[Pairing, ...]

    @property
    def motion_floor(self) -> np.ndarray:
        """(D,) six times the noise, as a share of the range; infinite if the entry never varies."""
        safe = np.where(self.scale > 0.0, self.scale, 1.0)
        return np.where(self.scale > 0.0, 6.0 * self.noise / safe, np.inf)

    def partner(self, entry: int) -> int | None:
        """The entry that is paired with `entry`; None if there is none."""
        for pairing in self.pairings:
            for one, other in (
                (pairing.action, pairing.observation),
                (pairing.observation, pairing.action),
            ):
                found = np.flatnonzero(one == entry)
                if len(found):
                    return int(other[found[0]])
        return None


def stream_profile(layout: StreamLayout, episodes: Sequence[np.ndarray]) -> StreamProfile:
    """The profile of a stream.

    Args:
        layout: fields of the stream.
        episodes: rows `(T, D)` of some episodes.
    """
    size = len(layout.labels)
    if not episodes or size == 0:
        return StreamProfile(np.zeros(size), np.zeros(size), np.zeros(size, bool), ())
    spans = np.stack([rows.max(axis=0) - rows.min(axis=0) for rows in episodes])
    scale = np.median(spans, axis=0)
    scale = np.where(scale > 0.0, scale, spans.max(axis=0))
    noise = np.median(np.stack([_noise(rows) for rows in episodes]), axis=0)
    pooled = np.concatenate(episodes)
    discrete = np.array([len(np.unique(pooled[:, i])) <= _MOST_DISCRETE for i in range(size)], bool)
    return StreamProfile(scale, noise, discrete, tuple(_pairings(layout, episodes)))


def _noise(rows: np.ndarray) -> np.ndarray:
    """(D,) standard deviation of white noise on smooth values, from third differences."""
    if len(rows) < 8:
        return np.zeros(rows.shape[1])
    third = np.diff(rows, n=3, axis=0)
    return np.median(np.abs(third), axis=0) / (0.6745 * np.sqrt(20.0))


class _Run(NamedTuple):
    """Neighbouring entries of an action, and as many of an observation."""

    score: float
    """Sum of their correlations."""
    start: int
    """First entry of the action."""
    shift: int
    """First entry of the observation, counted from that of the action."""
    length: int
    first: int
    """Number of the first entry of the observation's field."""
    motion: Motion


def _pairings(layout: StreamLayout, episodes: Sequence[np.ndarray]) -> list[Pairing]:
    """Pairings of every action with the observations that it correlates with best."""
    found: list[Pairing] = []
    motions: tuple[Motion, ...] = ("position", "difference")
    for action in (field for field in layout.states if field.role == "action"):
        free = np.ones(len(action.labels), bool)
        observed = {field.first: np.ones(len(field.labels), bool) for field in layout.states}
        correlations: list[tuple[Motion, int, np.ndarray]] = [
            (motion, field.first, _correlations(episodes, action.entries, field.entries, motion))
            for field in layout.states
            if field.role == "observation"
            for motion in motions
        ]
        while free.any() and correlations:
            runs = [
                _best_run(matrix, (free, observed[first]), motion, first)
                for motion, first, matrix in correlations
            ]
            best = max(runs, key=lambda run: run.score)
            if best.score <= 0.0:
                break
            entries = np.arange(best.start, best.start + best.length)
            free[entries] = False
            observed[best.first][best.shift + entries] = False
            pairing = Pairing(
                action.first + entries, best.first + best.shift + entries, best.motion
            )
            if _credible(layout, pairing, len(action.labels)):
                found.append(pairing)
    return found


def _credible(layout: StreamLayout, pairing: Pairing, action_size: int) -> bool:
    """Whether a pairing is no coincidence: a single entry of a larger action must be a gripper's in
    both fields."""
    if len(pairing.action) > 1 or action_size == 1:
        return True
    gripper = layout.is_gripper
    return bool(gripper[pairing.action[0]] and gripper[pairing.observation[0]])


def _correlations(
    episodes: Sequence[np.ndarray], action: slice, observation: slice, motion: Motion
) -> np.ndarray:
    """(A, O) median over episodes of the correlation of an action with the observation after it, at
    the lag of up to 5 steps with the best mean of the best entries."""
    shifts: list[list[np.ndarray]] = [[] for _ in range(_LONGEST_SHIFT + 1)]
    for rows in episodes:
        acted, observed = rows[:, action], rows[:, observation]
        if motion == "difference":
            observed = np.diff(observed, axis=0)
        for shift, matrices in enumerate(shifts):
            length = min(len(acted), len(observed) - shift)
            if length >= 8:
                matrices.append(correlation(acted[:length], observed[shift : shift + length]))
    medians = [
        np.nan_to_num(np.median(np.stack(matrices), axis=0)) for matrices in shifts if matrices
    ]
    if not medians:
        return np.zeros((action.stop - action.start, observation.stop - observation.start))
    return max(medians, key=lambda matrix: matrix.max(axis=1).mean())


def correlation(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(A, O) correlations of the columns of `(T, A)` with those of `(T, O)`; 0 for constant
    columns."""
    first, second = first - first.mean(axis=0), second - second.mean(axis=0)
    norm = np.sqrt(np.outer((first**2).sum(axis=0), (second**2).sum(axis=0)))
    return np.where(norm > 1e-12, first.T @ second / np.where(norm > 1e-12, norm, 1.0), 0.0)


def _best_run(
    matrix: np.ndarray, free: tuple[np.ndarray, np.ndarray], motion: Motion, first: int
) -> _Run:
    """The run of neighbouring entries of the action that correlate best with as many neighbouring
    entries of the observation; `free` are the entries of both that are not paired yet."""
    best = _Run(0.0, 0, 0, 0, first, motion)
    actions, observed = matrix.shape
    for shift in range(1 - actions, observed):
        start, length = 0, 0
        total = 0.0
        for i in range(max(0, -shift), min(actions, observed - shift)):
            value = float(matrix[i, i + shift])
            # A dead entry does not interrupt a run, because its neighbours tell what it should be.
            dead = value == 0.0 and length > 0
            unpaired = free[0][i] and free[1][i + shift]
            fits = unpaired and (value >= _LEAST_CORRELATION[motion] or dead)
            if not fits or length == _MOST_PAIRED:
                total, length = 0.0, 0
                continue
            start = i if length == 0 else start
            total, length = total + value, length + 1
            if total > best.score or (dead and total == best.score and start == best.start):
                best = _Run(total, start, shift, length, first, motion)
    return best
