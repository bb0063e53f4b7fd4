"""The SAC core: RLPD, SERL, HIL-SERL, RLIF and WSRL's online part are options of it.

Followed is the released code of HIL-SERL and RLPD: no entropy in the target and the mean of the
critics for the actor, unless the options say otherwise. Within an update the actor sees the critics
after their step, as in RLPD; the code of HIL-SERL takes both gradients at the old weights.

Shape suffixes: B batch, E members, A action, C commands of the hand, F features.
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
from policies.rl.networks.image_encoder import augmented, looked_at
from policies.rl.networks.learner_state import learner_state, load_learner_state
from policies.rl.off_policy.config import SacConfig
from policies.rl.off_policy.fused_sac import StepsByHand
from policies.rl.off_policy.sac_networks import SacNetworks
from policies.rl.off_policy.tanh_gaussian import TanhGaussian
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from policies.training.optimizer import ema_decay

_OVERRIDABLE = ("critic_loss", "actor_loss", "next_value", "features", "target_features")
_OVERRIDABLE += ("_update_critic", "_update_actor", "_step", "_noise")
"""Members of `Sac` that its fused steps stand for: a learner that overrides one of them learns by
autograd."""

Metrics = dict[str, Tensor]
"""Scalars of one update, detached."""

EMA_POWER = 0.75
"""With which the running mean of the acting weights grows slow; diffusion_policy's."""


