"""Adds a behaviour-cloning term with a decaying weight to SAC's actor loss.

HIL-SERL has no such term. On long, precise tasks with few steps, its actor follows errors of the
critic away from the demonstrations long before the critic is accurate there. The term is that of
Nair et al. (arXiv 1709.10089), who filter it by Q; here its weight decays over a number of updates
instead, because the filter depends on the inaccurate critic (in one run it passed 3 to 7 % of the
rows). The gripper critic has the large-margin loss of DQfD (arXiv 1704.03732).

Shape suffixes: B batch, A action, C gripper commands.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.rl.off_policy.config import GuidanceConfig, GuidedSacConfig, SacConfig
from policies.rl.off_policy.sac import Metrics, Sac
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError


class GuidedSac(Sac):
    """SAC with the behaviour-cloning term of `config.guidance`."""

    def guidance(self) -> float:
        """Weight of the behaviour-cloning term at the current update, decaying geometrically."""
        guidance = self._guidance()
        fraction = min(1.0, self.updates / guidance.updates)
        return guidance.first * (guidance.last / guidance.first) ** fraction

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """Loss of SAC plus the weighted squared distance of the actor's mode to the human
        actions."""
        loss, metrics = super().actor_loss(batch)
        rows = human_rows(batch)
        if not rows.any():
            return loss, metrics
        with torch.no_grad():
            features_BF = self.features(batch.obs)[rows]
        difference_BA = (
            self.networks.actor.mode(features_BF) - batch.action_BA[rows, : self.continuous]
        )
        squared_B = difference_BA.square().sum(dim=1)
        loss = loss + self.guidance() * squared_B.sum() / batch.rows
        return loss, {**metrics, "apart": squared_B.detach().mean()}

    def imitation_loss(self, batch: Transitions) -> tuple[Tensor, Metrics] | None:
        """Weighted large-margin loss of the gripper's critic; None without human rows."""
        net = self.networks
        rows, margin = human_rows(batch), self._guidance().margin
        if net.gripper is None or margin == 0.0 or not rows.any():
            return None
        value_BC = net.gripper(self.features(batch.obs)[rows])[0]
        command_B1 = (batch.action_BA[rows, -1:].round() + 1).long()
        loss = (
            min(1.0, self.guidance())
            * margin_loss(value_BC, command_B1, margin)
            * value_BC.shape[0]
            / batch.rows
        )
        return loss, {"margin_loss": loss.detach()}

    def _update_gripper(self, batch: Transitions) -> Metrics:
        metrics = super()._update_gripper(batch)
        imitation = self.imitation_loss(batch)
        if imitation is None:
            return metrics
        self._step("gripper", imitation[0])
        return {**metrics, **imitation[1]}

    def _guidance(self) -> GuidanceConfig:
        config = self.config
        guidance = config.guidance if isinstance(config, GuidedSacConfig) else None
        if guidance is None:
            raise HandoffError("sac: guidance is not set. Use Sac, or set sac.guidance.")
        return guidance


def human_rows(batch: Transitions) -> Tensor:
    """(B,) bool mask of the rows from demonstrations and corrections."""
    return batch.demo_B | batch.intervention_B


def margin_loss(value_BC: Tensor, command_B1: Tensor, margin: float) -> Tensor:
    """Large-margin loss of DQfD: mean over rows of the amount by which the value of the given
    command is short of all others plus `margin`."""
    with_margin_BC = value_BC + torch.full_like(value_BC, margin).scatter(1, command_B1, 0.0)
    return (with_margin_BC.amax(dim=1) - value_BC.gather(1, command_B1)[:, 0]).mean()


def sac_learner(config: SacConfig, sizes: Sizes, seed: int = 0) -> Sac:
    """SAC learner for a configuration, a `GuidedSac` if it has `guidance`."""
    guided = isinstance(config, GuidedSacConfig) and config.guidance is not None
    return GuidedSac(config, sizes, seed) if guided else Sac(config, sizes, seed)
