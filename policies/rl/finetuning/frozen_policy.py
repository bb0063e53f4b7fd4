"""The run that methods on a frozen policy share: an off-policy learner of an actor beside the
policy's sampler, whose weights stay as they are.

Rollouts alternate with updates of the learner on minibatches of all rollouts so far; the first
`warm_up` rollouts are not learned from until the last of them is complete.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from policies.policy import DenoisingPolicy
from policies.policy_config import PolicyConfig
from policies.random_streams import ChunkSelectionStream, sequence_seed
from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.base import FrozenPolicyConfig, OnlineFinetuning
from policies.rl.finetuning.chunk_replay import ReplayedRollouts, Visit, collect_rollout
from policies.rl.finetuning.collapse import checked_means


class ActorLearner(Protocol):
    """An off-policy learner whose complete state can be saved."""

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimisers and number of updates."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        ...


Options = TypeVar("Options", bound=FrozenPolicyConfig)
AnyLearner = TypeVar("AnyLearner", bound=ActorLearner)


class FrozenPolicyFinetuning(ReplayedRollouts, OnlineFinetuning, ABC, Generic[Options, AnyLearner]):
    """Implements `policies.rl.finetuning.method.FinetuneMethod`, up to the learner.

    Args:
        config: options of the method.
        policy: policy beside which an actor is learned; it gets the actor at the end.
        env: training environments.
        seed: seed of initial weights and sampling.

    Raises:
        HandoffError: a number of sampler steps that the policy does not support.
    """

    learner: AnyLearner

    def __init__(
        self, config: Options, policy: DenoisingPolicy, env: DecisionEnv, seed: int
    ) -> None:
        super().__init__()
        self.config = config
        self.policy = policy.eval().requires_grad_(False)
        self.env = env
        self.seed = seed
        self.statistics = EpisodeStatistics(env.num_envs)
        if config.steps is not None:
            policy.set_sampler_steps(config.steps)

    @abstractmethod
    def visit(self, obs: Any, rng: np.random.Generator) -> Visit:
        """What is stored of visited states (R, ...), and the decision there."""

    @abstractmethod
    def update(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One update of the learner; metrics, among them `critic_loss` and `value`, the mean
        target."""

    @torch.no_grad()
    def rollout(self, decisions: int) -> dict[str, float]:
        """See `FinetuneMethod.rollout`."""
        rng = np.random.default_rng([self.seed, self.done, ChunkSelectionStream.ROLLOUT])
        visit = partial(self.visit, rng=rng)
        self._replay.add(collect_rollout(self.env, self.statistics, decisions, visit))
        seed = sequence_seed(self.seed, self.done, ChunkSelectionStream.UPDATE)
        generator = torch.Generator().manual_seed(seed)
        self.done += 1
        count = self.config.updates * (self.done >= self.config.warm_up)
        return checked_means([self.update(generator) for _ in range(count)], self.done)

    def state_dict(self) -> dict[str, Any]:
        """See `FinetuneMethod.state_dict`; the policy does not change."""
        return {"learner": self.learner.state_dict(), "done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `FinetuneMethod.load_state_dict`."""
        self.learner.load_state_dict(state["learner"])
        self.done = state["done"]
        self.env.begin()
        self.statistics.begin()

    def model(self) -> PolicyConfig:
        """Configuration of the policy, with the sampler steps of fine-tuning."""
        steps = self.config.steps
        return self.policy.config if steps is None else self.policy.config.with_sampler_steps(steps)
