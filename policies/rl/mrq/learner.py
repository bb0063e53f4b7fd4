"""Implements MR.Q, model-based representations for Q-learning (Fujimoto et al., arXiv 2501.16142),
for observation vectors and continuous actions.

Encoders of states and of pairs of state and action are trained to predict the next embedding, the
reward (two-hot) and termination over unrolls of several steps. Values and policy are those of TD3
on these embeddings, which they do not train: multi-step returns, the lower of two target values, a
Huber loss, and rewards in units of their mean absolute value. Every `target_every` updates all
targets are copied and the encoders get as many updates.

This follows the released code [C], except where it differs from the paper or from the other
learners here. Its multi-step return leaves out the reward of the step that terminates, and includes
rewards of the following episode; here the return ends with the episode and includes its last
reward. It samples no steps within a horizon of a truncation; here they are sampled, with shorter
returns, and unrolls are masked behind the truncation. While all stored rewards are 0, their scale
is 1, not 1e-8. Pictures and discrete actions are not supported.

Shape suffixes: B batch, N environments, H steps, E values, O observation, S state embedding, P pair
embedding, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.random_streams import LearnerStream, sequence_seed
from policies.rl.mrq.config import MrqConfig
from policies.rl.mrq.networks import MrqNetworks
from policies.rl.networks.adam import Optimizer
from policies.rl.networks.distributional import cross_entropy, two_hot
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.networks.running_normaliser import RunningNormaliser
from policies.rl.off_policy.exploration_noise import PerEnvNoise
from policies.rl.replay.transitions import Sizes, Transitions
from policies.rl.replay.unrolls import Unrolls
from robots.errors import HandoffError


class MrqUpdate(NamedTuple):
    """Result of an update of values and policy."""

    metrics: dict[str, Any]
    error_B: np.ndarray
    """Absolute temporal-difference error of each row, the larger of both values', in units of the
    reward scale."""


class Mrq:
    """MR.Q learner: updates, observation statistics, exploration noise.

    The random numbers of an update depend only on the seed and the number of updates; those of
    acting come from an argument.

    Args:
        config: options.
        sizes: sizes of observation vectors and actions; images are not supported.
        num_envs: number of environments N for exploration.
        seed: seed of initial weights and of the updates.

    Raises:
        HandoffError: observations have images, or `num_envs` is below 1.
    """

    def __init__(self, config: MrqConfig, sizes: Sizes, num_envs: int, seed: int = 0) -> None:
        if sizes.pictures or sizes.maps:
            cameras = [name for name, *_ in (*sizes.pictures, *sizes.maps)]
            raise HandoffError(
                f"mrq: cameras {cameras}, but MR.Q supports only observation vectors."
            )
        self.config = config
        self.sizes = sizes
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = MrqNetworks(config, sizes)
        net, encoder = self.networks, config.encoder
        self.optimizers: dict[str, Optimizer] = {
            name: torch.optim.AdamW(module.parameters(), rate, weight_decay=decay, fused=True)
            for name, module, rate, decay in (
                ("encoder", net.encoder, encoder.learning_rate, encoder.weight_decay),
                ("value", net.value, config.value_learning_rate, config.value_weight_decay),
                ("policy", net.policy, config.policy_learning_rate, config.policy_weight_decay),
            )
        }
        self.noise = PerEnvNoise(config.noise, num_envs)
        self.normaliser = RunningNormaliser(net.features)
        self.updates = 0
        """Number of updates of values and policy."""
        self.encoder_updates = 0
        """Number of updates of the encoders."""
        self.reward_scale = 1.0
        """Mean absolute reward, in units of which the values are."""
        self.target_reward_scale = 1.0
        """Reward scale of the target values."""
        self._encoder_metrics: dict[str, float] = {}
        self._generator = torch.Generator()

    @property
    def policy_updates(self) -> int:
        """Number of updates of the policy, one per update."""
        return self.updates

    @property
    def synchronisation_due(self) -> bool:
        """Whether the targets are copied and the encoders updated before the next update."""
        return self.updates % self.config.target_every == 0

    def synchronise(self, reward_scale: float) -> None:
        """Copies all networks to their targets.

        Args:
            reward_scale: mean absolute reward of the replay buffer, above 0, in units of which the
                values are learned until the next call.
        """
        self.networks.synchronise()
        self.target_reward_scale = self.reward_scale
        self.reward_scale = reward_scale

    def update_encoder(self, batch: Unrolls, *, terminates: bool) -> None:
        """One update of the encoders; see `encoder_loss`."""
        loss, metrics = self.encoder_loss(batch, terminates=terminates)
        self._step("encoder", loss)
        self.encoder_updates += 1
        self._encoder_metrics = {name: float(value) for name, value in metrics.items()}

    def encoder_loss(self, batch: Unrolls, *, terminates: bool) -> tuple[Tensor, dict[str, Tensor]]:
        """Sum over the steps of the unroll of the weighted losses, and metrics.

        Args:
            batch: sequences of steps; steps that are not valid have no loss.
            terminates: whether any stored step terminates; otherwise termination is not learned.
        """
        net, config = self.networks, self.config.encoder
        rows = batch.valid_BH.shape
        with torch.no_grad():
            next_BO = batch.next_BHO.flatten(0, 1)
            target_BHS = net.encoder_target.state(net.features(next_BO)).unflatten(0, rows)
        reward_BHK = two_hot(batch.reward_BH, net.atoms_K)
        state_BS = net.encoder.state(net.features(batch.vector_BO))
        losses = torch.zeros(3)
        for step in range(batch.steps):
            predicted = net.encoder.predict(state_BS, batch.action_BHA[:, step])
            state_BS = predicted.state_BS
            error_B = (state_BS - target_BHS[:, step]).square().mean(dim=1)
            entropy_B = cross_entropy(predicted.reward_BK, reward_BHK[:, step])
            miss_B = (predicted.terminal_B - batch.terminated_BH[:, step]).square()
            # As in the code, the mean is over all rows, also those that have ended.
            step_3B = torch.stack([error_B, entropy_B, miss_B]) * batch.valid_BH[:, step]
            losses = losses + step_3B.mean(dim=1)
        dynamics, reward, terminal = losses
        loss = config.dynamics_weight * dynamics + config.reward_weight * reward
        metrics = {"dynamics_loss": dynamics.detach(), "reward_loss": reward.detach()}
        if terminates:
            loss = loss + config.terminal_weight * terminal
            metrics["terminal_loss"] = terminal.detach()
        return loss, metrics

    def update(self, batch: Transitions) -> MrqUpdate:
        """One update of the values, followed by one of the policy on the same minibatch."""
        net = self.networks
        self._generator.manual_seed(
            sequence_seed(self.seed, LearnerStream.MRQ_UPDATE, self.updates)
        )
        target_B = self.target(batch)
        with torch.no_grad():
            state_BS = net.encoder.state(net.features(batch.obs.vector_BO))
            pair_BP = net.encoder.pair(state_BS, batch.action_BA)
        value_EB = net.value(pair_BP)
        value_loss = functional.smooth_l1_loss(value_EB, target_B.expand_as(value_EB))
        self._step("value", value_loss)
        policy_loss = self._update_policy(state_BS)
        self.updates += 1
        metrics = {
            "critic_loss": value_loss.detach(),
            "actor_loss": policy_loss.detach(),
            "target": target_B.mean() * self.reward_scale,
            "reward_scale": self.reward_scale,
            **self._encoder_metrics,
        }
        error_B = (value_EB.detach() - target_B).abs().amax(dim=0).numpy()
        return MrqUpdate(metrics, error_B)

    @torch.no_grad()
    def target(self, batch: Transitions) -> Tensor:
        """(B,) targets of the values: the multi-step return with the lower target value of the
        noisy target action, in units of the reward scale."""
        net, config = self.networks, self.config
        state_BS = net.encoder_target.state(net.features(batch.next_obs.vector_BO))
        noise_BA = torch.randn(batch.action_BA.shape, generator=self._generator)
        noise_BA = noise_BA * config.target_noise
        noise_BA = noise_BA.clamp(-config.target_noise_clip, config.target_noise_clip)
        action_BA = (torch.tanh(net.policy_target(state_BS)) + noise_BA).clamp(-1.0, 1.0)
        value_B = net.value_target(net.encoder_target.pair(state_BS, action_BA)).amin(dim=0)
        value_B = value_B * self.target_reward_scale
        return (batch.reward_B + batch.discount_B * value_B) / self.reward_scale

    def policy_loss(self, state_BS: Tensor) -> Tensor:
        """Negative mean of both values of the policy's actions, with the penalty on its outputs
        before tanh."""
        net = self.networks
        output_BA = net.policy(state_BS)
        value_EB = net.value(net.encoder.pair(state_BS, torch.tanh(output_BA)))
        return -value_EB.mean() + self.config.pre_activation_weight * output_BA.square().mean()

    def observe(self, vector_NO: np.ndarray, began_N: np.ndarray, rng: np.random.Generator) -> None:
        """Updates observation statistics and exploration noise before a step of all environments;
        see `policies.rl.off_policy.fast_td3.FastTd3.observe`."""
        self.noise.begin_episodes(began_N, rng)
        if self.config.normalise:
            self.normaliser.update(vector_NO)

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observation vectors (N, O), with exploration noise, or
        without if `rng` is None."""
        vector = torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))
        action_NA = self.networks.action(vector).numpy()
        return action_NA if rng is None else self.noise.add_noise(action_NA, rng)

    def state_dict(self) -> dict[str, Any]:
        """Complete state: weights, optimisers, numbers of updates, scales, statistics and
        exploration noise."""
        return {
            **learner_state(self.networks, self.optimizers, self.updates),
            "encoder_updates": self.encoder_updates,
            "encoder_metrics": self._encoder_metrics,
            "reward_scale": self.reward_scale,
            "target_reward_scale": self.target_reward_scale,
            "normaliser": self.normaliser.state_dict(),
            "deviation": self.noise.state(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`.

        Raises:
            HandoffError: the state has another number of environments.
        """
        self.noise.load_state(state["deviation"], "mrq")
        self.updates = load_learner_state(state, self.networks, self.optimizers)
        self.encoder_updates = state["encoder_updates"]
        self._encoder_metrics = dict(state["encoder_metrics"])
        self.reward_scale = state["reward_scale"]
        self.target_reward_scale = state["target_reward_scale"]
        self.normaliser.load_state_dict(state["normaliser"])

    def _update_policy(self, state_BS: Tensor) -> Tensor:
        net = self.networks
        for module in (net.encoder, net.value):
            module.requires_grad_(False)
        loss = self.policy_loss(state_BS)
        self._step("policy", loss)
        for module in (net.encoder, net.value):
            module.requires_grad_(True)
        return loss

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        if name == "value" and self.config.value_max_grad_norm is not None:
            limit = self.config.value_max_grad_norm
            nn.utils.clip_grad_norm_(self.networks.value.parameters(), limit)
        optimizer.step()
