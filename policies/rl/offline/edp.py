"""Implements efficient diffusion policies (EDP, arXiv 2305.20081): Q-learning of a diffusion policy
with a one-step prediction of the clean chunk.

Diffusion-QL backpropagates through the whole denoising chain; EDP computes the clean chunk from one
prediction of the network and clips it; the same prediction gives the denoising loss. There are
three objectives, as released: `td3` maximises one randomly selected critic at the prediction; `crr`
and `iql` maximise the likelihood of the chunk in the data under N(prediction, 1), weighted by
exp(b (Q - V)).

Differences from the released code:
- The actor is the `DiffusionPolicy` of imitation (velocity prediction, cosine schedule, DDIM), so
  that it is distilled and exported as any other. It predicts a chunk, of which the critics evaluate
  the executed part, as in RL-100; with `horizon` 1 this is EDP's single action.
- The target policy, a moving average, is the one that is kept, as diffusion policies are averaged
  elsewhere here. Before its first Polyak step it is a copy of the policy, since our runs are short.
- No action is selected by Q among several when acting: the saved policy is the diffusion alone.
- V in crr is the mean Q over a few full samples of the target policy.

Shape suffixes: B batch, E members, T observed steps, O observation, H horizon, A action, D entries
of the executed actions, F = T * O.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.families.diffusion import DiffusionPolicy
from policies.policy import ObservationTensors
from policies.random_streams import sequence_seed
from policies.rl.networks.critics import bellman_target, squared_error
from policies.rl.networks.ensemble import move_towards
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.offline.config import (
    CriticRegressionConfig,
    EdpConfig,
    ImplicitWeightConfig,
    QGradientConfig,
)
from policies.rl.offline.iql import InSampleCritics, Metrics, awr_weight, shrink_final_layers
from policies.rl.offline.offline_dataset import CHUNK
from policies.rl.offline.value_losses import expectile_loss
from policies.rl.replay.transitions import Sizes, Transitions
from policies.samplers.ddim import NoiseSchedule
from robots.errors import HandoffError


class EdpNetworks(InSampleCritics):
    """Critics, V, policy and target policy.

    Args:
        config: options.
        policy: policy with fitted normalisers, trained in place.
        sizes: sizes F and D of the critics' inputs.
    """

    def __init__(self, config: EdpConfig, policy: DiffusionPolicy, sizes: Sizes) -> None:
        super().__init__(sizes, config.critics, config.critic, config.critic)
        self.actor = policy
        self.actor_target = deepcopy(policy).requires_grad_(False)


class OneStepPrediction(NamedTuple):
    """One prediction of the network."""

    loss: Tensor
    """Scalar mean squared error of the predicted velocity."""
    clean_BHA: Tensor
    """Predicted clean chunk, clipped."""


class Edp:
    """EDP learner.

    Random numbers depend only on the seed and the number of updates, so updates are reproducible.
    Minibatches are normalised by the policy, and have the whole chunk as `extra["chunk_BHA"]`.

    Args:
        config: options.
        policy: policy with fitted normalisers, trained in place.
        seed: seed of the critics' initial weights and of all noise.
    """

    def __init__(self, config: EdpConfig, policy: DiffusionPolicy, seed: int = 0) -> None:
        model = policy.config
        steps, entries = policy.observation_shape
        self.first = model.n_obs_steps - 1
        self.executed = min(model.n_action_steps, model.horizon - self.first)
        sizes = Sizes(observation=steps * entries, action=self.executed * policy.chunk_shape[1])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = EdpNetworks(config, policy, sizes)
        shrink_final_layers(self.networks)
        self.config = config
        self.seed = seed
        self.schedule = NoiseSchedule(policy.alpha_K, policy.sigma_K)
        parts = {"actor": self.networks.actor, "critic": self.networks.critic}
        if isinstance(config.objective, ImplicitWeightConfig):
            parts["value"] = self.networks.value
        self.optimizers = {
            name: torch.optim.Adam(part.parameters(), config.learning_rate)
            for name, part in parts.items()
        }
        self.updates = 0
        self._generator = torch.Generator()

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """Updates V (iql), Q, policy and targets, in this order, on each minibatch."""
        self._generator.manual_seed(sequence_seed(self.seed, self.updates))
        metrics: Metrics = {}
        for batch in minibatches:
            if isinstance(self.config.objective, ImplicitWeightConfig):
                metrics |= self._update_value(batch, self.config.objective.expectile)
            metrics |= self._update_critic(batch)
            loss, actor_metrics = self.actor_loss(batch)
            self.step("actor", loss)
            metrics |= actor_metrics
            move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        self._move_target_policy()
        self.updates += 1
        return metrics

    def executed_part(self, chunk_BHA: Tensor) -> Tensor:
        """(B, D) executed entries of chunks."""
        return chunk_BHA[:, self.first : self.first + self.executed].flatten(1)

    def sample(self, policy: DiffusionPolicy, features_BF: Tensor, noise_BHA: Tensor) -> Tensor:
        """(B, H, A) chunks sampled by the policy's own sampler, differentiable."""
        return policy.sample(self._observation(features_BF), noise_BHA)

    def predict_clean(self, features_BF: Tensor, chunk_BHA: Tensor) -> OneStepPrediction:
        """Adds noise of random levels to the chunks in the data and predicts them once."""
        policy = self.networks.actor
        timestep_B = torch.randint(
            policy.config.train_timesteps, (len(chunk_BHA),), generator=self._generator
        )
        noisy_BHA, velocity_BHA = self.schedule.diffuse(
            chunk_BHA, self._normal(*chunk_BHA.shape), timestep_B
        )
        denoise = policy.velocity(self._observation(features_BF))
        predicted_BHA = denoise(noisy_BHA, timestep_B)
        alpha, sigma = (scale[timestep_B, None, None] for scale in self.schedule)
        clean_BHA = policy.clip_chunk(alpha * noisy_BHA - sigma * predicted_BHA)
        return OneStepPrediction(mse_loss(predicted_BHA, velocity_BHA), clean_BHA)

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """Loss of the policy on one minibatch, and metrics.

        Raises:
            HandoffError: the minibatch has no chunks.
        """
        if CHUNK not in batch.extra:
            raise HandoffError(
                f"edp: minibatches have {sorted(batch.extra)}, expected '{CHUNK}' among them."
            )
        net, objective = self.networks, self.config.objective
        chunk_BHA = batch.extra[CHUNK]
        features_BF = net.encode(batch.obs)
        prediction = self.predict_clean(features_BF, chunk_BHA)
        metrics = {"denoising_loss": prediction.loss.detach()}
        if isinstance(objective, QGradientConfig):
            if not objective.q_weight:
                return prediction.loss, metrics
            q_loss = self.q_loss(features_BF, self.executed_part(prediction.clean_BHA))
            return prediction.loss + objective.q_weight * q_loss, metrics
        with torch.no_grad():
            value_B = (
                net.state_value(features_BF)
                if isinstance(objective, ImplicitWeightConfig)
                else self._policy_value(features_BF, objective)
            )
            advantage_B = net.action_value(features_BF, batch.action_BA) - value_B
        weight_B = awr_weight(advantage_B, objective.inverse_temperature, objective.weight_clip)
        distance_B = (chunk_BHA - prediction.clean_BHA).square().flatten(1).sum(dim=1)
        return prediction.loss + 0.5 * (weight_B * distance_B).mean(), {
            **metrics,
            "weight": weight_B.mean(),
        }

    def q_loss(self, features_BF: Tensor, action_BD: Tensor) -> Tensor:
        """Negative mean of one randomly selected critic, divided by its mean absolute value;
        gradients reach only the actions."""
        net = self.networks
        member = torch.randint(self.config.critics, (1,), generator=self._generator)
        net.critic.requires_grad_(False)
        q_B = net.critic(torch.cat([features_BF, action_BD], dim=1), member)[0, :, 0]
        net.critic.requires_grad_(True)
        return -q_B.mean() / q_B.detach().abs().mean().clamp(min=1e-6)

    def step(self, name: str, loss: Tensor) -> None:
        """One step of the optimiser `name` on `loss`."""
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def state_dict(self) -> dict[str, Any]:
        """Complete state: weights, optimisers and number of updates."""
        return learner_state(self.networks, self.optimizers, self.updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)

    def _observation(self, features_BF: Tensor) -> ObservationTensors:
        return ObservationTensors(features_BF.unflatten(1, self.networks.actor.observation_shape))

    def _update_value(self, batch: Transitions, expectile: float) -> Metrics:
        net = self.networks
        features_BF = net.encode(batch.obs)
        with torch.no_grad():
            q_B = net.action_value(features_BF, batch.action_BA)
        v_B = net.state_value(features_BF)
        loss = expectile_loss(q_B - v_B, expectile).mean()
        self.step("value", loss)
        return {"value_loss": loss.detach(), "v": v_B.detach().mean()}

    def _update_critic(self, batch: Transitions) -> Metrics:
        net = self.networks
        with torch.no_grad():
            next_BF = net.encode(batch.next_obs)
            if isinstance(self.config.objective, ImplicitWeightConfig):
                next_value_B = net.state_value(next_BF)
            else:
                next_value_B = net.action_value(next_BF, self._target_action(next_BF))
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
        q_EB = net.all_values(net.encode(batch.obs), batch.action_BA)
        loss = squared_error(q_EB, target_B)
        self.step("critic", loss)
        return {"critic_loss": loss.detach(), "q": q_EB.detach().mean()}

    def _policy_value(self, features_BF: Tensor, objective: CriticRegressionConfig) -> Tensor:
        """(B,) mean Q over a few samples of the target policy."""
        repeated_BF = features_BF.repeat_interleave(objective.samples, dim=0)
        q_B = self.networks.action_value(repeated_BF, self._target_action(repeated_BF))
        return q_B.view(-1, objective.samples).mean(dim=1)

    def _target_action(self, features_BF: Tensor) -> Tensor:
        policy = self.networks.actor_target
        noise_BHA = self._normal(len(features_BF), *policy.chunk_shape)
        return self.executed_part(self.sample(policy, features_BF, noise_BHA))

    def _move_target_policy(self) -> None:
        config, net = self.config, self.networks
        if self.updates < config.target_policy_after:
            move_towards(net.actor_target, net.actor, 1.0)
        elif self.updates % config.target_policy_every == 0:
            move_towards(net.actor_target, net.actor, config.tau)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)
