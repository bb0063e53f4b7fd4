"""Implements efficient diffusion policies (EDP, arXiv 2305.20081): Q-learning of a diffusion policy
with a one-step prediction of the clean action.

The actor predicts the noise in a noisy action. Diffusion-QL backpropagates through the whole
denoising chain; EDP computes the clean action from one prediction, a0 = (a_k - sigma_k eps) /
alpha_k, and clips it; the same prediction gives the denoising loss. There are three objectives, as
released: `td3` maximises one randomly selected critic at a0; `crr` and `iql` maximise the
likelihood of the action in the data under N(a0, 1), weighted by exp(b (Q - V)).

The implementation follows the released code, with these differences: before its first Polyak step
the target policy is a copy of the current policy, not of the initial one, since our runs are short;
sampling with few steps uses DDIM (the first order of the paper's DPM-solver); V in crr is the mean
Q over a few full samples of the target policy.

Shape suffixes: B batch, E members, A action, F features, N environments, C candidates, K noise
levels, S steps of a sampler.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from policies.networks.mlp import sinusoidal_embedding
from policies.random_streams import LearnerStream, sequence_seed
from policies.rl.generative.config import EdpConfig
from policies.rl.networks.critics import bellman_target, squared_error
from policies.rl.networks.ensemble import move_towards
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.offline.iql import InSampleCritics, Metrics, awr_weight
from policies.rl.offline.value_losses import expectile_loss
from policies.rl.replay.transitions import Sizes, Transitions
from policies.samplers.ddim import DiffusionGrid, NoiseSchedule, clean_and_noise, cosine_schedule
from robots.errors import HandoffError


def noise_schedule(config: EdpConfig) -> NoiseSchedule:
    """Scales of signal and noise at the K levels, (K,) each.

    `vp` is the variance-preserving SDE (Song et al. 2021) with betas from .1 to 10, discretised in
    K steps; `linear` has DDPM's betas from 1e-4 to .02 at 1000 levels, rescaled so that K levels
    add the same noise.
    """
    count = config.levels
    number_K = torch.arange(1, count + 1, dtype=torch.float64)
    match config.schedule:
        case "cosine":
            return cosine_schedule(count)
        case "vp":
            log_alpha_K = -0.1 / count - 0.5 * (10.0 - 0.1) * (2.0 * number_K - 1.0) / count**2
            alpha_bar_K = log_alpha_K.cumsum(0).exp()
        case "linear":
            beta_K = torch.linspace(1e-4, 0.02, count, dtype=torch.float64) * 1000.0 / count
            alpha_bar_K = (1.0 - beta_K.clamp(max=0.999)).log().cumsum(0).exp()
    return NoiseSchedule(alpha_bar_K.sqrt().float(), (1.0 - alpha_bar_K).sqrt().float())


def sampler_grid(schedule: NoiseSchedule, steps: int | None = None) -> DiffusionGrid:
    """Sampler grid: DDPM over all levels of `schedule`, or DDIM with `steps` steps; predicted clean
    actions are clipped to [-1, 1].

    Raises:
        HandoffError: `steps` is below 1 or above the number of levels.
    """
    count = len(schedule.alpha_K)
    if steps is not None and not 1 <= steps <= count:
        raise HandoffError(
            f"edp: {steps} sampler steps, expected 1 to {count}, the number of noise levels."
        )
    num_steps = count if steps is None else steps
    level_S = torch.tensor(
        [(count * (num_steps - number)) // num_steps - 1 for number in range(num_steps)]
    )
    alpha_S, sigma_S = schedule.alpha_K[level_S], schedule.sigma_K[level_S]
    next_alpha_S, next_sigma_S = (
        torch.cat([alpha_S[1:], torch.ones(1)]),
        torch.cat([sigma_S[1:], torch.zeros(1)]),
    )
    std_S = torch.zeros(num_steps)
    if steps is None:
        std_S = (
            next_sigma_S / sigma_S * (1.0 - (alpha_S / next_alpha_S).square()).clamp(min=0.0).sqrt()
        )
    return DiffusionGrid(
        level_S,
        alpha_S,
        sigma_S,
        next_alpha_S,
        next_sigma_S,
        std_S,
        clip=1.0,
        prediction="epsilon",
        renoise=True,
    )


class DiffusionActor(nn.Module):
    """Noise prediction network, an MLP with Mish, conditioned on noise level and features.

    Args:
        features: number of features F.
        actions: entries A of an action.
        config: layers and noise levels.
    """

    embeddings_KD: Tensor

    def __init__(self, features: int, actions: int, config: EdpConfig) -> None:
        super().__init__()
        size = config.embedding
        self.register_buffer(
            "embeddings_KD", sinusoidal_embedding(config.levels, size), persistent=False
        )
        self.level = nn.Sequential(nn.Linear(size, 2 * size), nn.Mish(), nn.Linear(2 * size, size))
        widths = (features + actions + size, *config.hidden)
        layers: list[nn.Module] = []
        for size_in, size_out in pairwise(widths):
            layers += [nn.Linear(size_in, size_out), nn.Mish()]
        self.body = nn.Sequential(*layers, nn.Linear(widths[-1], actions))

    def forward(self, noisy_BA: Tensor, level_B: Tensor, features_BF: Tensor) -> Tensor:
        """(B, A) predicted standard normal noise; `level_B` is the int64 noise level from 0."""
        return self.body(
            torch.cat([noisy_BA, self.level(self.embeddings_KD)[level_B], features_BF], dim=1)
        )


class OneStepPrediction(NamedTuple):
    """One noise prediction for a noisy action."""

    loss: Tensor
    """Denoising loss, the mean squared error of the noise."""
    clean_BA: Tensor
    """Predicted clean action, clipped to [-1, 1]."""


class EdpNetworks(InSampleCritics):
    """All networks of the learner; V is trained only with the objective `iql`."""

    def __init__(self, config: EdpConfig, sizes: Sizes) -> None:
        super().__init__(sizes, config.critics, config.critic, config.value_network)
        self.actor = DiffusionActor(self.features.size, sizes.action, config)
        self.actor_target = deepcopy(self.actor).requires_grad_(False)


class Edp:
    """EDP learner, for offline training and online fine-tuning.

    Random numbers depend only on the seed and the number of updates, so updates are reproducible.

    Args:
        config: options.
        sizes: sizes of observations and actions.
        seed: seed of initial weights and noise.

    Raises:
        HandoffError: the sampler has more steps than there are noise levels.
    """

    def __init__(self, config: EdpConfig, sizes: Sizes, seed: int = 0) -> None:
        self.config = config
        self.sizes = sizes
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = EdpNetworks(config, sizes)
        self.schedule = noise_schedule(config)
        self.grid = sampler_grid(self.schedule, config.steps)
        net, rate = self.networks, config.learning_rate
        self.optimizers = {
            "critic": torch.optim.Adam(net.critic.parameters(), rate, fused=True),
            "actor": torch.optim.Adam(net.actor.parameters(), rate, fused=True),
        }
        if config.objective == "iql":
            self.optimizers["value"] = torch.optim.Adam(net.value.parameters(), rate, fused=True)
        self.updates = 0
        self._generator = torch.Generator()

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """Updates V (iql only), Q, actor and targets, in this order, on each minibatch."""
        self._generator.manual_seed(sequence_seed(self.seed, self.updates))
        metrics: Metrics = {}
        for batch in minibatches:
            if self.config.objective == "iql":
                metrics |= self._update_value(batch)
            metrics |= self._update_critic(batch)
            loss, actor_metrics = self.actor_loss(batch)
            self.step("actor", loss)
            metrics |= actor_metrics
            move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        self._move_target_policy()
        self.updates += 1
        return metrics

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observation vectors (N, O), selected by Q among candidates.

        Without `rng` the noise of the candidates is fixed and the best one is selected, so that the
        action depends only on the observation.
        """
        config, rows = self.config, len(vector_NO)
        count = config.candidates
        features_NF = self.networks.features(
            torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        )
        # Candidate actions.
        features_BF = features_NF.repeat_interleave(count, dim=0)
        shape = (len(self.grid) + 1, rows if rng is not None else 1, count, self.sizes.action)
        noise_rng = (
            np.random.default_rng([self.seed, LearnerStream.ACTION_CANDIDATES])
            if rng is None
            else rng
        )
        noise = torch.from_numpy(noise_rng.standard_normal(shape, dtype=np.float32)).expand(
            -1, rows, -1, -1
        )
        action_BA = self.sample(self.networks.actor, features_BF, noise.flatten(1, 2))
        # Selection by Q; Gumbel noise samples from the softmax.
        score_NC = self.networks.action_value(features_BF, action_BA).view(rows, count).numpy()
        if rng is not None and config.choose == "softmax":
            score_NC = score_NC + rng.gumbel(size=score_NC.shape)
        return action_BA.numpy().reshape(rows, count, -1)[np.arange(rows), score_NC.argmax(axis=1)]

    def sample(self, actor: DiffusionActor, features_BF: Tensor, noise_LBA: Tensor) -> Tensor:
        """(B, A) actions sampled with the whole denoising chain, differentiable.

        Args:
            actor: noise prediction network.
            features_BF: features of the observations.
            noise_LBA: standard normal noise, L = S + 1: the initial sample, then one per step.
        """
        sample_BHA, active_B = noise_LBA[0][:, None], torch.ones(len(features_BF))

        def denoise(noisy_BHA: Tensor, level_B: Tensor) -> Tensor:
            return actor(noisy_BHA[:, 0], level_B, features_BF)[:, None]

        for number in range(len(self.grid)):
            step_B = torch.full((len(features_BF),), number)
            mean_BHA, std_B = self.grid.transition(denoise, sample_BHA, step_B, active_B)
            sample_BHA = mean_BHA + std_B[:, None, None] * noise_LBA[number + 1][:, None]
        return sample_BHA[:, 0]

    def predict_clean(self, features_BF: Tensor, action_BA: Tensor) -> OneStepPrediction:
        """Adds noise of random levels to the actions in the data and predicts it once."""
        level_B = torch.randint(self.config.levels, (len(action_BA),), generator=self._generator)
        noise_BA = self._normal(*action_BA.shape)
        alpha, sigma = self.schedule.alpha_K[level_B, None], self.schedule.sigma_K[level_B, None]
        noisy_BA = alpha * action_BA + sigma * noise_BA
        prediction_BA = self.networks.actor(noisy_BA, level_B, features_BF)
        clean_BA, _ = clean_and_noise("epsilon", prediction_BA, noisy_BA, alpha, sigma)
        return OneStepPrediction(mse_loss(prediction_BA, noise_BA), clean_BA.clamp(-1.0, 1.0))

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """Loss of the actor on one minibatch, and metrics."""
        config, net = self.config, self.networks
        features_BF = net.encode(batch.obs)
        prediction = self.predict_clean(features_BF, batch.action_BA)
        metrics = {"denoising_loss": prediction.loss.detach()}
        if config.objective == "td3":
            if not config.q_weight:
                return prediction.loss, metrics
            return prediction.loss + config.q_weight * self.q_loss(
                features_BF, prediction.clean_BA
            ), metrics
        with torch.no_grad():
            v_B = (
                net.state_value(features_BF)
                if config.objective == "iql"
                else self._policy_value(features_BF)
            )
            advantage_B = net.action_value(features_BF, batch.action_BA) - v_B
        weight_B = awr_weight(advantage_B, config.inverse_temperature, config.weight_clip)
        distance_B = (batch.action_BA - prediction.clean_BA).square().sum(dim=1)
        return prediction.loss + 0.5 * (weight_B * distance_B).mean(), {
            **metrics,
            "weight": weight_B.mean(),
        }

    def q_loss(self, features_BF: Tensor, action_BA: Tensor) -> Tensor:
        """Negative mean of one randomly selected critic, divided by its mean absolute value;
        gradients reach only the actions."""
        net = self.networks
        member = torch.randint(self.config.critics, (1,), generator=self._generator)
        net.critic.requires_grad_(False)
        q_B = net.critic(torch.cat([features_BF, action_BA], dim=1), member)[0, :, 0]
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

    def _update_value(self, batch: Transitions) -> Metrics:
        net = self.networks
        features_BF = net.encode(batch.obs)
        with torch.no_grad():
            q_B = net.action_value(features_BF, batch.action_BA)
        v_B = net.state_value(features_BF)
        loss = expectile_loss(q_B - v_B, self.config.expectile).mean()
        self.step("value", loss)
        return {"value_loss": loss.detach(), "v": v_B.detach().mean()}

    def _update_critic(self, batch: Transitions) -> Metrics:
        net = self.networks
        with torch.no_grad():
            next_BF = net.encode(batch.next_obs)
            if self.config.objective == "iql":
                next_value_B = net.state_value(next_BF)
            else:
                next_value_B = net.action_value(next_BF, self._target_action(next_BF))
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
        q_EB = net.all_values(net.encode(batch.obs), batch.action_BA)
        loss = squared_error(q_EB, target_B)
        self.step("critic", loss)
        return {"critic_loss": loss.detach(), "q": q_EB.detach().mean()}

    def _policy_value(self, features_BF: Tensor) -> Tensor:
        """(B,) mean Q over a few samples of the target policy."""
        count = self.config.crr_samples
        repeated_BF = features_BF.repeat_interleave(count, dim=0)
        return (
            self.networks.action_value(repeated_BF, self._target_action(repeated_BF))
            .view(-1, count)
            .mean(dim=1)
        )

    def _target_action(self, features_BF: Tensor) -> Tensor:
        noise_LBA = self._normal(len(self.grid) + 1, len(features_BF), self.sizes.action)
        return self.sample(self.networks.actor_target, features_BF, noise_LBA)

    def _move_target_policy(self) -> None:
        config, net = self.config, self.networks
        if self.updates < config.target_policy_after:
            move_towards(net.actor_target, net.actor, 1.0)
        elif self.updates % config.target_policy_every == 0:
            move_towards(net.actor_target, net.actor, config.tau)

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, generator=self._generator)
