"""Options of this package."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from policies.policy_config import DiffusionPolicyConfig, PolicyConfig
from policies.training.config import TrainingConfig
from robots.config import config


@config
class MixedStore:
    """Further episodes to learn from."""

    path: str
    """Folder with a `store.zarr`, or the store itself."""
    weight: float = 1.0
    """Share of every batch, relative to the other weights; above 0."""

    @property
    def store(self) -> Path:
        """Where the store itself lies."""
        inside = Path(self.path) / "store.zarr"
        return inside if inside.exists() else Path(self.path)


@config
class PretrainConfig:
    """A policy from demonstrations."""

    policy: PolicyConfig = field(default_factory=DiffusionPolicyConfig)
    """Family and network of the policy."""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=20_000, learning_rate=1e-3)
    )
    """Updates, learning rate, batch size and logging."""
    validation_fraction: float = 0.02
    """Share of the episodes of every store that is held out to report a validation loss; 0 learns
    from all."""
    keep_every: int = 0
    """Updates between policies that are kept on the way, in folders `step-<updates>`, for a
    learning curve; 0 keeps the last one only."""
    mixture: tuple[MixedStore, ...] = ()
    """Stores beside the demonstrations, with the same rate and the same fields as far as the policy
    reads them."""
    demos_weight: float = 1.0
    """Weight of the demonstrations in that mixture."""
    memory_gb: float = 4.0
    """Pictures and point clouds held in memory, all cameras together [10^9 bytes]; a camera that no
    longer fits is read from an uncompressed file, which lies in the policy's folder until the
    training is over."""
    initial: str | None = None
    """Folder of a saved policy of the same family and shapes whose weights the training starts
    from."""
    keep_normalizers: bool = True
    """Whether the normalisers of `initial` are kept; otherwise they are fitted to the
    demonstrations."""
