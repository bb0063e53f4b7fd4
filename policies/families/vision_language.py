"""Base class of vision-language-action policies: the backbone (frozen, adapted or trained) and its
observation tokens.

Shape suffixes: B batch, T observed steps, O observation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from torch import Tensor, nn
from torch.nn.functional import pad

from policies.card import Shapes
from policies.families.lora import add_adapters
from policies.language.instruction_features import given_instructions
from policies.networks.memory import WindowMemory
from policies.networks.vlm import Prefix, load_backbone
from policies.policy import ChunkPolicy, InstructionTokens, ObservationTensors
from policies.policy_config import TokenVlaConfig, VlaConfig
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.families.vla_checkpoint import VlaCheckpoint

FOLDER = "backbone"
"""Folder, next to a policy's weights, with the files that define its backbone's architecture."""


class VisionLanguagePolicy(ChunkPolicy):
    """A policy that feeds images, an instruction and the robot's state to a vision-language
    backbone.

    Args:
        config: configuration of the family.
        shapes: sizes given by the data.
        saved: folder of the policy whose weights will be loaded; None reads the backbone's
            pretrained weights.
        head: whether the backbone keeps its language head.
        checkpoint: configuration of the released weights from which the policy starts, which it
            reads itself; None in any other.

    Raises:
        HandoffError: point clouds, neither cameras nor state, a frozen backbone without
            pretrained weights, or a backbone that cannot be read, see `load_backbone`.
    """

    def __init__(
        self,
        config: VlaConfig | TokenVlaConfig,
        shapes: Shapes,
        saved: Path | None,
        head: bool = False,
        checkpoint: VlaCheckpoint | None = None,
    ) -> None:
        super().__init__(config, shapes)
        # Check the options.
        if config.point_fields or not (config.image_fields or shapes.observation):
            raise HandoffError(
                "policy: a vision-language policy needs images, a state or both, and no point clouds; image_fields are "
                f"{list(config.image_fields)}, observation_fields {list(config.observation_fields)}, point_fields "
                f"{list(config.point_fields)}."
            )
        if (
            config.backbone.scratch is not None
            and config.train_backbone == "none"
            and saved is None
        ):
            raise HandoffError(
                "policy: a backbone from scratch is untrained, but train_backbone is 'none'. Set it to 'all'."
            )
        if saved is not None and not (saved / FOLDER).is_dir():
            raise HandoffError(
                f"{saved}: no folder '{FOLDER}' next to the weights. Was the policy copied incompletely?"
            )
        # Build the backbone with one projection per state token.
        backbone = config.backbone
        if saved is not None:
            backbone = replace(backbone, folder=str(saved / FOLDER), scratch=None)
        self.frozen = config.train_backbone == "none"
        self._entries = _state_entries(config, shapes)
        self._padded_state = None if checkpoint is None else checkpoint.state
        sizes = [entries.stop - entries.start for entries in self._entries]
        state = [config.n_obs_steps * size for size in sizes]
        self.memories = nn.ModuleList()
        """One memory per state token; empty without `memory`."""
        if config.memory is not None:
            if not sizes or checkpoint is not None:
                raise HandoffError(
                    "policy: memory is set, but there is no state to remember, or the policy starts from a checkpoint, "
                    "which observes the newest step alone. Set observation_fields, or leave memory out."
                )
            self.memories.extend(
                WindowMemory(config.memory, config.n_obs_steps, size) for size in sizes
            )
            state = [size + config.memory.features for size in sizes]
        self._state_in_prefix = checkpoint is None or checkpoint.state_in_prefix
        if checkpoint is not None:
            state = [checkpoint.state] if checkpoint.state_in_prefix else []
        shared = config.state_tokens == "object"
        own = saved is None and checkpoint is None
        self.backbone = load_backbone(
            backbone,
            own,
            state,
            head,
            bool(config.image_fields),
            shared,
            None if checkpoint is None else checkpoint.backbone_code,
        )
        # Select the trained parameters.
        if config.train_backbone != "all":
            self.backbone.requires_grad_(False)
        if config.train_backbone == "lora":
            add_adapters(self.backbone.text, config.lora)
        self.backbone.state_projections.requires_grad_(True)
        if self.backbone.state_names is not None:
            self.backbone.state_names.requires_grad_(True)
        self.train()

    def prefix(self, obs: ObservationTensors) -> Prefix:
        """Observation and instruction as the backbone's prefix tokens.

        Raises:
            HandoffError: no instruction, or one that is too long.
        """
        state = self.state(obs) if self._state_in_prefix else []
        return self.backbone.prefix(obs.sensors, self.instruction_tokens(obs), state)

    def state(self, obs: ObservationTensors) -> list[Tensor]:
        """Entries (B, S) of every state token, padded with zeros as the released weights want."""
        state = [obs.vector_BTO[..., entries] for entries in self._entries]
        if self.memories:
            state = [memory(part) for memory, part in zip(self.memories, state, strict=True)]
        state = [part.flatten(1) for part in state]
        if self._padded_state is not None:
            state = [pad(part, (0, self._padded_state - part.shape[1])) for part in state]
        return state

    def instruction_tokens(self, obs: ObservationTensors) -> InstructionTokens:
        """Tokens of the instructions, or of the default instruction where none are given.

        Raises:
            HandoffError: the number of instructions is not that of the rows, or one is too long.
        """
        if obs.instruction_tokens is not None:
            return obs.instruction_tokens
        rows = len(obs.vector_BTO)
        return self.tokens(given_instructions(obs.instructions, rows, self.default_instruction))

    def tokens(self, sentences: Sequence[str]) -> InstructionTokens:
        """See `ChunkPolicy.tokens`."""
        return self.backbone.tokens(sentences)

    def train(self, mode: bool = True) -> Self:
        """Sets the mode as `nn.Module.train`, but a frozen backbone stays in evaluation mode."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def extra_files(self) -> dict[str, bytes]:
        """See `ChunkPolicy.extra_files`."""
        return {f"{FOLDER}/{name}": data for name, data in self.backbone.files().items()}


def _state_entries(config: VlaConfig | TokenVlaConfig, shapes: Shapes) -> list[slice]:
    """Slice of the observation vector for each state token."""
    if not shapes.observation:
        return []
    if config.state_tokens == "one":
        return [slice(0, shapes.observation)]
    return [slice(*ends) for ends in shapes.entries.values()]
