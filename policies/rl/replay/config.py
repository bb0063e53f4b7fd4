"""Options of the replay buffers. Imports without torch."""

from __future__ import annotations

from robots.config import config


@config
class ReplayConfig:
    """What is kept, and what a sample looks like."""

    capacity: int = 200_000
    """Steps; the oldest are overwritten. 200k in HIL-SERL [C]."""
    discount: float = 0.97
    """Discount per control period; HIL-SERL .97 to .985 [C]."""
    n_step: int = 1
    """Steps whose rewards a sample sums up before it looks at a value."""
    horizon: int = 1
    """Actions of a chunk; above 1 a sample holds that many actions and sums up as many rewards
    (Q-chunking), and `n_step` has no say."""
    timeouts_end: bool = False
    """Whether a time limit counts as an end of the task, as in the code of HIL-SERL; or the value
    goes on behind it."""
    mc_return: bool = False
    """Whether samples hold `extra["mc_return"]`, the discounted return from their step to the end
    of its episode (Cal-QL); minus infinity, which bounds nothing, where the episode has not ended
    yet or has a gap before its end."""
    mc_tail: float = 0.0
    """Reward per step that `mc_return` assumes for ever after a time limit which is no end of the
    task. The released Cal-QL does so with AntMaze's negative reward, so that never arriving is
    worth r / (1 - g) from everywhere [C]."""
