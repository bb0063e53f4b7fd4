"""Computes the updates of standard SAC without autograd: `Sac.critic_loss` and `Sac.actor_loss`
with explicit gradients.

After each matrix product the CPU caches hold little of torch's code, so a small operation takes
about ten microseconds regardless of what it computes; autograd and general code need three times as
many of them. Random numbers are drawn in the same order, so both implementations make the same
update up to rounding. If a learner overrides or replaces one of the methods or modules, `Sac` uses
autograd.

Shape suffixes: B batch, E members, F features, A action, D outputs of the actor.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from policies.rl.networks.adam import Adam, Optimizer
from policies.rl.networks.ensemble import EnsembleMlp
from policies.rl.networks.fused_mlp import (
    EnsembleOptions,
    EnsembleParameters,
    LayerActivations,
    MemberParameters,
    backward,
    forward,
    member_views,
)
from policies.rl.off_policy.tanh_gaussian import tanh_normal, tanh_normal_gradient
from policies.rl.replay.transitions import Transitions

if TYPE_CHECKING:
    from policies.rl.off_policy.config import SacConfig
    from policies.rl.off_policy.sac_networks import SacNetworks
    from policies.rl.replay.transitions import Observations


class FusedNetwork:
    """Views of the members of an ensemble and buffers of their gradients, allocated once.

    Args:
        network: ensemble with float32 weights on a CPU.
    """

    def __init__(self, network: EnsembleMlp) -> None:
        self.options = EnsembleOptions(
            network.sizes.activation, network.sizes.layer_norm, tuple(range(network.members))
        )
        kinds = network.layers()
        self.parameters = [parameter for kind in kinds for parameter in kind]
        self.pointers = [parameter.data_ptr() for parameter in self.parameters]
        self.members = member_views(
            EnsembleParameters(*([parameter.detach() for parameter in kind] for kind in kinds))
        )
        buffers = EnsembleParameters(
            *([torch.zeros_like(parameter) for parameter in kind] for kind in kinds)
        )
        self.gradients = [gradient for kind in buffers for gradient in kind]
        self.gradient_views = member_views(buffers)

    def matches(self, network: EnsembleMlp) -> bool:
        """Whether the views still refer to the parameters of `network`."""
        return self.pointers == [
            parameter.data_ptr() for kind in network.layers() for parameter in kind
        ]

    def evaluate(self, member: int, inputs: Tensor) -> tuple[Tensor, list[LayerActivations]]:
        """(B, U) output of a member, and the activations for `backward_pass`."""
        tape: list[LayerActivations] = []
        return forward(self.options, self.members[member], inputs, tape), tape

    def backward_pass(
        self,
        member: int,
        tape: list[LayerActivations],
        gradient: Tensor,
        learns: bool,
        inputs_from: int | None = None,
    ) -> Tensor | None:
        """Backward pass of a member, see `policies.rl.networks.fused_mlp.backward`; `learns` writes
        the parameter gradients to their buffers."""
        gradient_views: MemberParameters | None = self.gradient_views[member] if learns else None
        return backward(
            self.options, self.members[member], tape, gradient, gradient_views, inputs_from
        )

    def step(self, optimizer: Adam) -> None:
        """Updates the parameters with the gradients that `backward_pass` wrote."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


class FusableSac(Protocol):
    """Attributes and methods of `Sac` that the fused steps use."""

    config: SacConfig
    networks: SacNetworks
    continuous: int

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """Optimisers of critic, actor and temperature, by name."""
        ...

    def features(self, obs: Observations) -> Tensor:
        """Features of the observations, (B, F)."""
        ...

    def subset(self) -> Tensor | None:
        """Randomly selected target critics; None selects all."""
        ...

    def step_temperature(self, temperature: Tensor, entropy: Tensor) -> None:
        """Temperature step; both arguments are scalars."""
        ...

    def _noise(self, rows: int) -> Tensor: ...


