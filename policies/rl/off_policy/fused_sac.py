"""The plain form of a SAC update without autograd: the losses of `Sac.critic_loss` and
`Sac.actor_loss`, by hand.

After every matrix product the processor's caches hold little of torch's own code, so each small
operation costs about ten microseconds whatever it computes; autograd and general code make three
times as many of them. The chance is drawn in the same order, so both forms make the same update up
to rounding. Whatever a learner overrides or replaces is
respected: `Sac` then leaves it to autograd.

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
    Form,
    Layers,
    Member,
    Passed,
    backward,
    forward,
    members_of,
)
from policies.rl.off_policy.tanh_gaussian import tanh_normal, tanh_normal_gradient
from policies.rl.replay.transitions import Transitions

if TYPE_CHECKING:
    from policies.rl.off_policy.config import SacConfig
    from policies.rl.off_policy.sac_networks import SacNetworks
    from policies.rl.replay.transitions import Observations


class NetworkByHand:
    """Views of a network's members and the memory of their gradients, made once.

    Args:
        network: of float32 on a processor.
    """

    def __init__(self, network: EnsembleMlp) -> None:
        self.form = Form(
            network.sizes.activation, network.sizes.layer_norm, tuple(range(network.members))
        )
        kinds = network.layers()
        self.parameters = [parameter for kind in kinds for parameter in kind]
        self.pointers = [parameter.data_ptr() for parameter in self.parameters]
        self.members = members_of(Layers(*([one.detach() for one in kind] for kind in kinds)))
        made = Layers(*([torch.zeros_like(one) for one in kind] for kind in kinds))
        self.gradients = [gradient for kind in made for gradient in kind]
        self.into = members_of(made)

    def is_of(self, network: EnsembleMlp) -> bool:
        """Whether the views still are those of the network's parameters."""
        return self.pointers == [
            parameter.data_ptr() for kind in network.layers() for parameter in kind
        ]

    def answer(self, member: int, inputs: Tensor) -> tuple[Tensor, list[Passed]]:
        """(B, U), and the tape for `pass_back`."""
        tape: list[Passed] = []
        return forward(self.form, self.members[member], inputs, tape), tape

    def pass_back(
        self,
        member: int,
        tape: list[Passed],
        gradient: Tensor,
        learns: bool,
        inputs_from: int | None = None,
    ) -> Tensor | None:
        """See `policies.rl.networks.fused_mlp.backward`; what learns writes into the parameters'
        gradients."""
        into: Member | None = self.into[member] if learns else None
        return backward(self.form, self.members[member], tape, gradient, into, inputs_from)

    def step(self, optimizer: Adam) -> None:
        """Moves the parameters along the gradients that `pass_back` wrote."""
        for parameter, gradient in zip(self.parameters, self.gradients, strict=True):
            parameter.grad = gradient
        optimizer.step()


class PlainSac(Protocol):
    """The parts of a SAC learner that its fused steps read and move."""

    config: SacConfig
    networks: SacNetworks
    continuous: int

    @property
    def optimizers(self) -> Mapping[str, Optimizer]:
        """Optimisers by name: critic, actor and temperature."""
        ...

    def features(self, seen: Observations) -> Tensor:
        """See `policies.rl.off_policy.sac.Sac.features`."""
        ...

    def subset(self) -> Tensor | None:
        """See `policies.rl.off_policy.sac.Sac.subset`."""
        ...

    def step_temperature(self, temperature: Tensor, entropy: Tensor) -> None:
        """See `policies.rl.off_policy.sac.Sac.step_temperature`."""
        ...

    def _noise(self, rows: int) -> Tensor: ...


