"""A run in which nothing is learned any more, or everything is lost."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from policies.rl.on_policy.ppo import Learned
from robots.errors import HandoffError

PATIENCE = 3
"""Rollouts in a row that may look dead before the run is stopped."""
EXPLODED = 1e4
"""Loss of the values, of scaled rewards, above which they count as exploding."""


class Dead:
    """Stops a run in which nothing is learned any more, or everything is lost."""

    def __init__(self, parameters: list[nn.Parameter]) -> None:
        self._parameters = parameters
        self._still = self._same = 0
        self._sample = self._sampled()

    def look(self, rollouts: int, learned: Learned, *, practises: bool) -> None:
        """After an update; before the policy learns only the values are looked at.

        Raises:
            HandoffError: see `policies.rl.finetuning.finetune.finetune`.
        """
        if not learned.value_loss < EXPLODED:
            raise HandoffError(
                f"practice: the values' loss is {learned.value_loss:.3g} after rollout {rollouts}, limit {EXPLODED:g}, "
                "of scaled rewards. Is the critic's rate too high?"
            )
        sample = self._sampled()
        moved = bool((sample != self._sample).any())
        self._sample = sample
        if not practises:
            return
        self._still = 0 if moved else self._still + 1
        self._same = 0 if learned.epochs == 1 or abs(learned.ratio - 1.0) > 1e-6 else self._same + 1
        if self._still >= PATIENCE:
            raise HandoffError(
                f"practice: no weight of the policy has moved in the last {PATIENCE} rollouts, up to {rollouts}. Are "
                "all advantages alike (a reward that never differs), or is the actor's rate too low?"
            )
        if self._same >= PATIENCE:
            raise HandoffError(
                f"practice: every ratio has been 1 in the last {PATIENCE} rollouts, up to {rollouts}. Do the policy's "
                "log-probabilities hang on its weights?"
            )

    def _sampled(self) -> Tensor:
        return torch.cat([parameter.detach().flatten()[:64] for parameter in self._parameters])
