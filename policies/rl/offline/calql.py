"""Implements Cal-QL and CQL: conservative critics from offline data (Nakamoto et al., arXiv
2303.05479; Kumar et al., 2006.04779).

The loss is the squared Bellman error plus weight * (logsumexp_a Q(s, a) - Q(s, a of the data)),
which lowers the values of actions outside the data. In Cal-QL the values of policy actions are
bounded below by the return of the data's behaviour policy from that state, so the critics have the
right scale for online fine-tuning; CQL has no such bound.

The implementation follows the released code. Actions are sampled uniformly, from the policy at s
and from the policy at s' (all evaluated at s), each corrected by its log-density; the log of their
number is not subtracted, which matters only to the Lagrange form. The Bellman target is the maximum
over several next actions of the minimum over critics.

Shape suffixes: B batch, E members, K sampled actions per row, F features, A action.
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
"""Key in `Transitions.extra` of the Monte-Carlo return from a step on."""


class CalQl(Sac):
    """Cal-QL or CQL learner.

    Args:
        config: options.
        sizes: sizes of observations and actions.
        seed: seed of initial weights and noise.
    """

    def __init__(self, config: CalQlConfig, sizes: Sizes, seed: int = 0) -> None:
        super().__init__(config.sac, sizes, seed)
        self.calql = config
        self.log_multiplier = nn.Parameter(torch.tensor(1.0))
        """Logarithm of the multiplier in the Lagrange form; initially 1 [C]."""
        if config.gap is not None:
            self.optimizers["multiplier"] = Adam([self.log_multiplier], config.sac.learning_rate)

    def next_value(self, features_BF: Tensor, target_BF: Tensor | None = None) -> Tensor:
        """(B,) maximum value over several actions sampled from the policy."""
        count = self.calql.target_actions
        repeated_BF = features_BF.repeat_interleave(count, dim=0)
        repeated_target_BF = (
            None if target_BF is None else target_BF.repeat_interleave(count, dim=0)
        )
        return super().next_value(repeated_BF, repeated_target_BF).reshape(-1, count).amax(dim=1)

    def critic_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """Bellman error plus the conservative term, and metrics; see the module docstring.

        Raises:
            HandoffError: Cal-QL is used and minibatches have no returns.
        """
        config = self.calql
        features_BF = self.features(batch.obs)
        # Bellman target, and actions for the conservative term.
        with torch.no_grad():
            next_BF = self.features(batch.next_obs)
            next_value_B = self.next_value(next_BF, self.target_features(batch.next_obs))
            target_B = bellman_target(batch.reward_B, batch.discount_B, next_value_B)
            action_BKA, log_density_BK = self._sample_actions(features_BF, next_BF)
        # Values of the actions in the data and of the sampled actions.
        actions = torch.cat([batch.action_BA[:, None], action_BKA], dim=1)
        rows = features_BF[:, None].expand(-1, actions.shape[1], -1)
        value = self.networks.critic(torch.cat([rows, actions], dim=2).flatten(0, 1))[..., 0]
        value = value.reshape(len(value), *actions.shape[:2])
        data_EB, value_EBK = value[..., 0], value[..., 1:]
        # Conservative term, and its weight in the Lagrange form.
        if config.calibrated:
            value_EBK = calibrated(value_EBK, _monte_carlo_returns(batch), config.actions)
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
        """State of `Sac` and the Lagrange multiplier."""
        return {**super().state_dict(), "log_multiplier": self.log_multiplier.detach().clone()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        super().load_state_dict(state)
        self.log_multiplier.data.copy_(state["log_multiplier"])

    def _update_critic(self, batch: Transitions) -> Metrics:
        metrics, config = super()._update_critic(batch), self.calql
        if config.gap is not None:
            self._step(
                "multiplier",
                self.log_multiplier.exp() * config.weight * (config.gap - metrics["conservatism"]),
            )
            metrics["multiplier"] = self.log_multiplier.detach().exp()
        return metrics

    def _sample_actions(self, features_BF: Tensor, next_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Sampled actions (B, 3 n, A) and their log-densities (B, 3 n): n uniform, n from the
        policy at s, n from the policy at s'."""
        count, rows = self.calql.actions, len(features_BF)
        uniform_BKA = (
            2.0 * torch.rand(rows, count, self.continuous, generator=self._generator) - 1.0
        )
        actions, densities = (
            [uniform_BKA],
            [torch.full((rows, count), -self.continuous * math.log(2.0))],
        )
        for policy_BF in (features_BF, next_BF):
            sample = self.networks.actor.sample(
                policy_BF.repeat_interleave(count, dim=0), self._noise(rows * count)
            )
            actions.append(sample.action_BA.reshape(rows, count, -1))
            densities.append(sample.log_prob_B.reshape(rows, count))
        return torch.cat(actions, dim=1), torch.cat(densities, dim=1)


def calibrated(value_EBK: Tensor, mc_return_B: Tensor, random: int) -> Tensor:
    """Values (E, B, K), with those of policy actions (all but the first `random`) bounded below by
    the return of the data."""
    bounded = torch.maximum(value_EBK[..., random:], mc_return_B[:, None])
    return torch.cat([value_EBK[..., :random], bounded], dim=2)


def _monte_carlo_returns(batch: Transitions) -> Tensor:
    if MC_RETURN not in batch.extra:
        raise HandoffError(
            f"cal-ql: minibatches have {sorted(batch.extra)}, expected '{MC_RETURN}' among them. Is mc_return of the "
            "replay set? CQL (calibrated = False) does not need it."
        )
    return batch.extra[MC_RETURN]