class FusedSteps:
    """Fused critic and actor steps of one learner.

    Args:
        sac: a learner without overridden methods or modules.
    """

    def __init__(self, sac: FusableSac) -> None:
        self.sac = sac
        net = sac.networks
        self.critic, self.target, self.actor = (
            FusedNetwork(network) for network in (net.critic, net.critic_target, net.actor.network)
        )

    def is_valid(self) -> bool:
        """Whether the views still refer to the networks of the learner."""
        net = self.sac.networks
        pairs = (
            (self.critic, net.critic),
            (self.target, net.critic_target),
            (self.actor, net.actor.network),
        )
        return all(fused.matches(network) for fused, network in pairs)

    @torch.no_grad()
    def critic_step(self, batch: Transitions) -> dict[str, Tensor]:
        """One critic step, equal to `Sac._update_critic`."""
        sac = self.sac
        target_B = self._target(batch)
        inputs = torch.cat([sac.features(batch.obs), batch.action_BA[:, : sac.continuous]], dim=1)
        errors, members = [], len(self.critic.members)
        scale = 2.0 / (members * len(target_B))
        for member in range(members):
            value_B1, tape = self.critic.evaluate(member, inputs)
            error_B1 = value_B1.sub_(target_B[:, None])
            self.critic.backward_pass(member, tape, error_B1 * scale, learns=True)
            errors.append(error_B1)
        optimizer = sac.optimizers["critic"]
        assert isinstance(optimizer, Adam)
        self.critic.step(optimizer)
        torch._foreach_lerp_(self.target.parameters, self.critic.parameters, sac.config.tau)
        error_N, target = torch.cat(errors).flatten(), target_B.mean()
        loss = torch.dot(error_N, error_N) / len(error_N)
        return {"critic_loss": loss, "q": error_N.mean() + target, "target": target}

    @torch.no_grad()
    def actor_step(self, batch: Transitions) -> dict[str, Tensor]:
        """One actor and temperature step, equal to `Sac._update_actor`."""
        sac = self.sac
        net, features_BF = sac.networks, sac.features(batch.obs)
        rows, first = features_BF.shape
        out_BD, actor_tape = self.actor.evaluate(0, features_BF)
        sample, cache = tanh_normal(out_BD, sac._noise(rows), net.actor.bounds)
        inputs = torch.cat([features_BF, sample.action_BA], dim=1)
        value, action_gradient_BA = self._actor_value(inputs, first)
        temperature = net.log_temperature.detach().exp()
        output_gradient_BD = tanh_normal_gradient(cache, action_gradient_BA, temperature / rows)
        self.actor.backward_pass(0, actor_tape, output_gradient_BD, learns=True)
        optimizer = sac.optimizers["actor"]
        assert isinstance(optimizer, Adam)
        self.actor.step(optimizer)
        entropy = sample.log_prob_B.mean().neg_()
        sac.step_temperature(temperature, entropy)
        return {
            "actor_loss": -temperature * entropy - value,
            "entropy": entropy,
            "temperature": temperature,
        }

    def _target(self, batch: Transitions) -> Tensor:
        """(B,) Bellman target of the critics, equal to `Sac.next_value` and `bellman_target`."""
        sac, config = self.sac, self.sac.config
        features_BF = sac.features(batch.next_obs)
        out_BD = forward(self.actor.options, self.actor.members[0], features_BF)
        sample, _ = tanh_normal(
            out_BD, sac._noise(len(features_BF)), sac.networks.actor.bounds, config.backup_entropy
        )
        inputs = torch.cat([features_BF, sample.action_BA], dim=1)
        selected = range(config.critics) if (members := sac.subset()) is None else members.tolist()
        values = [
            forward(self.target.options, self.target.members[member], inputs) for member in selected
        ]
        minimum_B = values[0][:, 0]
        for value_B1 in values[1:]:
            minimum_B = torch.minimum(minimum_B, value_B1[:, 0])
        if config.backup_entropy:
            minimum_B = minimum_B - sac.networks.log_temperature.detach().exp() * sample.log_prob_B
        return torch.addcmul(batch.reward_B, batch.discount_B, minimum_B)

    def _actor_value(self, inputs: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Mean critic value over the batch, and the negative gradient for the critic inputs from
        `first` on."""
        critic = self.critic
        rows = len(inputs)
        mean = self.sac.config.actor_value == "mean"
        members = range(len(critic.members))
        weight_B1 = torch.full((rows, 1), -1.0 / (rows * len(members)))
        values = []
        tapes = []
        input_gradients = []
        for member in members:
            value_B1, tape = critic.evaluate(member, inputs)
            values.append(value_B1)
            if mean:
                # Immediately, while the activations of the member are in the cache.
                input_gradients.append(
                    critic.backward_pass(member, tape, weight_B1, learns=False, inputs_from=first)
                )
            else:
                tapes.append(tape)
        value_BE = torch.cat(values, dim=1)
        if not mean:
            minimum_B1 = value_BE.amin(dim=1, keepdim=True)
            is_minimum_BE = (value_BE == minimum_B1).to(value_BE.dtype)
            # As in autograd, members with the same minimum divide its gradient.
            weight_BE = is_minimum_BE / (is_minimum_BE.sum(dim=1, keepdim=True) * -rows)
            for member, tape in enumerate(tapes):
                weight_B1 = weight_BE[:, member : member + 1]
                input_gradients.append(
                    critic.backward_pass(member, tape, weight_B1, learns=False, inputs_from=first)
                )
            value_BE = minimum_B1
        return value_BE.mean(), torch.stack(input_gradients).sum(0)  # type: ignore[arg-type]
