"""Options of pretraining from demonstrations."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path
from typing import Literal

from policies.policy_config import DiffusionPolicyConfig, PolicyConfig
from policies.training.config import TrainingConfig
from robots.config import Count, NonNegative, Positive, ShareBelowOne, Whole, config
from robots.errors import HandoffError


@config
class MixedStore:
    """An additional store of the training mixture."""

    path: str
    """Folder that contains a `store.zarr`, or the store itself, also one at
    `s3://BUCKET/PREFIX`."""
    weight: Positive = 1.0
    """Share of every batch relative to the other stores' weights; above 0."""

    @property
    def store(self) -> Path:
        """Path of the store itself."""
        inside = Path(self.path) / "store.zarr"
        return inside if inside.exists() else Path(self.path)


@config
class PretrainConfig:
    """Pretraining of a policy from demonstrations."""

    policy: PolicyConfig = field(default_factory=DiffusionPolicyConfig)
    """Family and network of the policy."""
    training: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=20_000, learning_rate=1e-3)
    )
    """Updates, learning rate, batch size and logging."""
    validation_fraction: ShareBelowOne = 0.02
    """Fraction of every store's episodes that is held out for the validation loss; 0 trains on
    all."""
    field_dropout: dict[str, ShareBelowOne] = field(default_factory=dict)
    """Fraction of the training windows in which an observation field is hidden, by its name: in its
    place stands the middle of its range, in all observed steps. For fields that tell where the
    demonstrator was already going, and so hide what else has to be seen; never at inference."""
    predict_end: dict[str, Positive] = field(default_factory=dict)
    """Weight of an error that is added to the loss, by the name of an observed field: a small
    network predicts from the encoded observation how far the field changes until the end of the
    episode, in units of the standard deviation of that change. For encoders that have to find where
    the demonstrator went; the network is not part of the policy."""
    estimate_weight: NonNegative = 1.0
    """Weight in the loss of the mean absolute error of the policy's estimates
    (`policy.estimated_fields`), in units of half the range of an entry. Without estimated fields it
    has no effect."""
    keep_every: Whole = 0
    """Updates between intermediate policies, saved in folders `step-<updates>`; 0 saves the last
    one only."""
    mixture: tuple[MixedStore, ...] = ()
    """Additional stores, with the same rate and the same specs of the policy's fields."""
    demos_weight: NonNegative = 1.0
    """Weight of the demonstrations in the mixture. Within a store, windows are drawn in proportion
    to the `weight` in the metadata of their episodes, by default 1."""
    memory_gb: NonNegative = 4.0
    """Maximum memory of decoded images and point clouds, all sensors together [10^9 bytes]; a
    sensor that does not fit is read from an uncompressed file in the policy's folder, which is
    removed after training. With `frames: stream` there is no such copy, and it has no effect."""
    frames: Literal["copy", "stream"] = "copy"
    """Source of images and point clouds in training: `copy` decodes all of them once, see
    `memory_gb`; `stream` reads those of every batch from the episode store, for data sets that fit
    neither into memory nor on the disk."""
    workers: Whole = 0
    """Number of processes that decode batches ahead, per process of the training; 0 decodes them in
    the training itself. The batches are the same."""
    prefetch: Count = 2
    """Batches that each of the `workers` decodes ahead."""
    initial: str | None = None
    """Folder of a saved policy of the same family and shapes, whose weights initialise the
    training."""
    keep_normalizers: bool = True
    """Whether to keep the normalisers of `initial`; otherwise they are fitted to the
    demonstrations."""

    def __post_init__(self) -> None:
        if isinstance(self.policy, DiffusionPolicyConfig) and self.policy.step_conditioned:
            raise HandoffError(
                "pretrain: policy.step_conditioned is true, expected false; imitation learns no steps of a length. "
                "Pretrain the flow, and let `distill` with the algorithm 'shortcut' make the student."
            )
        for name, method in (("noise_actor", "dsrl"), ("chunk_actor", "rl_token")):
            if getattr(self.policy, name, None) is not None:
                raise HandoffError(
                    f"pretrain: policy.{name} is set, expected null; imitation learns no such actor. Pretrain the "
                    f"policy, and let `finetune` with the algorithm '{method}' make the actor."
                )
