"""Fine-tunes by DSRL: SAC chooses the initial noise of a pretrained policy's sampler, and the
policy itself stays the same.

Source: Wagenmaker et al., "Steering Your Diffusion Policy with Latent Space Reinforcement
Learning", arXiv 2506.15799, the variant DSRL-SAC; the code followed is ajwagen/dsrl [C], and
nakamotoo/dsrl_pi0 for noise that is repeated along a chunk. To the learner, which is
`policies.rl.off_policy.sac`, an action is noise and a step of the environment is a chunk. Where
this differs:

- The released code adds up the rewards of a chunk without a discount and discounts once per chunk.
  Here rewards are discounted per action, and the value of the next state by the discount to the
  power of the number of executed actions.
- The learner observes what the policy computes of an observation, see
  `DenoisingPolicy.encoded_sampler`: what the denoiser or the action expert is conditioned on. It is
  frozen, so the replay stores it. For pi0 the released code trains an image encoder beside it.
- Learning alternates with whole rollouts, as in the other methods.

The variant DSRL-NA, with a critic of actions that is distilled to one of noise, is not implemented.

Shape suffixes: B batch, N environments, R rows, F features, H horizon, A action, K chosen steps of
noise, D = K * A.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from policies.families.rl_actor import weights_of
from policies.networks.config import NoiseActorConfig
from policies.policy import DenoisingPolicy
from policies.policy_config import PolicyConfig
from policies.rl.actor_export import sac_actor
from policies.rl.collection.interfaces import DecisionEnv
from policies.rl.finetuning.chunk_replay import Visit
from policies.rl.finetuning.config import DsrlFinetuneConfig
from policies.rl.finetuning.frozen_policy import FrozenPolicyFinetuning
from policies.rl.off_policy.sac import Sac
from policies.rl.on_policy.observations import observation_tensors
from policies.rl.replay.transitions import Observations, Sizes, Transitions, without_person
from policies.samplers.noise_actor import NoiseActor, whole_noise
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.wire.learner import Parameters


class DsrlFinetuning(FrozenPolicyFinetuning[DsrlFinetuneConfig, Sac]):
    """See `FrozenPolicyFinetuning`.

    Args:
        config: options of the method.
        policy: policy whose initial noise is chosen; it gets the learned actor at the end.
        env: training environments.
        seed: seed of initial weights and sampling.

    Raises:
        HandoffError: more steps of noise than a chunk has, or a number of sampler steps that the
            policy does not support.
    """

    def __init__(
        self, config: DsrlFinetuneConfig, policy: DenoisingPolicy, env: DecisionEnv, seed: int
    ) -> None:
        horizon, entries = policy.chunk_shape
        self.noise_shape = (config.noise_steps or horizon, entries)
        """(K, A) of the chosen noise."""
        if self.noise_shape[0] > horizon:
            raise HandoffError(
                f"finetune: noise_steps is {config.noise_steps}, expected 1 to {horizon}, the actions of a chunk."
            )
        super().__init__(config, policy, env, seed)
        with torch.no_grad():
            features = policy.encoded_sampler(observation_tensors(env.observation())).features()
        sizes = Sizes(observation=features.shape[1], action=self.noise_shape[0] * entries)
        self.learner = Sac(config.learner(), sizes, seed)

    @torch.enable_grad()
    def update(self, generator: torch.Generator) -> dict[str, Tensor]:
        """One step of critics, actor and temperature on a minibatch; metrics, among them
        `critic_loss` and `value`, the mean target."""
        metrics = self.learner.update([self.minibatch(generator)])
        return {
            "critic_loss": metrics["critic_loss"],
            "value": metrics["target"],
            "entropy": metrics["entropy"],
            "temperature": metrics["temperature"],
        }

    def minibatch(self, generator: torch.Generator) -> Transitions:
        """A minibatch of the replay; an action is the chosen noise divided by its limit."""
        rows = self._replay.sample(self.config.batch_size, generator)
        batch = self._replay.transitions(rows)
        return without_person(
            obs=Observations(batch.obs),
            action_BA=batch.executed_BHA.flatten(1),
            reward_B=batch.reward_B,
            discount_B=batch.discount_B,
            next_obs=Observations(batch.next_obs),
        )

    def choose(self, features_RF: Tensor, rng: np.random.Generator) -> Tensor:
        """(R, D) noise divided by its limit: clipped standard normal noise in the first rollouts,
        then samples of the actor."""
        if self.done < self.config.warm_up:
            shape = (len(features_RF), self.learner.sizes.action)
            noise_RD = torch.from_numpy(rng.standard_normal(shape, dtype=np.float32))
            return (noise_RD / self.config.noise_limit).clamp(-1.0, 1.0)
        return torch.from_numpy(self.learner.act_on(Observations(features_RF), rng))

    def finish(self, identity: str, out: Path, progress: Progress) -> PolicyConfig:
        """See `FinetuneMethod.finish`: the policy gets the learned actor of its noise."""
        card, arrays = sac_actor(self.learner)
        config = self.config
        actor_config = NoiseActorConfig(
            card=card,
            steps=self.noise_shape[0],
            limit=config.noise_limit,
            sampled=config.acts == "sample",
        )
        actor = NoiseActor(actor_config).requires_grad_(False).eval()
        actor.load_state_dict(weights_of(Parameters(self.learner.updates, card, arrays)))
        self.policy.noise_actor = actor
        self.remove_rollouts(out)
        return replace(self.model(), noise_actor=actor_config)

    def visit(self, obs: Any, rng: np.random.Generator) -> Visit:
        """See `FrozenPolicyFinetuning.visit`: no chunk is stored, an executed one is noise."""
        sampler = self.policy.encoded_sampler(observation_tensors(obs))
        features_RF = sampler.features()
        horizon = self.policy.chunk_shape[0]

        def decide() -> tuple[Tensor, Tensor]:
            chosen_RKA = self.choose(features_RF, rng).unflatten(1, self.noise_shape)
            noise_RHA = whole_noise(self.config.noise_limit * chosen_RKA, horizon)
            return sampler.chunk(noise_RHA), chosen_RKA

        return Visit(features_RF, features_RF.new_zeros(len(obs), 0, *self.noise_shape), decide)
