"""Holds a rollout: decisions as they were made, and rows with advantages that a learner takes.

A decision may be a chunk of H actions of A entries. If an actor has a log-probability for every
entry, ratios can be formed at three levels (RLinf, arXiv 2510.06710): `token` per entry, `action`
per action, `chunk` per decision. Log-probabilities of a finer level add up to those of a coarser
one. Values and advantages belong to decisions, or to the actions within them, and apply to all
finer units. Actions that were not executed, because the episode ended, count nowhere.

Shape suffixes: T decisions, N environments, K denoising steps, R rows of decisions (T * N), H
actions of a chunk, A entries of an action, U units with a log-probability each, V values of a
decision.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from policies.rl.on_policy.config import LogProbLevel
from robots.errors import HandoffError

Trace = dict[str, Tensor]
"""Tensors from which an actor recomputes the log-probability of its decisions; every entry is
(R, K, ...)."""


class Costs(NamedTuple):
    """Costs of T decisions in N environments, and their values."""

    cost_TN: Tensor
    value_TN: Tensor
    """The critic's second value."""
    next_value_TN: Tensor


class Rollout(NamedTuple):
    """T decisions in N environments."""

    obs: Any
    """(T, N, ...) observations before the decisions: a tensor, or a TensorDict of several
    fields."""
    trace: Trace
    """Every entry is (T, N, K, ...)."""
    log_prob_TNK: Tensor
    """(T, N, K), or (T, N, K, U) of an actor with several log-probabilities per step."""
    reward_TN: Tensor
    """For a chunk, the discounted sum over the executed actions."""
    value_TN: Tensor
    next_value_TN: Tensor
    """Values of the true observations after the decisions."""
    terminated_TN: Tensor
    truncated_TN: Tensor
    discount_TN: Tensor
    """g^length for the executed length."""
    first_row: int = 0
    """Index of this worker's first environment in the rollout of all workers."""
    num_envs: int = 0
    """N over all workers; 0 if there is one worker."""
    costs: Costs | None = None
    """Costs under a constraint; None without one."""


class WorkerShard(NamedTuple):
    """The rows of one worker within the table of all workers: some environments, at all
    decisions."""

    decisions: int
    """T, decisions per environment."""
    num_envs_here: int
    """N of this worker."""
    num_envs: int
    """N of all workers."""
    first: int
    """Index of this worker's first environment."""


class Table(NamedTuple):
    """A rollout as R rows with advantages."""

    obs: Any
    trace: Trace
    log_prob_RKU: Tensor
    """Log-probabilities under the policy that acted."""
    advantage_RU: Tensor
    """Advantages; a single column applies to all units."""
    shard: WorkerShard
    valid_RU: Tensor | None = None
    """bool, units that count; None counts all."""
    target_RV: Tensor | None = None
    """Value targets; None without a critic."""
    old_value_RV: Tensor | None = None
    """Values at the time of the rollout; None without a critic."""
    valued_RV: Tensor | None = None
    """bool, values that count; None counts all."""


class UnitLogProbs(NamedTuple):
    """Log-probabilities at one level, and a mask of those that count."""

    log_prob_RU: Tensor
    valid_RU: Tensor


def to_level(
    log_prob_RHA: Tensor, executed_RH: Tensor, log_prob_level: LogProbLevel
) -> UnitLogProbs:
    """Sums log-probabilities of entries to those of a level.

    Args:
        log_prob_RHA: log-probability of every entry.
        executed_RH: bool, actions that were executed.
        log_prob_level: see the module.
    """
    match log_prob_level:
        case "token":
            return UnitLogProbs(
                log_prob_RHA.flatten(1), executed_RH.repeat_interleave(log_prob_RHA.shape[2], dim=1)
            )
        case "action":
            return UnitLogProbs(log_prob_RHA.sum(dim=2), executed_RH)
        case "chunk":
            held_RH = torch.where(executed_RH, log_prob_RHA.sum(dim=2), 0.0)
            return UnitLogProbs(
                held_RH.sum(dim=1, keepdim=True), executed_RH.any(dim=1, keepdim=True)
            )


def expand_to_units(coarse_RV: Tensor, units: int) -> Tensor:
    """Repeats values of actions or decisions (R, V) for all units within them (R, U).

    Raises:
        HandoffError: the units are coarser than the values.
    """
    values = coarse_RV.shape[1]
    if units % values:
        raise HandoffError(
            f"finetune: {values} advantages per decision do not fit its {units} log-probabilities. With "
            "values: action, set log_prob_level to action or token, not chunk."
        )
    return coarse_RV if values == 1 else coarse_RV.repeat_interleave(units // values, dim=1)


class RewardScale:
    """Divides rewards by the running standard deviation of their discounted sum, as in gymnasium
    and DPPO. Its state stays on the device of the rewards.

    Args:
        discount: discount per reward.
    """

    def __init__(self, discount: float) -> None:
        self._discount = discount
        self._count = 0.0
        self._mean = torch.zeros((), dtype=torch.float64)
        self._squares = torch.zeros((), dtype=torch.float64)
        self._sums_N: Tensor | None = None

    def __call__(self, reward_N: Tensor, ended_N: Tensor) -> Tensor:
        """(N,) scaled rewards; `ended_N` (bool) marks rewards that ended their episode."""
        reward = reward_N.double()
        previous_N = torch.zeros_like(reward) if self._sums_N is None else self._sums_N
        sums_N = previous_N.to(reward.device) * self._discount + reward
        # Batched variance update of Chan, Golub and LeVeque (1979).
        count, rows = self._count, len(sums_N)
        total, gap = count + rows, sums_N.mean() - self._mean
        self._squares = self._squares + (
            sums_N.var(correction=0) * rows + gap * gap * count * rows / total
        )
        self._mean = self._mean + gap * rows / total
        self._count = total
        self._sums_N = torch.where(ended_N, 0.0, sums_N)
        deviation = (self._squares / total).sqrt()
        # Equal sums have no deviation to divide by.
        return torch.where(deviation > 1e-6 * self._mean.abs(), reward_N / deviation, reward_N)

    def restart(self) -> None:
        """Drops the sums of the running episodes, which are abandoned."""
        self._sums_N = None

    def state_dict(self) -> dict[str, Any]:
        """Complete state, in plain values; waits for the device."""
        return {
            "count": self._count,
            "mean": self._mean.item(),
            "squares": self._squares.item(),
            "sums": [] if self._sums_N is None else self._sums_N.tolist(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        self._count = state["count"]
        self._mean = torch.tensor(state["mean"], dtype=torch.float64)
        self._squares = torch.tensor(state["squares"], dtype=torch.float64)
        sums = state["sums"]
        self._sums_N = torch.tensor(sums, dtype=torch.float64) if sums else None
