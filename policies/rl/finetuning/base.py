"""Bases of fine-tuning algorithms: their options, and defaults of methods that keep no replay data;
imports no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from policies.rl.finetuning.method import FinetuneMethod, FinetuneSetup


class FinetuneAlgorithm:
    """Base of the options of every fine-tuning algorithm.

    An algorithm outside the repository derives its options from this class, and a recipe names them
    by their import path: `algorithm: {kind: my_lab.methods.FilteredConfig}`. Its `kind` has that
    path as its default.
    """

    learns_from_demos: ClassVar[bool] = False
    """Whether the algorithm learns from the stage's demonstrations, which it then requires."""
    trains_frozen_parts: ClassVar[bool] = False
    """Whether the policy is loaded with the parameters trainable that its pretraining trained, such
    as adapters of a frozen backbone; for language-conditioned policies."""

    @property
    def runs_on_device(self) -> bool:
        """Whether the algorithm can train on the device of environments that stay there."""
        return False

    def reward_discount(self) -> float:
        """Discount per action, with which the environments add up the rewards of a chunk."""
        raise NotImplementedError

    def method(self, setup: FinetuneSetup) -> FinetuneMethod:
        """The method with these options; only algorithms outside the repository implement this.

        Raises:
            HandoffError: a policy that the algorithm cannot fine-tune.
        """
        raise HandoffError(
            f"finetune: {type(self).__name__} has no method. Define `method(setup)`, which returns a FinetuneMethod."
        )


class OnlineFinetuning:
    """No-op hooks of `policies.rl.finetuning.method.FinetuneMethod`."""

    phase_due = False
    """See `FinetuneMethod.phase_due`; every rollout is learned from immediately."""

    def save_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.save_rollouts`; rollouts are not kept after their update."""

    def load_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.load_rollouts`."""

    def run_phase(self, identity: str, out: Path, progress: Progress) -> None:
        """See `FinetuneMethod.run_phase`."""
