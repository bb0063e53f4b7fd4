"""Defaults for fine-tuning methods that keep no replay data."""

from __future__ import annotations

from pathlib import Path

from robots.interfaces import Progress


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
