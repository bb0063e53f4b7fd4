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

from dataclasses import dataclass, field
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


@dataclass
class RewardScale:
    """Divides rewards by the running standard deviation of their discounted sum, as in gymnasium
    and DPPO."""

    discount: float
    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    sums: list[float] = field(default_factory=list)

    def __call__(self, reward_N: Tensor, ended_N: Tensor) -> Tensor:
        """(N,) scaled rewards; `ended_N` (bool) marks rewards that ended their episode."""
        if not self.sums:
            self.sums = [0.0] * len(reward_N)
        sums = torch.tensor(self.sums, dtype=torch.float64) * self.discount + reward_N.double()
        # Batched variance update of Chan, Golub and LeVeque (1979).
        total, gap = self.count + len(sums), float(sums.mean()) - self.mean
        self.squares += (
            float(sums.var(correction=0)) * len(sums) + gap * gap * self.count * len(sums) / total
        )
        self.mean += gap * len(sums) / total
        self.count = total
        self.sums = torch.where(ended_N, torch.zeros_like(sums), sums).tolist()
        deviation = (self.squares / self.count) ** 0.5
        # Equal sums have no deviation to divide by.
        return reward_N / deviation if deviation > 1e-6 * abs(self.mean) else reward_N.clone()
