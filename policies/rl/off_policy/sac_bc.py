"""SAC whose actor is held near what people did, ever more loosely: a behaviour-cloning term beside
the critic's.

HIL-SERL has no such term; with few steps and precise, long tasks its actor follows the critic's
errors away from the demonstrations long before the critic is right there. The term is that of Nair
et al. (arXiv 1709.10089), who filter it by Q; here it is faded out over a number of updates,
because the filter trusts the very critic that is in doubt (in one run it let 3 to 7 % of the rows
pass). The hand's critic has the large margin of DQfD (arXiv 1704.03732).

Shape suffixes: B batch, A action, C commands of the hand.
"""

from __future__ import annotations

import torch
from torch import Tensor

from policies.rl.off_policy.config import GuidanceConfig, SacConfig
from policies.rl.off_policy.sac import Metrics, Sac
from policies.rl.replay.transitions import Sizes, Transitions
from robots.errors import HandoffError


class GuidedSac(Sac):
    """A `Sac` with `config.guidance`; else as there."""

    def guidance(self) -> float:
        """Weight of the term at the present update: geometric from first to last."""
        guidance = self._guidance()
        share = min(1.0, self.updates / guidance.updates)
        return guidance.first * (guidance.last / guidance.first) ** share

    def actor_loss(self, batch: Transitions) -> tuple[Tensor, Metrics]:
        """SAC's loss, and the squared distance of the actor's mode from what people did in their
        rows."""
        loss, metrics = super().actor_loss(batch)
        rows = persons(batch)
        if not rows.any():
            return loss, metrics
        with torch.no_grad():
            features_BF = self.features(batch.seen)[rows]
        apart_BA = self.networks.actor.mode(features_BF) - batch.action_BA[rows, : self.continuous]
        squared_B = apart_BA.square().sum(dim=1)
        loss = loss + self.guidance() * squared_B.sum() / batch.rows
        return loss, {**metrics, "apart": squared_B.detach().mean()}

    def _update_gripper(self, batch: Transitions) -> Metrics:
        metrics, net = super()._update_gripper(batch), self.networks
        rows, margin = persons(batch), self._guidance().margin
        if net.gripper is None or margin == 0.0 or not rows.any():
            return metrics
        value_BC = net.gripper(self.features(batch.seen)[rows])[0]
        command_B1 = (batch.action_BA[rows, -1:].round() + 1).long()
        loss = (
            min(1.0, self.guidance())
            * margin_loss(value_BC, command_B1, margin)
            * value_BC.shape[0]
            / batch.rows
        )
        self._step("gripper", loss)
        return {**metrics, "margin_loss": loss.detach()}

    def _guidance(self) -> GuidanceConfig:
        if self.config.guidance is None:
            raise HandoffError(
                "sac: no guidance in its configuration. Use Sac, or set sac.guidance."
            )
        return self.config.guidance


def persons(batch: Transitions) -> Tensor:
    """(B,) bool: rows of demonstrations and corrections."""
    return batch.demo_B | batch.intervention_B


def margin_loss(value_BC: Tensor, command_B1: Tensor, margin: float) -> Tensor:
    """Mean over rows of how far the command given falls short of leading all others by `margin`
    (DQfD)."""
    ahead_BC = value_BC + torch.full_like(value_BC, margin).scatter(1, command_B1, 0.0)
    return (ahead_BC.amax(dim=1) - value_BC.gather(1, command_B1)[:, 0]).mean()


def sac_learner(config: SacConfig, sizes: Sizes, seed: int = 0) -> Sac:
    """The SAC learner that the configuration asks for."""
    return Sac(config, sizes, seed) if config.guidance is None else GuidedSac(config, sizes, seed)
