"""Computes sampling weights that favour trajectories with high returns (Hong et al., "Harnessing
mixed offline reinforcement learning datasets via trajectory weighting", ICLR 2023). Losses do not
change.

The weight of a trajectory is softmax(norm(R - V(s0)) / T), where R is its return, V a linear
regression of returns on first observations, and norm maps the smallest value to 0 and the largest
to 1. The weight is divided evenly among the steps of the trajectory; the released code gives the
full weight to every step, which favours long trajectories (`spread` "step"). For weights from
returns only (`kind` "rw") that code normalises the weights after the softmax; here the returns are
normalised before it, as the advantages are.

Shape suffixes: M trajectories, O observation, S slots.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from robots.config import Positive, PositiveShare, config
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.rl.replay.buffer import Replay


@config
class TrajectoryWeightingConfig:
    """Options of trajectory weighting; [C] is the released code, [P] the paper."""

    kind: Literal["aw", "rw", "top", "uniform"] = "aw"
    """Weighting: `aw` by the advantage over the return expected from the first observation, `rw` by
    the return, `top` uniform over the steps of the best trajectories, `uniform` over all steps."""
    temperature: Positive = 0.1
    """Temperature T, on the scale where the worst trajectory has 0 and the best 1 [C]."""
    top_share: PositiveShare = 0.1
    """Fraction of the trajectories that `top` keeps, at least one trajectory; 0.1 in the paper's
    comparison [P]."""
    spread: Literal["trajectory", "step"] = "trajectory"
    """Distribution of a trajectory's weight: divided among its steps, or the full weight for each
    step [C]."""


class Trajectories(NamedTuple):
    """Trajectories in the slots of a replay."""

    trajectory_S: np.ndarray
    """Index of the trajectory of each slot, (S,) int64."""
    length_M: np.ndarray
    """Length of each trajectory [steps], (M,) int64."""
    return_M: np.ndarray
    """Undiscounted return of each trajectory [C], (M,) float64."""
    first_obs_MO: np.ndarray
    """Observation of the earliest stored step of each trajectory, (M, O) float64."""


def trajectories(replay: Replay) -> Trajectories:
    """Groups the steps of a replay by episode number, in any order of storage.

    Raises:
        HandoffError: the replay is empty.
    """
    size = len(replay)
    if not size:
        raise HandoffError(
            "trajectory weighting: the replay is empty, expected at least 1 step. Load data first."
        )
    columns = {
        name: replay.columns[name][:size] for name in ("episode", "number", "reward", "observation")
    }
    _, trajectory_S = np.unique(columns["episode"], return_inverse=True)
    length_M = np.bincount(trajectory_S)
    order_S = np.lexsort((columns["number"], trajectory_S))
    first_M = order_S[np.cumsum(length_M) - length_M]
    return_M = np.bincount(trajectory_S, weights=columns["reward"])
    return Trajectories(
        trajectory_S, length_M, return_M, columns["observation"][first_M].astype(np.float64)
    )


def trajectory_probability(replay: Replay, config: TrajectoryWeightingConfig) -> np.ndarray:
    """Sampling probability of each slot for `Replay.sample`, `(len(replay),)`, sum 1. It is valid
    until steps are added.

    Raises:
        HandoffError: the replay is empty, `temperature` or `top_share` is out of range, or there
            are too few trajectories for the regression.
    """
    if config.temperature <= 0.0 or not 0.0 < config.top_share <= 1.0:
        raise HandoffError(
            f"trajectory weighting: temperature {config.temperature} and top_share {config.top_share}, expected "
            "above 0 and in (0, 1]. Is top_share a percentage instead of a fraction?"
        )
    data = trajectories(replay)
    match config.kind:
        case "uniform":
            step_S = np.ones(len(data.trajectory_S))
        case "top":
            step_S = _best(data.return_M, config.top_share)[data.trajectory_S].astype(np.float64)
        case "aw" | "rw":
            score_M = (
                data.return_M - expected_return(data) if config.kind == "aw" else data.return_M
            )
            weight_M = _softmax(min_max_scaled(score_M) / config.temperature)
            step_S = (weight_M / data.length_M if config.spread == "trajectory" else weight_M)[
                data.trajectory_S
            ]
    return step_S / step_S.sum()


def expected_return(data: Trajectories) -> np.ndarray:
    """(M,) returns expected from the first observations, by least squares with an intercept.

    Raises:
        HandoffError: there are no more trajectories than coefficients, so the regression would fit
            each of them exactly and all weights would be equal.
    """
    rows, entries = data.first_obs_MO.shape
    if rows <= entries + 1:
        raise HandoffError(
            f"trajectory weighting: {rows} trajectories for a regression with {entries + 1} coefficients, "
            "expected more "
            "trajectories. Use weights from returns only (kind rw)."
        )
    spread_O = data.first_obs_MO.std(axis=0)
    inputs_MO = (data.first_obs_MO - data.first_obs_MO.mean(axis=0)) / np.where(
        spread_O > 1e-9, spread_O, 1.0
    )
    inputs_MF = np.concatenate([inputs_MO, np.ones((rows, 1))], axis=1)
    coefficient_F, *_ = np.linalg.lstsq(inputs_MF, data.return_M, rcond=None)
    return inputs_MF @ coefficient_F


def min_max_scaled(score_M: np.ndarray) -> np.ndarray:
    """(M,) scores scaled from 0 (smallest) to 1 (largest); all 0 if they are equal up to
    rounding."""
    span = float(np.ptp(score_M))
    if span <= 1e-9 * max(1.0, float(np.abs(score_M).max())):
        return np.zeros_like(score_M)
    return (score_M - score_M.min()) / span


def _best(return_M: np.ndarray, share: float) -> np.ndarray:
    """(M,) bool mask of the trajectories with the largest returns; ties go to the earlier ones."""
    count = max(1, round(share * len(return_M)))
    best_M = np.zeros(len(return_M), bool)
    best_M[np.argsort(-return_M, kind="stable")[:count]] = True
    return best_M


def _softmax(score_M: np.ndarray) -> np.ndarray:
    weight_M = np.exp(score_M - score_M.max())
    return weight_M / weight_M.sum()