class StepsByHand:
    """The steps of one learner.

    Args:
        sac: a learner of the plain form.
    """

    def __init__(self, sac: PlainSac) -> None:
        self.sac = sac
        net = sac.networks
        self.critic, self.target, self.actor = (
            NetworkByHand(network) for network in (net.critic, net.critic_target, net.actor.network)
        )

    def fits(self) -> bool:
        """Whether the networks are still where they were."""
        net = self.sac.networks
        pairs = (
            (self.critic, net.critic),
            (self.target, net.critic_target),
            (self.actor, net.actor.network),
        )
        return all(own.is_of(network) for own, network in pairs)

    @torch.no_grad()
    def critic_step(self, batch: Transitions) -> dict[str, Tensor]:
        """What `Sac._update_critic` does."""
        sac = self.sac
        target_B = self._target(batch)
        inputs = torch.cat([sac.features(batch.seen), batch.action_BA[:, : sac.continuous]], dim=1)
        errors, members = [], len(self.critic.members)
        share = 2.0 / (members * len(target_B))
        for member in range(members):
            value_B1, tape = self.critic.answer(member, inputs)
            error_B1 = value_B1.sub_(target_B[:, None])
            self.critic.pass_back(member, tape, error_B1 * share, learns=True)
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
        """What `Sac._update_actor` does."""
        sac = self.sac
        net, features_BF = sac.networks, sac.features(batch.seen)
        rows, first = features_BF.shape
        out_BD, actor_tape = self.actor.answer(0, features_BF)
        draw, kept = tanh_normal(out_BD, sac._noise(rows), net.actor.bounds)
        inputs = torch.cat([features_BF, draw.action_BA], dim=1)
        value, of_action_BA = self._climbed(inputs, first)
        temperature = net.log_temperature.detach().exp()
        of_out_BD = tanh_normal_gradient(kept, of_action_BA, temperature / rows)
        self.actor.pass_back(0, actor_tape, of_out_BD, learns=True)
        optimizer = sac.optimizers["actor"]
        assert isinstance(optimizer, Adam)
        self.actor.step(optimizer)
        entropy = draw.log_prob_B.mean().neg_()
        sac.step_temperature(temperature, entropy)
        return {
            "actor_loss": -temperature * entropy - value,
            "entropy": entropy,
            "temperature": temperature,
        }

    def _target(self, batch: Transitions) -> Tensor:
        """(B,) of the critics; `Sac.next_value` and Bellman's equation."""
        sac, config = self.sac, self.sac.config
        features_BF = sac.features(batch.next_seen)
        out_BD = forward(self.actor.form, self.actor.members[0], features_BF)
        draw, _ = tanh_normal(
            out_BD, sac._noise(len(features_BF)), sac.networks.actor.bounds, config.backup_entropy
        )
        inputs = torch.cat([features_BF, draw.action_BA], dim=1)
        asked = range(config.critics) if (members := sac.subset()) is None else members.tolist()
        values = [
            forward(self.target.form, self.target.members[member], inputs) for member in asked
        ]
        least_B = values[0][:, 0]
        for value_B1 in values[1:]:
            least_B = torch.minimum(least_B, value_B1[:, 0])
        if config.backup_entropy:
            least_B = least_B - sac.networks.log_temperature.detach().exp() * draw.log_prob_B
        return torch.addcmul(batch.reward_B, batch.discount_B, least_B)

    def _climbed(self, inputs: Tensor, first: int) -> tuple[Tensor, Tensor]:
        """Mean over the batch of what the actor climbs, and minus its gradient by the inputs from
        `first` on."""
        critic, rows, mean = self.critic, len(inputs), self.sac.config.actor_value == "mean"
        members = range(len(critic.members))
        share_B1 = torch.full((rows, 1), -1.0 / (rows * len(members)))
        values, tapes, parts = [], [], []
        for member in members:
            value_B1, tape = critic.answer(member, inputs)
            values.append(value_B1)
            if mean:
                # At once, while the member's activations are in the cache.
                parts.append(
                    critic.pass_back(member, tape, share_B1, learns=False, inputs_from=first)
                )
            else:
                tapes.append(tape)
        value_BE = torch.cat(values, dim=1)
        if not mean:
            least_B1 = value_BE.amin(dim=1, keepdim=True)
            chosen_BE = (value_BE == least_B1).to(value_BE.dtype)
            # As autograd does: members that share the minimum share its gradient.
            share_BE = chosen_BE / (chosen_BE.sum(dim=1, keepdim=True) * -rows)
            for member, tape in enumerate(tapes):
                share_B1 = share_BE[:, member : member + 1]
                parts.append(
                    critic.pass_back(member, tape, share_B1, learns=False, inputs_from=first)
                )
            value_BE = least_B1
        return value_BE.mean(), torch.stack(parts).sum(0)  # type: ignore[arg-type]
