"""Options of the replay buffer. Imports no torch."""

from __future__ import annotations

from robots.config import Count, Finite, NonNegative, Positive, Share, config


@config
class ReplayConfig:
    """Capacity of the replay buffer and form of its samples."""

    capacity: Count = 200_000
    """Capacity [steps]; the oldest steps are overwritten. 200k in HIL-SERL [C]."""
    discount: Share = 0.97
    """Discount per control period; .97 to .985 in HIL-SERL [C]."""
    n_step: Count = 1
    """Steps of the n-step return."""
    horizon: Count = 1
    """Actions per chunk. If above 1, a sample has that many actions and the sum of as many rewards
    (Q-chunking), and `n_step` is ignored."""
    timeouts_end: bool = False
    """Whether truncation by a time limit counts as termination, as in the code of HIL-SERL, instead
    of bootstrapping from the value."""
    mc_return: bool = False
    """Whether samples have `extra["mc_return"]`, the discounted return from their step to the end
    of its episode (Cal-QL). It is minus infinity, which bounds nothing, if the episode has not
    ended yet or steps before its end are missing."""
    mc_tail: Finite = 0.0
    """Constant reward per step that `mc_return` assumes after a truncation, without end. The
    released Cal-QL does so with AntMaze's negative reward, so that never reaching the goal has the
    return r / (1 - g) [C]."""


@config
class LapConfig:
    """Prioritised sampling by loss-adjusted priorities (LAP; Fujimoto et al., arXiv 2007.06049),
    for a Huber loss."""

    exponent: NonNegative = 0.4
    """Exponent alpha of a priority; 0 samples uniformly. .4 in MR.Q [C]."""
    floor: Positive = 1.0
    """Smallest temporal-difference error of a priority, which is where the Huber loss becomes
    linear; 1 in MR.Q [C]."""
