"""Options of this package."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from torch import Tensor


class Decided(NamedTuple):
    """What one decision in each of N worlds led to."""

    reward_N: Tensor
    """Discounted sum of what was executed."""
    discount_N: Tensor
    """g^length of what was executed."""
    terminated_N: Tensor
    truncated_N: Tensor
    final_seen: Any
    """(N, ...) what is seen after it, before any new start: a tensor, or a TensorDict of
    several."""
    success_N: Tensor
    """bool, of episodes that ended."""
    cost_N: Tensor | None = None
    """Likewise summed; None where nothing costs."""
    largest_N: Tensor | None = None
    """Largest reward that the task told, where it is known."""
    reward_NH: Tensor | None = None
    """Of every action of a chunk; nothing for those that were not executed."""
    length_N: Tensor | None = None
    """int64, actions executed of a chunk; 0 in a world that had ended before and was not begun
    anew."""


class DecisionWorlds(Protocol):
    """N worlds that start anew by themselves."""

    num_envs: int

    def begin(self) -> None:
        """Leaves what is under way in all worlds and begins anew."""
        ...

    def seen(self) -> Any:
        """(N, ...) what is to be decided upon: a tensor, or a TensorDict of several."""
        ...

    def step(self, decision: Tensor) -> Decided:
        """Executes a decision (N, ...), an actor's own units, in every world."""
        ...
