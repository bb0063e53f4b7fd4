"""Holds a rollout, from the decisions as they were made to the rows that are learned from.

A decision may be a chunk of H actions of A entries. Where an actor tells how likely every entry
was, three levels are to choose from (RLinf, arXiv 2510.06710): `token` takes a ratio per entry,
`action` per action, `chunk` per decision; the log-probabilities of a finer level add up to those of
a coarser one. Values and advantages are those of decisions, or of the actions within them, and hold
for all that is finer. What was not executed, because the world ended, counts nowhere.

Shape suffixes: T decisions, N worlds, K parts, R rows of decisions (T * N), H actions of a chunk, A
entries of an action, U units that have a log-probability of their own, V values of a decision.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from policies.rl.on_policy.config import Level
from robots.errors import HandoffError

Trace = dict[str, Tensor]
"""What an actor keeps of its decisions to say later how likely they were; every entry (R, K,
...)."""


class Costs(NamedTuple):
    """What T decisions in N worlds cost, apart from their reward."""

    cost_TN: Tensor
    value_TN: Tensor
    """The critic's second value."""
    next_value_TN: Tensor


class Rollout(NamedTuple):
    """T decisions in N worlds."""

    seen: Any
    """(T, N, ...) what was decided upon: a tensor, or a TensorDict of several."""
    parts: Trace
    """Each (T, N, K, ...)."""
    log_prob_TNK: Tensor
    reward_TN: Tensor
    """Of a chunk the discounted sum of what was executed."""
    value_TN: Tensor
    next_value_TN: Tensor
    """Of the true observations after the decisions."""
    terminated_TN: Tensor
    truncated_TN: Tensor
    discount_TN: Tensor
    """g^length of what was executed."""
    first_row: int = 0
    """Number of this worker's first world in the rollout of all workers."""
    worlds: int = 0
    """N of all workers; 0: those here are all."""
    costs: Costs | None = None
    """Where there is something to be avoided."""


class Shares(NamedTuple):
    """Which rows of the table of all workers stand here: those of some worlds, at every
    decision."""

    decisions: int
    """T."""
    here: int
    """N of this worker."""
    worlds: int
    """N of all workers."""
    first: int
    """Number of this worker's first world."""


class Table(NamedTuple):
    """A rollout as R decisions in a row, with advantages."""

    seen: Any
    trace: Trace
    log_prob_RKU: Tensor
    """Under the policy that acted."""
    advantage_RU: Tensor
    """One column stands for all units."""
    shares: Shares
    valid_RU: Tensor | None = None
    """bool, units that count; None: all."""
    target_RV: Tensor | None = None
    """Of the values; None where nothing is valued."""
    before_RV: Tensor | None = None
    """Likewise, as the values were in the rollout."""
    valued_RV: Tensor | None = None
    """bool, values that count; None: all."""


class Units(NamedTuple):
    """Log-probabilities of a level, and which of them count."""

    log_prob_RU: Tensor
    valid_RU: Tensor


def to_level(log_prob_RHA: Tensor, executed_RH: Tensor, level: Level) -> Units:
    """Log-probabilities of every entry as those of a level.

    Args:
        log_prob_RHA: of every entry.
        executed_RH: bool, actions that were.
        level: see the module.
    """
    match level:
        case "token":
            return Units(
                log_prob_RHA.flatten(1), executed_RH.repeat_interleave(log_prob_RHA.shape[2], dim=1)
            )
        case "action":
            return Units(log_prob_RHA.sum(dim=2), executed_RH)
        case "chunk":
            held_RH = torch.where(executed_RH, log_prob_RHA.sum(dim=2), 0.0)
            return Units(held_RH.sum(dim=1, keepdim=True), executed_RH.any(dim=1, keepdim=True))


def spread(coarse_RV: Tensor, units: int) -> Tensor:
    """(R, U) of (R, V): what holds for an action or a decision holds for all units within it.

    Raises:
        HandoffError: the units are the coarser ones.
    """
    values = coarse_RV.shape[1]
    if units % values:
        raise HandoffError(
            f"practice: {values} advantages of a decision for {units} of its log-probabilities. Advantages of actions "
            "want log-probabilities of actions or tokens, not of chunks."
        )
    return coarse_RV if values == 1 else coarse_RV.repeat_interleave(units // values, dim=1)


@dataclass
class RewardScale:
    """Divides rewards by the running deviation of the discounted sum behind them, as gymnasium's
    and DPPO's do."""

    discount: float
    count: float = 0.0
    mean: float = 0.0
    squares: float = 0.0
    sums: list[float] = field(default_factory=list)

    def __call__(self, reward_N: Tensor, ended_N: Tensor) -> Tensor:
        """(N,) scaled; `ended_N` bool says where the episode ended with it."""
        if not self.sums:
            self.sums = [0.0] * len(reward_N)
        sums = torch.tensor(self.sums, dtype=torch.float64) * self.discount + reward_N.double()
        # Chan, Golub and LeVeque (1979), a batch at a time.
        total, gap = self.count + len(sums), float(sums.mean()) - self.mean
        self.squares += (
            float(sums.var(correction=0)) * len(sums) + gap * gap * self.count * len(sums) / total
        )
        self.mean += gap * len(sums) / total
        self.count = total
        self.sums = torch.where(ended_N, torch.zeros_like(sums), sums).tolist()
        deviation = (self.squares / self.count) ** 0.5
        # While all sums are alike there is nothing to go by.
        return reward_N / deviation if deviation > 1e-6 * abs(self.mean) else reward_N.clone()
