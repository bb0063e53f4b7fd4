"""Fine-tunes by RL tokens: a small off-policy actor refines the chunks of a frozen policy, from one
token of the policy's own features.

Source: Xu et al., "RL Token: Bootstrapping Online RL with Vision-Language-Action Models" (Physical
Intelligence, arXiv 2604.23073, pi.website/research/rlt), without released code. From the source:

- a token is learned by reconstruction of the frozen policy's features, and stays;
- an actor of token, state and reference chunk, with dropout of the reference and a term that draws
  it towards the reference; an ensemble of critics of whole chunks; Gaussian exploration noise; a
  warm-up by the policy itself; several critic steps for one of the actor.

Ours: the token's sizes, data and source, which is the action expert in place of the backbone
(`token_training`, `policies.families.vla`), the bounded edit that begins at 0
(`policies.samplers.chunk_actor`), noise that the actions of a chunk share in part, rewards and
values that are discounted per action, updates that alternate with whole rollouts, and policies
other than a vision-language-action model: a diffusion or flow policy's encoded observation is the
token's source. The paper acts in a critical phase of a task, chosen by a person, and replaces
chunks by a person's corrections; here the actor acts throughout, without corrections.

Shape suffixes: R rows, S state, H horizon, A action, D entries of the executed part.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.networks.config import ChunkActorConfig
from policies.policy import DenoisingPolicy
from policies.policy_config import PolicyConfig
from policies.random_streams import ChunkSelectionStream
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.chunk_replay import Visit
from policies.rl.finetuning.frozen_policy import FrozenPolicyFinetuning
from policies.rl.finetuning.rl_token.config import RlTokenFinetuneConfig
from policies.rl.finetuning.rl_token.learner import (
    RefinementBatch,
    RefinementLearner,
    editor_card,
)
from policies.rl.finetuning.rl_token.token_training import (
    Bottleneck,
    FeatureTokens,
    joined,
    train_token,
)
from policies.rl.on_policy.observations import observation_tensors
from policies.samplers.chunk_actor import (
    ChunkRefiner,
    actor_state,
    executed_part,
    with_executed_part,
)
from robots.interfaces import Progress


class RlTokenFinetuning(FrozenPolicyFinetuning[RlTokenFinetuneConfig, RefinementLearner]):
    """See `FrozenPolicyFinetuning`.

    Args:
        config: options of the method.
        policy: policy whose chunks are refined; it gets the learned actor at the end.
        env: training environments.
        seed: seed of initial weights and sampling.

    Raises:
        HandoffError: a number of sampler steps that the policy does not support.
    """

    def __init__(
        self, config: RlTokenFinetuneConfig, policy: DenoisingPolicy, env: DecisionEnv, seed: int
    ) -> None:
        super().__init__(config, policy, env, seed)
        entries = policy.chunk_shape[1]
        self.first = policy.config.n_obs_steps - 1
        """Number of the first executed action of a chunk."""
        self.action = (env.entries // entries, entries)
        """(steps, A) of the executed part."""
        with torch.no_grad():
            features = policy.encoded_sampler(observation_tensors(env.observation())).tokens()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.bottleneck = Bottleneck(config.token, features.token_BLW.shape[2])
        self.bottleneck.eval()
        self.token_learned = False
        self.state_size = config.token.width + features.vector_BO.shape[1]
        """S"""
        self.learner = RefinementLearner(config, self.state_size, self.action, seed)

    @property
    def phase_due(self) -> bool:  # type: ignore[override]
        """See `FinetuneMethod.phase_due`: the token is learned before the first rollout."""
        return not self.token_learned

    def run_phase(self, identity: str, out: Path, progress: Progress) -> None:
        """See `FinetuneMethod.run_phase`: learns the token."""
        states = self.visited_tokens(self.config.token.decisions)
        self.bottleneck.train().requires_grad_(True)
        train_token(self.config.token, self.bottleneck, states, self.seed, identity, out, progress)
        self.bottleneck.eval().requires_grad_(False)
        self.token_learned = True

    @torch.no_grad()
    def visited_tokens(self, decisions: int) -> FeatureTokens:
        """Feature tokens of the states that the frozen policy visits in `decisions` decisions per
        environment."""
        rng = np.random.default_rng([self.seed, self.done, ChunkSelectionStream.TOKEN])
        parts = []
        for _ in range(decisions):
            sampler = self.policy.encoded_sampler(observation_tensors(self.env.observation()))
            parts.append(sampler.tokens())
            rows = len(parts[-1].vector_BO)
            self.statistics.add(self.env.step(sampler.chunk(self._chunk_noise(rows, rng))))
        return joined(parts)

    def visit(self, obs: Any, rng: np.random.Generator) -> Visit:
        """See `FrozenPolicyFinetuning.visit`: the one stored chunk is the reference."""
        sampler = self.policy.encoded_sampler(observation_tensors(obs))
        state_RS = actor_state(self.bottleneck.encoder, sampler.tokens())
        reference_RHA = sampler.chunk(self._chunk_noise(len(state_RS), rng))
        generator = torch.Generator().manual_seed(int(rng.integers(1 << 62)))

        def decide() -> tuple[Tensor, Tensor]:
            part_RD = self.learner.explored(state_RS, self.executed(reference_RHA), generator)
            chunk_RHA = with_executed_part(reference_RHA, part_RD, self.first)
            chunk_RHA = self.policy.clip_chunk(chunk_RHA)
            return chunk_RHA, chunk_RHA

        return Visit(state_RS, reference_RHA[:, None], decide)

    def executed(self, chunk_RHA: Tensor) -> Tensor:
        """(R, D) executed part of chunks."""
        return executed_part(chunk_RHA, self.first, self.action[0])

    @torch.enable_grad()
    def update(self, generator: torch.Generator) -> dict[str, Tensor]:
        """See `FrozenPolicyFinetuning.update`."""
        batches = [self.minibatch(generator) for _ in range(self.config.minibatches)]
        return self.learner.update(batches, generator)

    def minibatch(self, generator: torch.Generator) -> RefinementBatch:
        """A minibatch of the replay."""
        rows = self._replay.sample(self.config.batch_size, generator)
        batch = self._replay.transitions(rows)
        return RefinementBatch(
            state_BS=batch.obs,
            reference_BD=self.executed(batch.chunk_BNHA[:, 0]),
            executed_BD=self.executed(batch.executed_BHA),
            reward_B=batch.reward_B,
            discount_B=batch.discount_B,
            next_state_BS=batch.next_obs,
            next_reference_BD=self.executed(batch.next_chunk_BNHA[:, 0]),
        )

    def state_dict(self) -> dict[str, Any]:
        """See `FinetuneMethod.state_dict`."""
        token = {"bottleneck": self.bottleneck.state_dict(), "token_learned": self.token_learned}
        return super().state_dict() | token

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `FinetuneMethod.load_state_dict`."""
        self.bottleneck.load_state_dict(state["bottleneck"])
        self.token_learned = state["token_learned"]
        super().load_state_dict(state)

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: the policy gets the encoder of the token and the actor."""
        entries = self.action[0] * self.action[1]
        actor_config = ChunkActorConfig(
            token=self.bottleneck.encoder.config,
            actor=editor_card(self.config, self.state_size, entries),
            first=self.first,
            steps=self.action[0],
            limit=self.config.limit,
        )
        actor = ChunkRefiner(actor_config)
        actor.encoder.load_state_dict(self.bottleneck.encoder.state_dict())
        actor.editor.load_state_dict(self.learner.networks.actor.state_dict())
        self.policy.chunk_actor = actor.requires_grad_(False).eval()
        self.remove_rollouts(out)
        return replace(self.model(), chunk_actor=actor_config)

    def _chunk_noise(self, rows: int, rng: np.random.Generator) -> Tensor:
        """(rows, H, A) standard normal noise of the frozen policy's sampler."""
        shape = (rows, *self.policy.chunk_shape)
        return torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
