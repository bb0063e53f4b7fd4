"""What the policies over a vision-language model share: the backbone, frozen, adapted or trained, and what is seen.

Shape suffixes: B batch, T observed steps, O observation.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Self

from policies.chunk_policy import ChunkPolicy, Observed
from policies.config import Shapes
from policies.lora import add_adapters
from policies.networks.vlm import Prefix, load_backbone
from policies.policy_config import TokenVlaConfig, VlaConfig
from robots.errors import HandoffError

FOLDER = "backbone"
"""Beside a policy's weights: the files from which its backbone's structure is built."""


class VisionLanguagePolicy(ChunkPolicy):
    """A policy that reads pictures, an instruction and the robot's state through a vision-language model.

    Args:
        config: of the family.
        shapes: sizes that the data give.
        saved: folder of the policy whose weights are about to be loaded; None reads the backbone's pretrained weights.
        head: whether the backbone keeps its language head.

    Raises:
        HandoffError: no camera, a point cloud, or a backbone that cannot be read, see `load_backbone`.
    """

    def __init__(
        self, config: VlaConfig | TokenVlaConfig, shapes: Shapes, saved: Path | None, head: bool = False
    ) -> None:
        super().__init__(config, shapes)
        if config.point_fields or not config.image_fields:
            raise HandoffError(
                f"policy: a vision-language policy sees pictures; image_fields are {list(config.image_fields)}, "
                f"point_fields {list(config.point_fields)}."
            )
        if saved is not None and not (saved / FOLDER).is_dir():
            raise HandoffError(f"{saved}: no folder '{FOLDER}' beside the weights. Was the policy copied in part?")
        backbone = config.backbone if saved is None else replace(config.backbone, folder=str(saved / FOLDER))
        self.said, self.frozen = config.instruction, config.train_backbone == "none"
        self.backbone = load_backbone(backbone, saved is None, config.n_obs_steps * shapes.observation, head)
        if config.train_backbone != "all":
            self.backbone.requires_grad_(False)
        if config.train_backbone == "lora":
            add_adapters(self.backbone.text, config.lora)
        if self.backbone.state_projection is not None:
            self.backbone.state_projection.requires_grad_(True)
        self.train()

    def prefix(self, observed: Observed) -> Prefix:
        """What is seen and said, as tokens.

        Raises:
            HandoffError: no instruction, or one that is too long.
        """
        told = observed.instructions
        if not told and self.said is not None:
            told = (self.said,) * len(observed.vector_BTO)
        return self.backbone.prefix(observed.sensors, told, observed.vector_BTO)

    def train(self, mode: bool = True) -> Self:
        """As of every module, but a frozen backbone stays as it is at inference."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def extra_files(self) -> dict[str, bytes]:
        """See `ChunkPolicy.extra_files`."""
        return {f"{FOLDER}/{name}": data for name, data in self.backbone.files().items()}
