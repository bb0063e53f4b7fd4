"""Defines the protocols of environments, actors and their results, which collectors alternate
between.

Shape suffixes: B batch, N environments, H horizon, A action, K denoising steps, V values of a
decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

from torch import Tensor, nn

if TYPE_CHECKING:
    import torch

    from policies.rl.on_policy.rollout import Trace


class StepResult(NamedTuple):
    """Result of one decision (an action or a chunk) in each of N environments."""

    reward_N: Tensor
    """Discounted sum of the rewards of the executed actions."""
    discount_N: Tensor
    """g^length for the executed length."""
    terminated_N: Tensor
    """bool, episodes that the task ended."""
    truncated_N: Tensor
    """bool, episodes that the time limit ended."""
    final_obs: Any
    """(N, ...) observation after the decision and before any reset: a tensor, or a TensorDict of
    several fields."""
    success_N: Tensor
    """bool, valid where an episode ended."""
    cost_N: Tensor | None = None
    """Sum of the costs of the executed actions; None without costs."""
    largest_N: Tensor | None = None
    """Largest task reward of an executed action; None where it is unknown."""
    reward_NH: Tensor | None = None
    """Reward of every action of a chunk; 0 for actions that were not executed."""
    length_N: Tensor | None = None
    """int64, executed actions of a chunk; 0 in an environment whose episode had ended before and
    was not reset."""


class RolloutEnv(Protocol):
    """N environments that reset themselves, simulated on the host or on a device; the minimum that
    collecting rollouts requires."""

    num_envs: int
    device: torch.device
    """Device of the observations."""

    def prepare(self) -> None:
        """Does pending work before a rollout, such as drawing initial states."""
        ...

    def begin(self) -> None:
        """Abandons the running episodes and resets all environments."""
        ...

    def observation(self) -> Any:
        """(N, ...) current observation: a tensor, or a TensorDict of several fields."""
        ...

    def step(self, decision: Tensor) -> StepResult:
        """Executes a decision (N, ...), in the actor's units, in every environment."""
        ...


class DecisionEnv(RolloutEnv, Protocol):
    """N environments of action chunks."""

    entries: int
    """Numbers in the executed part of a chunk."""

    def begin_groups(self, size: int) -> None:
        """Resets all environments, each group of `size` neighbours to one state; episodes that end
        are not reset afterwards.

        Raises:
            HandoffError: the number of environments is no multiple of `size`.
        """
        ...

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): the part of a chunk that is executed, flattened."""
        ...

    def with_executed_part(self, chunk: Tensor, part: Tensor) -> Tensor:
        """(..., H, A) copies of chunks whose executed part is (..., D) `part`."""
        ...

    def take_executed(self) -> int:
        """Actions executed since the last call, summed over all environments."""
        ...

    def visited_states(self) -> Any:
        """(R, T, O) the most recent observations with a decision, normalised, on the host: a
        tensor, or a TensorDict of several fields."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """State for a resumed run; the running episodes are not part of it."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`."""
        ...


class ActorOutput(Protocol):
    """Decisions of an actor and their log-probabilities."""

    @property
    def trace(self) -> Trace:
        """Tensors that reproduce the log-probability later; every entry is (N, K, ...)."""
        ...

    @property
    def log_prob_BK(self) -> Tensor:
        """Log-probability of each of the K denoising steps; (B, K, U) of an actor with several per
        step."""
        ...

    def __getitem__(self, index: Any, /) -> Any:
        """Entry 0 is the decision (N, ...)."""
        ...


class RolloutActor(Protocol):
    """An actor that samples decisions."""

    def decide(self, obs: Any, generator: torch.Generator, /) -> ActorOutput:
        """Samples a decision for every row of `obs`; `generator` supplies all randomness."""
        ...


class ChunkActorOutput(Protocol):
    """Action chunks of an actor, with log-probabilities per entry and values."""

    @property
    def chunk_BHA(self) -> Tensor:
        """Normalised action chunks."""
        ...

    @property
    def trace(self) -> Trace:
        """See `ActorOutput.trace`."""
        ...

    @property
    def log_prob_BKHA(self) -> Tensor:
        """Log-probability of every entry in each of K denoising steps."""
        ...

    @property
    def value_BV(self) -> Tensor | None:
        """Values of the observations; None for an actor without a value head."""
        ...


class ChunkActor(Protocol):
    """An actor that samples chunks with a log-probability per entry."""

    def decide(self, obs: Any, generator: torch.Generator, /) -> ChunkActorOutput:
        """Samples a chunk for every row of `obs`; `generator` supplies all randomness."""
        ...

    def value(self, obs: Any, /) -> Tensor:
        """(B, V) values; called only on an actor with a value head."""
        ...


@runtime_checkable
class PresampledNoiseActor(ChunkActor, Protocol):
    """An actor whose noise can be sampled before its observations are known.

    `decide(obs, generator)` equals `decide_with_noise(obs, sample_noise(len(obs), generator))`.
    """

    def sample_noise(self, rows: int, generator: torch.Generator, /) -> Trace:
        """Noise for `rows` decisions; each entry is (rows, ...)."""
        ...

    def decide_with_noise(self, obs: Any, presampled: Trace, /) -> ChunkActorOutput:
        """Samples chunks as a pure function of observations, noise and weights."""
        ...


class PublishedActor(ChunkActor, Protocol):
    """A learning actor whose weights can be copied to a second instance that collects rollouts."""

    def acting(self) -> Sequence[nn.Module]:
        """Networks that compute decisions or values, always in the same order."""
        ...
