"""Trajectories that ended well are drawn more often (Hong et al., "Harnessing mixed offline
reinforcement learning datasets via trajectory weighting", ICLR 2023). A sampler: no loss changes.

A trajectory's weight is softmax(norm(R - V(s0)) / T): R its return, V a linear regression of
returns on first observations, norm the map of the smallest to 0 and the largest to 1. It is spread
evenly over the trajectory's steps; the released code gives it to every step instead, which favours
long trajectories (`spread` "step"). For returns alone (`kind` "rw") that code normalises the
weights after the softmax; here the returns are normalised before it, as for the advantages.

Shape suffixes: M trajectories, O observation, S slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from robots.config import config
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.rl.replay.buffer import Replay


@config
class TrajectoryWeightingConfig:
    """Which trajectories are drawn more often."""

    kind: Literal["aw", "rw", "top", "uniform"] = "aw"
    """`aw` by how much better than expected from their start, `rw` by their return, `top` only the
    best ones, all steps of those alike; `uniform` all steps alike."""
    temperature: float = 0.1
    """T, on the scale where the worst trajectory has 0 and the best 1 [C]."""
    top_share: float = 0.1
    """Share of the trajectories that `top` keeps, at least one. 0.1 in the paper's comparison
    [P]."""
    spread: Literal["trajectory", "step"] = "trajectory"
    """Whether a trajectory's weight is shared by its steps, or each of them has it [C]."""


class Trajectories(NamedTuple):
    """What a replay's slots tell of whole trajectories."""

    of_S: np.ndarray
    """(S,) int64: the trajectory of every slot, from 0."""
    length_M: np.ndarray
    """(M,) int64 steps."""
    return_M: np.ndarray
    """(M,) float64: undiscounted sum of rewards [C]."""
    first_MO: np.ndarray
    """(M, O) float64: observation of the earliest step that is still stored."""


def trajectories(replay: Replay) -> Trajectories:
    """Steps of one episode number make one trajectory, in whatever order they lie in the ring.

    Raises:
        HandoffError: nothing is stored.
    """
    size = len(replay)
    if not size:
        raise HandoffError(
            "trajectory weighting: the replay is empty, at least 1 step is expected. Load data first."
        )
    columns = {
        name: replay.columns[name][:size] for name in ("episode", "number", "reward", "observation")
    }
    _, of_S = np.unique(columns["episode"], return_inverse=True)
    length_M = np.bincount(of_S)
    order_S = np.lexsort((columns["number"], of_S))
    first_M = order_S[np.cumsum(length_M) - length_M]
    return_M = np.bincount(of_S, weights=columns["reward"])
    return Trajectories(
        of_S, length_M, return_M, columns["observation"][first_M].astype(np.float64)
    )


def trajectory_probability(replay: Replay, config: TrajectoryWeightingConfig) -> np.ndarray:
    """`(len(replay),)` probability of every slot, for `Replay.sample`; sums to 1. Stays right until
    steps are added.

    Raises:
        HandoffError: nothing is stored; a temperature or share that is none; too few trajectories
            for the regression.
    """
    if config.temperature <= 0.0 or not 0.0 < config.top_share <= 1.0:
        raise HandoffError(
            f"trajectory weighting: temperature {config.temperature} and top_share {config.top_share}, expected "
            "above 0 and in (0, 1]. A percentage instead of a share?"
        )
    found = trajectories(replay)
    match config.kind:
        case "uniform":
            step_S = np.ones(len(found.of_S))
        case "top":
            step_S = _best(found.return_M, config.top_share)[found.of_S].astype(np.float64)
        case "aw" | "rw":
            score_M = (
                found.return_M - expected_return(found) if config.kind == "aw" else found.return_M
            )
            weight_M = _softmax(min_max_scaled(score_M) / config.temperature)
            step_S = (weight_M / found.length_M if config.spread == "trajectory" else weight_M)[
                found.of_S
            ]
    return step_S / step_S.sum()


def expected_return(found: Trajectories) -> np.ndarray:
    """(M,): return expected from the first observation, by least squares with an intercept.

    Raises:
        HandoffError: as few trajectories as coefficients: it would fit each of them, and no weight
            would differ.
    """
    rows, entries = found.first_MO.shape
    if rows <= entries + 1:
        raise HandoffError(
            f"trajectory weighting: {rows} trajectories for a regression of {entries + 1} coefficients, expected more. "
            "Weight by returns alone (kind rw)."
        )
    spread_O = found.first_MO.std(axis=0)
    inputs_MO = (found.first_MO - found.first_MO.mean(axis=0)) / np.where(
        spread_O > 1e-9, spread_O, 1.0
    )
    inputs_MF = np.concatenate([inputs_MO, np.ones((rows, 1))], axis=1)
    coefficient_F, *_ = np.linalg.lstsq(inputs_MF, found.return_M, rcond=None)
    return inputs_MF @ coefficient_F


def min_max_scaled(score_M: np.ndarray) -> np.ndarray:
    """(M,): the smallest becomes 0, the largest 1; all 0 where none differs by more than
    rounding."""
    span = float(np.ptp(score_M))
    if span <= 1e-9 * max(1.0, float(np.abs(score_M).max())):
        return np.zeros_like(score_M)
    return (score_M - score_M.min()) / span


def _best(return_M: np.ndarray, share: float) -> np.ndarray:
    """(M,) bool: the trajectories of the largest returns; of equal ones those that came first."""
    kept = max(1, round(share * len(return_M)))
    best_M = np.zeros(len(return_M), bool)
    best_M[np.argsort(-return_M, kind="stable")[:kept]] = True
    return best_M


def _softmax(score_M: np.ndarray) -> np.ndarray:
    weight_M = np.exp(score_M - score_M.max())
    return weight_M / weight_M.sum()
