"""Cal-QL and CQL: pessimistic critics from offline data (Nakamoto et al., arXiv 2303.05479; Kumar
et al., 2006.04779).

To the squared Bellman error comes weight * (logsumexp_a Q(s, a) - Q(s, a of the data)): values of
actions that the data do not hold are pushed down. Cal-QL stops pushing the policy's actions where
their values fall below the return that the data's own policy got from there, so what it hands over
to online learning has the right scale; CQL is the same without.

Followed is the released code: actions are drawn at random, from the policy at s and from the policy
at s' (all valued at s), each corrected by its log-density, and log of their number is not
subtracted, which matters to the Lagrange form only; the target takes the largest of several next
actions' values, each the minimum over critics.

Shape suffixes: B batch, E members, K drawn actions per row, F features, A action.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from policies.rl.networks.adam import Adam
from policies.rl.networks.critics import bellman_target, squared_error
from policies.rl.off_policy.sac import Metrics, Sac
from policies.rl.offline.config import CalQlConfig
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError

MC_RETURN = "mc_return"
"""Name in `Transitions.extra` of the return that the data got from a step on."""


class CalQl(Sac):
    """The learner.

    Args:
        config: options.
        sizes: of the data.
        seed: of weights and noise.

    Raises:
        HandoffError: options of the SAC core that conservatism is not defined for here.
    """

    def __init__(self, config: CalQlConfig, sizes: Sizes, seed: int = 0) -> None:
        if config.sac.gripper is not None or config.sac.backup_entropy:
            raise HandoffError(
                "cal-ql: a critic of the hand and entropy in the target are not supported; set sac.gripper to None and "
                "sac.backup_entropy to False."
            )
        super().__init__(config.sac, sizes, seed)
        self.conservatism = config
        self.log_multiplier = nn.Parameter(torch.tensor(1.0))
        """Of the Lagrange form; 1 at the start [C]."""
        if config.gap is not None:
            self.optimizers["multiplier"] = Adam([self.log_multiplier], config.sac.learning_rate)

    def next_value(self, features_BF: Tensor, target_BF: Tensor | None = None) -> Tensor:
        """(B,) the largest value among those of several actions that the policy draws."""
        count = self.conservatism.target_actions
        many_BF = features_BF.repeat_interleave(count, dim=0)
        slow_BF = None if target_BF is None else target_BF.repeat_interleave(count, dim=0)
        return super().next_value(many_BF, slow_BF).reshape(-1, count).amax(dim=1)

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """Bellman error and conservatism; see the header.

        Raises:
            HandoffError: Cal-QL without the data's returns.
        """
        config = self.conservatism
        features_BF = self.features(batch.seen)
        with torch.no_grad():
            next_BF = self.features(batch.next_seen)
            next_value_B = self.next_value(next_BF, self.target_features(batch.next_seen))
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
            action_BKA, log_density_BK = self._drawn(features_BF, next_BF)
        actions = torch.cat([batch.action_BA[:, None], action_BKA], dim=1)
        rows = features_BF[:, None].expand(-1, actions.shape[1], -1)
        value = self.networks.critic(torch.cat([rows, actions], dim=2).flatten(0, 1))[..., 0]
        value = value.reshape(len(value), *actions.shape[:2])
        data_EB, value_EBK = value[..., 0], value[..., 1:]
        if config.calibrated:
            value_EBK = calibrated(value_EBK, _returns(batch), config.actions)
        gap = (torch.logsumexp(value_EBK - log_density_BK, dim=2) - data_EB).mean()
        bellman = squared_error(data_EB, target_B)
        weight = config.weight
        if config.gap is not None:
            weight = weight * self.log_multiplier.detach().exp().clamp(max=1e6)
        return bellman + weight * gap, {
            "critic_loss": bellman.detach(),
            "q": data_EB.detach().mean(),
            "target": target_B.mean(),
            "conservatism": gap.detach(),
        }

    def state_dict(self) -> dict[str, Any]:
        """See `Sac.state_dict`."""
        return {**super().state_dict(), "log_multiplier": self.log_multiplier.detach().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over."""
        super().load_state_dict(state)
        self.log_multiplier.data.copy_(state["log_multiplier"])

    def _update_critic(self, batch: Transitions) -> Metrics:
        metrics, config = super()._update_critic(batch), self.conservatism
        if config.gap is not None:
            self._step(
                "multiplier",
                self.log_multiplier.exp() * config.weight * (config.gap - metrics["conservatism"]),
            )
            metrics["multiplier"] = self.log_multiplier.detach().exp()
        return metrics

    def _drawn(self, features_BF: Tensor, next_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Actions (B, 3 n, A), n at random, n of the policy at s, n of it at s', and their
        log-densities (B, 3 n)."""
        count, rows = self.conservatism.actions, len(features_BF)
        uniform_BKA = (
            2.0 * torch.rand(rows, count, self.continuous, generator=self._generator) - 1.0
        )
        actions, densities = (
            [uniform_BKA],
            [torch.full((rows, count), -self.continuous * math.log(2.0))],
        )
        for shown in (features_BF, next_BF):
            draw = self.networks.actor.sample(
                shown.repeat_interleave(count, dim=0), self._noise(rows * count)
            )
            actions.append(draw.action_BA.reshape(rows, count, -1))
            densities.append(draw.log_prob_B.reshape(rows, count))
        return torch.cat(actions, dim=1), torch.cat(densities, dim=1)


def calibrated(value_EBK: Tensor, mc_return_B: Tensor, random: int) -> Tensor:
    """Values (E, B, K), those of the policy's actions (all but the first `random`) no lower than
    the data's return."""
    bounded = torch.maximum(value_EBK[..., random:], mc_return_B[:, None])
    return torch.cat([value_EBK[..., :random], bounded], dim=2)


def _returns(batch: Transitions) -> Tensor:
    if MC_RETURN not in batch.extra:
        raise HandoffError(
            f"cal-ql: batches without '{MC_RETURN}', only {sorted(batch.extra)}. Does the replay keep returns? CQL "
            "(calibrated = False) does without."
        )
    return batch.extra[MC_RETURN]
