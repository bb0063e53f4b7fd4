"""Shares the backbone among vision-language-action policies: frozen, adapted or trained, and the
observation it receives.

Shape suffixes: B batch, T observed steps, O observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from policies.card import Shapes
from policies.families.lora import add_adapters
from policies.networks.vlm import Prefix, load_backbone
from policies.policy import ChunkPolicy, ObservationTensors, Words
from policies.policy_config import TokenVlaConfig, VlaConfig
from robots.errors import HandoffError

FOLDER = "backbone"
"""Beside a policy's weights: the files from which its backbone's structure is built."""


class VisionLanguagePolicy(ChunkPolicy):
    """A policy that reads pictures, an instruction and the robot's state through a vision-language
    model.

    Args:
        config: of the family.
        shapes: sizes that the data give.
        saved: folder of the policy whose weights are about to be loaded; None reads the backbone's
            pretrained weights.
        head: whether the backbone keeps its language head.

    Raises:
        HandoffError: a point cloud, neither camera nor state, an untaught backbone that is not to
            learn, or one that cannot be read, see `load_backbone`.
    """

    def __init__(
        self,
        config: VlaConfig | TokenVlaConfig,
        shapes: Shapes,
        saved: Path | None,
        head: bool = False,
    ) -> None:
        super().__init__(config, shapes)
        if config.point_fields or not (config.image_fields or shapes.observation):
            raise HandoffError(
                "policy: a vision-language policy sees pictures and a state, or one of them; image_fields are "
                f"{list(config.image_fields)}, observation_fields {list(config.observation_fields)}, point_fields "
                f"{list(config.point_fields)}."
            )
        if (
            config.backbone.scratch is not None
            and config.train_backbone == "none"
            and saved is None
        ):
            raise HandoffError(
                "policy: a backbone from scratch knows nothing yet and train_backbone is 'none'. Set it to 'all'."
            )
        if saved is not None and not (saved / FOLDER).is_dir():
            raise HandoffError(
                f"{saved}: no folder '{FOLDER}' beside the weights. Was the policy copied in part?"
            )
        backbone = config.backbone
        if saved is not None:
            backbone = replace(backbone, folder=str(saved / FOLDER), scratch=None)
        self.said = config.own_instruction
        self.frozen = config.train_backbone == "none"
        self._entries = _state_entries(config, shapes)
        state = [config.n_obs_steps * (entries.stop - entries.start) for entries in self._entries]
        shared = config.state_tokens == "object"
        self.backbone = load_backbone(
            backbone, saved is None, state, head, bool(config.image_fields), shared
        )
        if config.train_backbone != "all":
            self.backbone.requires_grad_(False)
        if config.train_backbone == "lora":
            add_adapters(self.backbone.text, config.lora)
        self.backbone.state_projections.requires_grad_(True)
        if self.backbone.state_names is not None:
            self.backbone.state_names.requires_grad_(True)
        self.train()

    def prefix(self, observed: ObservationTensors) -> Prefix:
        """What is seen and said, as tokens.

        Raises:
            HandoffError: no instruction, or one that is too long.
        """
        state = [observed.vector_BTO[..., entries].flatten(1) for entries in self._entries]
        return self.backbone.prefix(observed.sensors, self.words(observed), state)

    def words(self, observed: ObservationTensors) -> Words:
        """What is said, as tokens; the policy's own words where nothing is.

        Raises:
            HandoffError: as many instructions as rows are not given, or one of them is too long.
        """
        if observed.words is not None:
            return observed.words
        told, rows = observed.instructions, len(observed.vector_BTO)
        if not told and self.said is not None:
            told = (self.said,) * rows
        if len(told) != rows:
            raise HandoffError(
                f"policy: {len(told)} instructions for {rows} observations. Do the data have an instruction per "
                "episode, or the policy one of its own?"
            )
        return self.tokens(told)

    def tokens(self, sentences: Sequence[str]) -> Words:
        """See `ChunkPolicy.tokens`."""
        return self.backbone.tokens(sentences)

    def train(self, mode: bool = True) -> Self:
        """As of every module, but a frozen backbone stays as it is at inference."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def extra_files(self) -> dict[str, bytes]:
        """See `ChunkPolicy.extra_files`."""
        return {f"{FOLDER}/{name}": data for name, data in self.backbone.files().items()}


def _state_entries(config: VlaConfig | TokenVlaConfig, shapes: Shapes) -> list[slice]:
    """Of the observation vector, those that each state token shows."""
    if not shapes.observation:
        return []
    if config.state_tokens == "one":
        return [slice(0, shapes.observation)]
    return [slice(*ends) for ends in shapes.entries.values()]
