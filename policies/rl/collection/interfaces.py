"""Interfaces between environments of decisions, the actors that decide in them, and the collectors
that alternate between the two."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

if TYPE_CHECKING:
    import torch

    from policies.rl.on_policy.rollout import Trace


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


class RolloutEnv(Protocol):
    """N environments that start anew by themselves: all that a rollout of decisions needs."""

    num_envs: int

    def begin(self) -> None:
        """Leaves what is under way in all environments and begins anew."""
        ...

    def seen(self) -> Any:
        """(N, ...) what is to be decided upon: a tensor, or a TensorDict of several."""
        ...

    def step(self, decision: Tensor) -> Decided:
        """Executes a decision (N, ...), an actor's own units, in every environment."""
        ...


class DecisionEnv(RolloutEnv, Protocol):
    """N environments of action chunks, wherever they are simulated."""

    device: torch.device
    """Where what is seen lies."""
    entries: int
    """Numbers in the executed part of a chunk."""

    def prepare(self) -> None:
        """Does what is due before a rollout, such as drawing starts."""
        ...

    def begin_groups(self, size: int) -> None:
        """Begins in all environments, `size` of them side by side in the same state; those that
        end then stay as they are.

        Raises:
            HandoffError: the environments make no whole groups.
        """
        ...

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): the part of a chunk that is executed."""
        ...

    def take_executed(self) -> int:
        """Actions executed since the last call, in all environments together."""
        ...

    def visited_states(self) -> Any:
        """(R, T, O) the newest states in which was decided, normalised, on the host: a tensor, or
        a TensorDict of several."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """What a resumed run keeps of the environments; their episodes begin anew."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        ...


class ActorOutput(Protocol):
    """A decision for every row, its first entry, and how likely it was."""

    @property
    def trace(self) -> Trace:
        """What is kept of the decision to weigh it again; every entry (N, K, ...)."""
        ...

    @property
    def log_prob_BK(self) -> Tensor:
        """Log-probability of each of its K parts."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """Entry 0 is the decision (N, ...)."""
        ...


class RolloutActor(Protocol):
    """An actor that decides what is to be done."""

    def decide(self, seen: Any, generator: torch.Generator, /) -> ActorOutput:
        """A decision for every row of what is seen; all chance comes from `generator`."""
        ...


class ChunkActorOutput(Protocol):
    """A chunk for every row, how likely its entries were, and what the actor values it at."""

    @property
    def chunk_BHA(self) -> Tensor:
        """Normalised."""
        ...

    @property
    def trace(self) -> Trace:
        """See `ActorOutput.trace`."""
        ...

    @property
    def log_prob_BKHA(self) -> Tensor:
        """Of every entry, in each of K parts."""
        ...

    @property
    def value_BV(self) -> Tensor | None:
        """Values of what is seen; None of an actor without values."""
        ...


class ChunkActor(Protocol):
    """An actor that decides in chunks whose entries have log-probabilities of their own."""

    def decide(self, seen: Any, generator: torch.Generator, /) -> ChunkActorOutput:
        """A chunk for every row of what is seen; all chance comes from `generator`."""
        ...

    def value(self, seen: Any, /) -> Tensor:
        """(B, V); asked of an actor that values."""
        ...


@runtime_checkable
class DrawsAhead(ChunkActor, Protocol):
    """An actor whose chance can be drawn before what is decided upon is seen.

    `decide(seen, generator)` is `decide_by(seen, draw(len(seen), generator))`.
    """

    def draw(self, rows: int, generator: torch.Generator, /) -> Trace:
        """Chance of a decision in so many environments, each entry (rows, ...)."""
        ...

    def decide_by(self, seen: Any, chance: Trace, /) -> ChunkActorOutput:
        """A pure function of its arguments and the weights."""
        ...


class PublishedActor(ChunkActor, Protocol):
    """A learning actor whose weights are handed to a copy of it that acts."""

    def acting(self) -> Sequence[nn.Module]:
        """Networks by which it decides or values, always in the same order."""
        ...
