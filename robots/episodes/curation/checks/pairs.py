"""Summarises an action and the observation that follows it, in one episode."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from robots.episodes.curation.checks.usual_values import Pairing

_LAG_SECONDS = 0.1
"""Time over which motions of action and observation are compared [s]."""
_SHORTEST = 3
"""Smallest number of rows from which moments are computed."""


@dataclass(frozen=True)
class PairSummary:
    """Moments of an action and of the observation that follows it, n entries each."""

    action_mean: np.ndarray
    observation_mean: np.ndarray
    action_variance: np.ndarray
    observation_variance: np.ndarray
    covariance: np.ndarray
    """(n, n) covariances of every action with every observation."""
    correlations: np.ndarray
    """(2 L + 1,) correlation of their motions at the lags -L to L, over all entries."""


def summarise_pair(
    pairing: Pairing, rows: np.ndarray, change: np.ndarray, rate_hz: float, window: int
) -> PairSummary:
    """Summarises an action and the observation that follows it.

    Args:
        pairing: their entries.
        rows: `(T, D)` entries of the stream.
        change: `(T - 1, D)` their changes from step to step.
        rate_hz: steps per second.
        window: largest lag [steps].
    """
    size, lags = len(pairing.action), 2 * window + 1
    if len(rows) < _SHORTEST:
        zero = np.zeros(size)
        return PairSummary(zero, zero, zero, zero, np.zeros((size, size)), np.zeros(lags))
    stride = max(1, round(_LAG_SECONDS * rate_hz))
    action, observation = rows[:, pairing.action], rows[:, pairing.observation]
    if pairing.motion == "difference":
        action, observation = action[:-1], change[:, pairing.observation]
        moved, followed = action, observation
    else:
        # Differences over a tenth of a second have less noise than those of single steps.
        moved = _summed(change[:, pairing.action], stride)
        followed = _summed(change[:, pairing.observation], stride)
    deviation = action - action.mean(axis=0)
    observed = observation - observation.mean(axis=0)
    return PairSummary(
        action_mean=action.mean(axis=0),
        observation_mean=observation.mean(axis=0),
        action_variance=deviation.var(axis=0),
        observation_variance=observed.var(axis=0),
        covariance=deviation.T @ observed / max(len(action), 1),
        correlations=_lagged(moved, followed, window),
    )


def _summed(change: np.ndarray, stride: int) -> np.ndarray:
    """Changes over `stride` steps from those over one step."""
    if stride <= 1 or len(change) <= stride:
        return change
    course = np.concatenate([np.zeros((1, change.shape[1])), np.cumsum(change, axis=0)])
    return course[stride:] - course[:-stride]


def _lagged(first: np.ndarray, second: np.ndarray, window: int) -> np.ndarray:
    """(2 window + 1,) correlation of `first[t]` with `second[t + lag]` for the lags -window to
    window: the mean over the better half of the columns, because joints that rest show only noise.
    It is 0 where fewer than 8 steps, or than 60 %, overlap."""
    first, second = first - first.mean(axis=0), second - second.mean(axis=0)
    correlations = np.zeros((2 * window + 1, first.shape[1]))
    for lag in range(-window, window + 1):
        if len(first) - abs(lag) < max(8.0, 0.6 * len(first)):
            continue
        early = first[: len(first) - lag] if lag >= 0 else first[-lag:]
        late = second[lag:] if lag >= 0 else second[: len(second) + lag]
        norm = np.sqrt((early**2).sum(axis=0) * (late**2).sum(axis=0))
        product = (early * late).sum(axis=0)
        correlations[lag + window] = np.where(norm > 0.0, product / np.maximum(norm, 1e-30), 0.0)
    peaks = correlations.max(axis=0)
    return correlations[:, peaks >= np.median(peaks)].mean(axis=1)
