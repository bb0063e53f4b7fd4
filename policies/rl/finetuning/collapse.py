"""Detects collapsed fine-tuning runs: frozen weights, ratios stuck at 1, diverging values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from policies.rl.on_policy.ppo import UpdateStatistics
from robots.errors import HandoffError

PATIENCE = 3
"""Consecutive rollouts with a sign of collapse after which the run is stopped."""
DIVERGED_LOSS = 1e4
"""Value loss, with scaled rewards, above which the critic counts as diverged."""
DIVERGED_VALUE = 1e6
"""Mean target value above which critics of chunks count as diverged."""


class CollapseDetector:
    """Stops a run whose policy no longer changes or whose values diverge.

    Args:
        parameters: trained parameters of the policy.
    """

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._frozen_rollouts = self._unit_ratio_rollouts = 0
        self._weights = self._sample_weights()

    def check(self, rollouts: int, statistics: UpdateStatistics, *, policy_trains: bool) -> None:
        """Checks the statistics of an update; before the policy trains, only its value loss.

        Args:
            rollouts: rollouts so far.
            statistics: statistics of the last update.
            policy_trains: whether the critic's warm-up is over.

        Raises:
            HandoffError: see `policies.rl.finetuning.finetune.finetune`.
        """
        if not statistics.value_loss < DIVERGED_LOSS:
            raise HandoffError(
                f"finetune: the value loss is {statistics.value_loss:.3g} after rollout {rollouts}, "
                f"limit {DIVERGED_LOSS:g} with scaled rewards. Is critic_learning_rate too high?"
            )
        weights = self._sample_weights()
        changed = bool((weights != self._weights).any())
        self._weights = weights
        if not policy_trains:
            return
        self._frozen_rollouts = 0 if changed else self._frozen_rollouts + 1
        # With one epoch, ratios are 1 by construction.
        stuck = statistics.epochs != 1 and not abs(statistics.ratio - 1.0) > 1e-6
        self._unit_ratio_rollouts = self._unit_ratio_rollouts + 1 if stuck else 0
        if self._frozen_rollouts >= PATIENCE:
            raise HandoffError(
                f"finetune: no weight of the policy has changed in the last {PATIENCE} rollouts, up to {rollouts}. Are "
                "all advantages equal (a constant reward), or is actor_learning_rate too low?"
            )
        if self._unit_ratio_rollouts >= PATIENCE:
            raise HandoffError(
                f"finetune: every ratio has been 1 in the last {PATIENCE} rollouts, up to {rollouts}. Do the "
                "log-probabilities depend on the policy's weights?"
            )

    def _sample_weights(self) -> Tensor:
        return torch.cat([parameter.detach().flatten()[:64] for parameter in self._parameters])


def checked_means(updates: Sequence[Mapping[str, Tensor]], rollouts: int) -> dict[str, float]:
    """Mean metrics of the updates after a rollout; 0 for `critic_loss` and `value` without updates.

    Args:
        updates: metrics of every update, among them `critic_loss` and `value`, the mean target.
        rollouts: rollouts so far.

    Raises:
        HandoffError: the critics have diverged.
    """
    if not updates:
        return {"critic_loss": 0.0, "value": 0.0}
    metrics = {
        name: float(torch.stack([update[name] for update in updates]).mean())
        for name in updates[-1]
    }
    if not abs(metrics["value"]) < DIVERGED_VALUE or not np.isfinite(metrics["critic_loss"]):
        raise HandoffError(
            f"finetune: the critics' mean target value is {metrics['value']:.3g}, their loss "
            f"{metrics['critic_loss']:.3g} after rollout {rollouts}, limit {DIVERGED_VALUE:g}. Are rewards of size 1, "
            "and the discount below 1?"
        )
    return metrics
