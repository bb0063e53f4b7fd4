"""Implements soft actor-critic (SAC) with the options of RLPD, SERL, HIL-SERL, RLIF and WSRL.

The implementation follows the released code of HIL-SERL and RLPD: by default, no entropy in the
Bellman target, and the actor maximises the mean of the critics. Within an update, the actor uses
the critics after their step, as in RLPD; the code of HIL-SERL computes both gradients at the old
weights.

Shape suffixes: B batch, E members, A action, C gripper commands, F features.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from policies.random_streams import mixed_seed
from policies.rl.networks.adam import Adam, Optimizer
from policies.rl.networks.critics import (
    bellman_target,
    double_dqn_value,
    random_subset,
    squared_error,
)
from policies.rl.networks.ensemble import EnsembleMlp, Features, move_towards
from policies.rl.networks.image_encoder import (
    Encoder,
    augmented,
    encode_observations,
    in_single_precision,
)
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.off_policy.config import SacConfig
from policies.rl.off_policy.fused_sac import FusedSteps
from policies.rl.off_policy.sac_networks import SacNetworks
from policies.rl.off_policy.tanh_gaussian import TanhGaussian
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from policies.training.optimizer import ema_decay

_OVERRIDABLE = ("critic_loss", "actor_loss", "next_value", "features", "target_features")
_OVERRIDABLE += ("_update_critic", "_update_actor", "_step", "_noise")
"""Methods of `Sac` that the fused steps replace; a learner that overrides one of them uses
autograd."""

Metrics = dict[str, Tensor]
"""Detached scalars of one update."""

EMA_POWER = 0.75
"""Exponent of the warm-up of the weight average; that of diffusion_policy."""


class Sac:
    """SAC learner: networks, optimisers and the number of updates.

    Random numbers depend only on the seed and the number of updates, so updates are reproducible.

    Args:
        config: options.
        sizes: sizes of observations and actions.
        seed: seed of initial weights and noise.
        backbones: frozen image backbones per camera; see
            `policies.rl.networks.image_encoder.Encoder`.
    """

    def __init__(
        self,
        config: SacConfig,
        sizes: Sizes,
        seed: int = 0,
        backbones: Mapping[str, nn.Module] | None = None,
    ) -> None:
        self.config = config
        self.sizes = sizes
        self.seed = seed
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.networks = SacNetworks(config, sizes, backbones)
        net = self.networks
        self.continuous = net.actor.actions
        self.target_entropy = (
            -0.5 * self.continuous if config.target_entropy is None else config.target_entropy
        )
        # The critics of SAC and of the gripper train the encoder by the sum of their losses, so
        # that it runs once; the code of HIL-SERL has an optimiser of the encoder for each.
        encoder = [parameter for parameter in net.features.parameters() if parameter.requires_grad]
        self.optimizers: dict[str, Optimizer] = {
            "critic": Adam([*net.critic.parameters(), *encoder], config.learning_rate),
            "actor": Adam(net.actor.parameters(), config.actor_learning_rate),
            "temperature": Adam([net.log_temperature], config.temperature_learning_rate),
        }
        if net.gripper is not None and config.gripper is not None:
            self.optimizers["gripper"] = Adam(
                list(net.gripper.parameters()), config.gripper.learning_rate
            )
        self.updates = 0
        self.fused = True
        """Whether to use the faster steps of `policies.rl.off_policy.fused_sac` where they apply,
        instead of autograd."""
        self._steps: FusedSteps | None = None
        self._encoded: dict[int, Tensor] = {}
        """Features of the observations of the present minibatch, by their identity."""
        self._encoded_targets: dict[int, Tensor] = {}
        """The same from the target encoder."""
        self._generator = torch.Generator()

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """One critic step per minibatch, then one actor and temperature step on the last minibatch.

        With U minibatches this is an update of RLPD with update-to-data ratio U; HIL-SERL uses 2.
        """
        self._generator.manual_seed(mixed_seed(self.seed, self.updates))
        minibatches = [
            augmented(batch, self.config.encoder.shift, self._generator) for batch in minibatches
        ]
        metrics: Metrics = {}
        steps = self._fused_steps()
        encodes = isinstance(self.networks.features, Encoder)
        if encodes:
            # Each map is read several times, so it is converted once.
            minibatches = [in_single_precision(batch) for batch in minibatches]
        for batch in minibatches:
            if encodes:
                metrics |= self._update_encoder(batch)
                continue
            metrics |= self._update_critic(batch) if steps is None else steps.critic_step(batch)
            if self.networks.gripper is not None:
                metrics |= self._update_gripper(batch)
        last = minibatches[-1]
        if encodes:
            with torch.no_grad():
                self._encoded = {id(last.obs): self.features(last.obs)}
        metrics |= self._update_actor(last) if steps is None else steps.actor_step(last)
        self._encoded = {}
        if self.config.actor_ema is not None:
            self.networks.update_ema(
                1.0 - ema_decay(self.updates, EMA_POWER, self.config.actor_ema)
            )
        self.updates += 1
        return metrics

    def _fused_steps(self) -> FusedSteps | None:
        if not self.fused:
            return None
        if self._steps is None or not self._steps.is_valid():
            self._steps = fused_steps(self)
        return self._steps

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observation vectors (N, O): sampled with `rng`, or the mode
        of the policy if it is None."""
        return self.act_on(
            Observations(torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))), rng
        )

    @torch.no_grad()
    def act_on(self, obs: Observations, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observation vectors and images; see `act`."""
        features = self.features(obs)
        actor, gripper = self.networks.acting()
        if rng is None:
            action = actor.mode(features)
        else:
            noise = rng.standard_normal((len(features), self.continuous), dtype=np.float32)
            action = actor.sample(features, torch.from_numpy(noise)).action_BA
        if gripper is not None:
            command = gripper(features)[0].argmax(dim=1, keepdim=True) - 1
            action = torch.cat([action, command.to(action.dtype)], dim=1)
        return action.numpy()

    def state_dict(self) -> dict[str, Any]:
        """Complete state: weights, optimisers and number of updates."""
        return learner_state(self.networks, self.optimizers, self.updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)

    def features(self, obs: Observations) -> Tensor:
        """(B, F) features of the observations for critics and actor."""
        known = self._encoded.get(id(obs))
        return encode_observations(self.networks.features, obs) if known is None else known

    def target_features(self, obs: Observations) -> Tensor | None:
        """(B, F) features for the target critics from the target encoder; None without an image
        encoder, when they are the same as `features`."""
        target = self.networks.features_target
        if target is None:
            return None
        known = self._encoded_targets.get(id(obs))
        return encode_observations(target, obs) if known is None else known

    def subset(self) -> Tensor | None:
        """Randomly selected target critics for the Bellman target; None selects all."""
        size, members = self.config.subset, self.config.critics
        return (
            None
            if size is None or size >= members
            else random_subset(members, size, self._generator)
        )

    def next_value(self, features_BF: Tensor, target_BF: Tensor | None = None) -> Tensor:
        """(B,) value of the next state under the policy by the target critics, which use the
        features `target_BF` if given."""
        config, net = self.config, self.networks
        sample = net.actor.sample(features_BF, self._noise(len(features_BF)))
        members = self.subset()
        inputs = torch.cat(
            [features_BF if target_BF is None else target_BF, sample.action_BA], dim=1
        )
        value_B = net.critic_target(inputs, members)[..., 0].amin(dim=0)
        if config.backup_entropy:
            value_B = value_B - net.log_temperature.exp() * sample.log_prob_B
        return value_B

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """Loss of the critics on one minibatch, and metrics."""
        with torch.no_grad():
            next_obs = batch.next_obs
            next_value_B = self.next_value(self.features(next_obs), self.target_features(next_obs))
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
        action_BA = batch.action_BA[:, : self.continuous]
        inputs = torch.cat([self.features(batch.obs), action_BA], dim=1)
        value_EB = self.networks.critic(inputs)[..., 0]
        loss = squared_error(value_EB, target_B)
        return loss, {
            "critic_loss": loss.detach(),
            "q": value_EB.detach().mean(),
            "target": target_B.mean(),
        }

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """Loss of the actor on one minibatch, and metrics."""
        net = self.networks
        with torch.no_grad():
            features_BF = self.features(batch.obs)
        sample = net.actor.sample(features_BF, self._noise(batch.rows))
        value_EB = net.critic(torch.cat([features_BF, sample.action_BA], dim=1))[..., 0]
        value_B = (
            value_EB.mean(dim=0) if self.config.actor_value == "mean" else value_EB.amin(dim=0)
        )
        loss = (net.log_temperature.detach().exp() * sample.log_prob_B - value_B).mean()
        return loss, {"actor_loss": loss.detach(), "entropy": -sample.log_prob_B.detach().mean()}

    def _update_critic(self, batch: Transitions) -> Metrics:
        loss, metrics = self.critic_loss(batch)
        self._step("critic", loss)
        self._move_targets(("critic", "features"))
        return metrics

    def gripper_loss(self, batch: Transitions) -> Tensor:
        """Double DQN loss of the gripper commands; only here the toggle penalty is added to the
        reward."""
        net, config = self.networks, self.config.gripper
        assert net.gripper is not None
        assert net.gripper_target is not None
        assert config is not None
        with torch.no_grad():
            next_BF = self.features(batch.next_obs)
            target_BF = self.target_features(batch.next_obs)
            target_BC = net.gripper_target(next_BF if target_BF is None else target_BF)[0]
            value_B = double_dqn_value(net.gripper(next_BF)[0], target_BC)
            reward_B = batch.reward_B + config.toggle_penalty * batch.toggles_B
            target_B = bellman_target(reward_B, batch.discount_B, value_B)
        command_B1 = (batch.action_BA[:, -1:].round() + 1).long()
        return squared_error(
            net.gripper(self.features(batch.obs))[0].gather(1, command_B1)[:, 0], target_B
        )

    def imitation_loss(self, batch: Transitions) -> tuple[Tensor, Metrics] | None:
        """Further loss of the gripper's critic, which SAC lacks."""
        return None

    def _update_encoder(self, batch: Transitions) -> Metrics:
        """Critic step, and with a gripper its critic's, on observations that are encoded once; the
        sum of the losses trains the encoder."""
        net = self.networks
        self._encoded = {
            id(batch.obs): encode_observations(net.features, batch.obs, self._generator)
        }
        with torch.no_grad():
            self._encoded[id(batch.next_obs)] = self.features(batch.next_obs)
            target = self.target_features(batch.next_obs)
        assert target is not None
        self._encoded_targets = {id(batch.next_obs): target}
        loss, metrics = self.critic_loss(batch)
        names = ["critic"]
        if net.gripper is not None:
            names.append("gripper")
            gripper_loss = self.gripper_loss(batch)
            metrics["gripper_loss"] = gripper_loss.detach()
            loss = loss + gripper_loss
            imitation = self.imitation_loss(batch)
            if imitation is not None:
                loss = loss + imitation[0]
                metrics |= imitation[1]
        for name in names:
            self.optimizers[name].zero_grad(set_to_none=True)
        loss.backward()
        for name in names:
            self.optimizers[name].step()
        self._encoded = {}
        self._encoded_targets = {}
        self._move_targets(("critic", "features", "gripper"))
        return metrics

    def _move_targets(self, names: tuple[str, ...]) -> None:
        """Moves the target networks of these networks, where there are any, by `tau`."""
        for name in names:
            target = getattr(self.networks, f"{name}_target")
            if target is not None:
                move_towards(target, getattr(self.networks, name), self.config.tau)

    def _update_gripper(self, batch: Transitions) -> Metrics:
        """Step of the gripper's critic."""
        loss = self.gripper_loss(batch)
        self._step("gripper", loss)
        self._move_targets(("gripper",))
        return {"gripper_loss": loss.detach()}

    def _update_actor(self, batch: Transitions) -> Metrics:
        net = self.networks
        net.critic.requires_grad_(False)
        loss, metrics = self.actor_loss(batch)
        self._step("actor", loss)
        net.critic.requires_grad_(True)
        temperature = net.log_temperature.detach().exp()
        self.step_temperature(temperature, metrics["entropy"])
        return {**metrics, "temperature": temperature}

    def step_temperature(self, temperature: Tensor, entropy: Tensor) -> None:
        """Temperature step, which lowers the temperature if the entropy is above its target; both
        arguments are scalars."""
        # The gradient of the loss exp(log alpha) (H - H*) equals the loss, as in RLPD.
        self.networks.log_temperature.grad = temperature * (entropy - self.target_entropy)
        self.optimizers["temperature"].step()

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def _noise(self, rows: int) -> Tensor:
        return torch.randn(rows, self.continuous, generator=self._generator)


def fused_steps(sac: Sac) -> FusedSteps | None:
    """Fused steps of a learner whose losses, networks and optimisers are those of `Sac`; None for
    any other learner."""
    net, optimizers = sac.networks, sac.optimizers
    is_standard = (
        type(net.actor) is TanhGaussian
        and net.actor.fixed is None
        and type(net.features) is Features
        and all(
            type(network) is EnsembleMlp
            for network in (net.critic, net.critic_target, net.actor.network)
        )
        and all(type(optimizers[name]) is Adam for name in ("critic", "actor", "temperature"))
        and all(getattr(type(sac), name) is getattr(Sac, name) for name in _OVERRIDABLE)
        and not any(name in vars(sac) for name in _OVERRIDABLE)
        and net.log_temperature.device.type == "cpu"
        and net.log_temperature.dtype == torch.float32
    )
    return FusedSteps(sac) if is_standard else None