class Sac:
    """The learner: networks, optimisers and a count of its updates.

    All its chance comes from the seed and the count, so an update can be repeated.

    Args:
        config: options.
        sizes: of the data.
        seed: of weights and noise.
        backbones: frozen networks for the pictures; see
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
        # Critics train the encoder, SAC's and the hand's each with moments of their own [C].
        encoder = [parameter for parameter in net.features.parameters() if parameter.requires_grad]
        self.optimizers: dict[str, Optimizer] = {
            "critic": Adam([*net.critic.parameters(), *encoder], config.learning_rate),
            "actor": Adam(net.actor.parameters(), config.actor_learning_rate),
            "temperature": Adam([net.log_temperature], config.temperature_learning_rate),
        }
        if net.gripper is not None and config.gripper is not None:
            self.optimizers["gripper"] = Adam(
                [*net.gripper.parameters(), *encoder], config.gripper.learning_rate
            )
        self.updates = 0
        self.by_hand = True
        """Whether the plain form's gradients come from `policies.rl.off_policy.fused_sac`, which is
        faster, or from autograd."""
        self._steps: StepsByHand | None = None
        self._generator = torch.Generator()

    def update(self, minibatches: Sequence[Transitions]) -> Metrics:
        """One critic step per minibatch, then one step of actor and temperature on the last.

        With U minibatches this is RLPD's update at U updates per data; HIL-SERL has two.
        """
        self._generator.manual_seed(mixed_seed(self.seed, self.updates))
        minibatches = [
            augmented(batch, self.config.encoder.shift, self._generator) for batch in minibatches
        ]
        metrics: Metrics = {}
        steps = self._steps_by_hand()
        for batch in minibatches:
            metrics |= self._update_critic(batch) if steps is None else steps.critic_step(batch)
            if self.networks.gripper is not None:
                metrics |= self._update_gripper(batch)
        last = minibatches[-1]
        metrics |= self._update_actor(last) if steps is None else steps.actor_step(last)
        if self.config.actor_ema is not None:
            self.networks.average(1.0 - ema_decay(self.updates, EMA_POWER, self.config.actor_ema))
        self.updates += 1
        return metrics

    def _steps_by_hand(self) -> StepsByHand | None:
        if not self.by_hand:
            return None
        if self._steps is None or not self._steps.fits():
            self._steps = steps_by_hand(self)
        return self._steps

    @torch.no_grad()
    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions in [-1, 1] for observations (N, O): drawn with `draw`, or without it the
        policy's mode."""
        return self.act_on(
            Observations(torch.from_numpy(np.ascontiguousarray(vector_NO, np.float32))), draw
        )

    @torch.no_grad()
    def act_on(self, seen: Observations, draw: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) actions likewise, for vectors and pictures."""
        features = self.features(seen)
        actor, gripper = self.networks.acting()
        if draw is None:
            action = actor.mode(features)
        else:
            noise = draw.standard_normal((len(features), self.continuous), dtype=np.float32)
            action = actor.sample(features, torch.from_numpy(noise)).action_BA
        if gripper is not None:
            command = gripper(features)[0].argmax(dim=1, keepdim=True) - 1
            action = torch.cat([action, command.to(action.dtype)], dim=1)
        return action.numpy()

    def state_dict(self) -> dict[str, Any]:
        """Weights, optimisers and the count; all that the next update depends on."""
        return learner_state(self.networks, self.optimizers, self.updates)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.updates = load_learner_state(state, self.networks, self.optimizers)

    def features(self, seen: Observations) -> Tensor:
        """(B, F): what critics and actor are shown."""
        return looked_at(self.networks.features, seen)

    def target_features(self, seen: Observations) -> Tensor | None:
        """(B, F) what the target critics are shown where an encoder learns; None: the same as
        all."""
        target = self.networks.features_target
        return None if target is None else looked_at(target, seen)

    def subset(self) -> Tensor | None:
        """Indices of the target critics to be asked, drawn; None of all."""
        size, members = self.config.subset, self.config.critics
        return (
            None
            if size is None or size >= members
            else random_subset(members, size, self._generator)
        )

    def next_value(self, features_BF: Tensor, target_BF: Tensor | None = None) -> Tensor:
        """(B,) value of the next state under the policy, by the target critics, who see `target_BF`
        where given."""
        config, net = self.config, self.networks
        draw = net.actor.sample(features_BF, self._noise(len(features_BF)))
        members = self.subset()
        inputs = torch.cat([features_BF if target_BF is None else target_BF, draw.action_BA], dim=1)
        value_B = net.critic_target(inputs, members)[..., 0].amin(dim=0)
        if config.backup_entropy:
            value_B = value_B - net.log_temperature.exp() * draw.log_prob_B
        return value_B

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """The critics' loss on one minibatch, and what it tells."""
        with torch.no_grad():
            after = batch.next_seen
            next_value_B = self.next_value(self.features(after), self.target_features(after))
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
        action_BA = batch.action_BA[:, : self.continuous]
        inputs = torch.cat([self.features(batch.seen), action_BA], dim=1)
        value_EB = self.networks.critic(inputs)[..., 0]
        loss = squared_error(value_EB, target_B)
        return loss, {
            "critic_loss": loss.detach(),
            "q": value_EB.detach().mean(),
            "target": target_B.mean(),
        }

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """The actor's loss on one minibatch, and what it tells."""
        net = self.networks
        with torch.no_grad():
            features_BF = self.features(batch.seen)
        draw = net.actor.sample(features_BF, self._noise(batch.rows))
        value_EB = net.critic(torch.cat([features_BF, draw.action_BA], dim=1))[..., 0]
        value_B = (
            value_EB.mean(dim=0) if self.config.actor_value == "mean" else value_EB.amin(dim=0)
        )
        loss = (net.log_temperature.detach().exp() * draw.log_prob_B - value_B).mean()
        return loss, {"actor_loss": loss.detach(), "entropy": -draw.log_prob_B.detach().mean()}

    def _update_critic(self, batch: Transitions) -> Metrics:
        loss, metrics = self.critic_loss(batch)
        self._step("critic", loss)
        move_towards(self.networks.critic_target, self.networks.critic, self.config.tau)
        if self.networks.features_target is not None:
            move_towards(self.networks.features_target, self.networks.features, self.config.tau)
        return metrics

    def _update_gripper(self, batch: Transitions) -> Metrics:
        """Double DQN on the hand's commands; the toggles' penalty enters here and nowhere else."""
        net, config = self.networks, self.config.gripper
        assert net.gripper is not None
        assert net.gripper_target is not None
        assert config is not None
        with torch.no_grad():
            after_BF = self.features(batch.next_seen)
            slow_BF = self.target_features(batch.next_seen)
            slow_BC = net.gripper_target(after_BF if slow_BF is None else slow_BF)[0]
            value_B = double_dqn_value(net.gripper(after_BF)[0], slow_BC)
            reward_B = batch.reward_B + config.toggle_penalty * batch.toggles_B
            target_B = bellman_target(reward_B, batch.discount_B, value_B)
        command_B1 = (batch.action_BA[:, -1:].round() + 1).long()
        loss = squared_error(
            net.gripper(self.features(batch.seen))[0].gather(1, command_B1)[:, 0], target_B
        )
        self._step("gripper", loss)
        move_towards(net.gripper_target, net.gripper, self.config.tau)
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
        """Moves the temperature down where the entropy is above its target; both are scalars."""
        # The loss exp(log alpha) (H - H*) is its own gradient, as in RLPD.
        self.networks.log_temperature.grad = temperature * (entropy - self.target_entropy)
        self.optimizers["temperature"].step()

    def _step(self, name: str, loss: Tensor) -> None:
        optimizer = self.optimizers[name]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def _noise(self, rows: int) -> Tensor:
        return torch.randn(rows, self.continuous, generator=self._generator)


def steps_by_hand(sac: Sac) -> StepsByHand | None:
    """The steps of a learner whose losses, networks and optimisers are SAC's own; None of
    another's."""
    net, optimizers = sac.networks, sac.optimizers
    own = (
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
    return StepsByHand(sac) if own else None
