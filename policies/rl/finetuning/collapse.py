"""Detects collapsed fine-tuning runs: frozen weights, ratios stuck at 1, diverging values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.rl.on_policy.ppo import UpdateStatistics
from robots.errors import HandoffError

PATIENCE = 3
"""Consecutive rollouts with a sign of collapse after which the run is stopped."""
DIVERGED_LOSS = 1e4
"""Value loss, with scaled rewards, above which the critic counts as diverged."""


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
