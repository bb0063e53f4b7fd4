"""Defines the interface of fine-tuning methods, with defaults for those that keep no replay
data."""

from __future__ import annotations

from pathlib import Path

from robots.interfaces import Progress


class OnlinePractice:
    """Four methods of `policies.rl.finetuning.finetune.Practice` that do nothing."""

    due = False
    """See `Practice.due`: it learns with every rollout."""

    def save_new(self, out: Path) -> None:
        """See `Practice.save_new`: what it learns from is gone with every update."""

    def load_kept(self, out: Path) -> None:
        """See `Practice.load_kept`."""

    def settle(self, identity: str, out: Path, progress: Progress) -> None:
        """See `Practice.settle`."""
