"""pi0 as the start of a `vla` policy: its settings, sizes and names of weights.

This follows LeRobot 0.6.1 (`policies/pi0`, a port of openpi; arXiv 2410.24164), whose files are
those of `lerobot/pi0_base`; `policies.families.vla_checkpoint` reads them. Backbone and expert have
Gemma's layers: a GELU in the feed-forward networks, an epsilon of 1e-6, and norms whose stored
weight is the difference from 1. The state is the first token of the expert and sees no action;
actions see one another and the state. Pictures are centred when they are padded to a square.
"""

from __future__ import annotations

import re
from typing import ClassVar, NamedTuple

from torch import Tensor

from policies.families.vla_checkpoint import (
    COMPUTATION_AND_HUB,
    KnownSettings,
    VlaCheckpoint,
    expert_names,
    renamed,
)
from policies.networks.action_expert import ExpertLayers
from policies.networks.vlm import BackboneCode, VisionLanguageModel
from policies.policy_config import VlaConfig
from robots.errors import HandoffError

_NUMBER = (int, float)
_EXPERT = "model.paligemma_with_expert.gemma_expert."
_VLM = "model.paligemma_with_expert.paligemma."
_NAMES = (
    (r"expert\.state\.(\w+)", r"model.state_proj.\1"),
    *expert_names(f"{_EXPERT}model."),
    (r"backbone\.text\.(.+)", rf"{_VLM}model.language_model.\1"),
    (r"backbone\.vision\.(.+)", rf"{_VLM}model.vision_tower.\1"),
    (r"backbone\.connector\.(.+)", rf"{_VLM}model.multi_modal_projector.\1"),
)
"""Patterns of our names of weights, and the checkpoint's names."""
_EXPERT_NORM = re.compile(rf"{re.escape(_EXPERT)}model\..*norm\.weight")
_EMBEDDING = f"{_VLM}model.language_model.embed_tokens.weight"
_TIED = f"{_VLM}lm_head.weight"


class GemmaSizes(NamedTuple):
    """Sizes of the layers of a variant of Gemma."""

    width: int
    layers: int
    inner: int
    heads: int = 8
    kv_heads: int = 1
    head_dim: int = 256


VARIANTS = {
    "gemma_300m": GemmaSizes(width=1024, layers=18, inner=4096),
    "gemma_2b": GemmaSizes(width=2048, layers=18, inner=16384),
}
"""Variants by name, as in openpi."""


class Pi0Checkpoint(VlaCheckpoint):
    """The configuration of a pi0 checkpoint."""

    kind: ClassVar = "pi0"
    known: ClassVar = KnownSettings(
        implemented={
            "n_obs_steps": 1,
            "use_relative_actions": False,
            "use_peft": False,
            "rtc_config": None,
            "min_period": 0.004,
            "max_period": 4.0,
            "time_sampling_beta_alpha": 1.5,
            "time_sampling_beta_beta": 1.0,
            "time_sampling_scale": 0.999,
            "time_sampling_offset": 0.001,
            "normalization_mapping": {
                "VISUAL": "IDENTITY",
                "STATE": "MEAN_STD",
                "ACTION": "MEAN_STD",
            },
        },
        required={
            "paligemma_variant": str,
            "action_expert_variant": str,
            "max_state_dim": _NUMBER,
            "max_action_dim": _NUMBER,
            "image_resolution": list,
        },
        # Data, sampler and length of a chunk, which a policy sets itself. Cameras that are not
        # there and padding of the words are masked and not counted, so they change nothing.
        unread=(
            "input_features",
            "output_features",
            "chunk_size",
            "n_action_steps",
            "num_inference_steps",
            "empty_cameras",
            "tokenizer_max_length",
            "relative_exclude_joints",
            "action_feature_names",
            "dtype",
            "gradient_checkpointing",
            *COMPUTATION_AND_HUB,
        ),
    )
    # The language heads; that of the backbone has the weights of its embedding.
    unread_weights: ClassVar = re.compile(
        r"model\.paligemma_with_expert\.(paligemma|gemma_expert)\.lm_head\.weight"
    )
    state_in_prefix: ClassVar = False
    backbone_code: ClassVar = BackboneCode(centred=True)

    @property
    def expert_layers(self) -> ExpertLayers:
        """See `VlaCheckpoint.expert_layers`."""
        return ExpertLayers(
            inner=self._variant("action_expert_variant").inner,
            activation="gelu",
            epsilon=1e-6,
            state=self.state,
        )

    def sizes(
        self, config: VlaConfig, backbone: VisionLanguageModel
    ) -> dict[str, tuple[object, object]]:
        """See `VlaCheckpoint.sizes`."""
        own, text = backbone.source, backbone.source.config.text_config
        paligemma = self._variant("paligemma_variant")
        expert = self._variant("action_expert_variant")
        shared = (paligemma.layers, paligemma.heads, paligemma.kv_heads, paligemma.head_dim)
        return {
            "n_obs_steps": (config.n_obs_steps, 1),
            "self_attention_every": (config.self_attention_every, 1),
            "expert_width": (config.expert_width, expert.width / paligemma.width),
            "expert_layers": (config.expert_layers or backbone.layers, expert.layers),
            "the backbone's width and inner width": (
                (backbone.width, text.intermediate_size),
                (paligemma.width, paligemma.inner),
            ),
            "the backbone's layers, heads, key heads and width of a head": (
                (backbone.layers, backbone.heads, backbone.kv_heads, backbone.head_dim),
                shared,
            ),
            "the backbone's image_size": (
                [backbone.image_size] * 2,
                self.settings["image_resolution"],
            ),
            "the backbone's image_mean and image_std": ({*own.mean, *own.std}, {0.5}),
            "the backbone's model_type": (own.config.model_type, "paligemma"),
            "the backbone's text layers": (
                (text.model_type, text.rms_norm_eps, text.hidden_activation, text.attention_bias),
                ("gemma", 1e-6, "gelu_pytorch_tanh", False),
            ),
        }

    def weight_name(self, name: str) -> str:
        """See `VlaCheckpoint.weight_name`."""
        return renamed(name, _NAMES, self.kind)

    def read(self, found: dict[str, Tensor]) -> dict[str, Tensor]:
        """See `VlaCheckpoint.read`.

        Released files have names without `model.` in front, a part of the vision tower that newer
        versions of transformers no longer name, and the embedding as the language head alone.
        """
        weights = {
            name if name.startswith("model.") else f"model.{name}": part
            for name, part in found.items()
        }
        weights = {
            name.replace(".vision_tower.vision_model.", ".vision_tower."): part
            for name, part in weights.items()
        }
        if _EMBEDDING not in weights and _TIED in weights:
            weights[_EMBEDDING] = weights[_TIED]
        return {
            name: part.float() + 1.0 if _EXPERT_NORM.fullmatch(name) else part
            for name, part in weights.items()
        }

    def _variant(self, setting: str) -> GemmaSizes:
        name = self.settings[setting]
        if name not in VARIANTS:
            raise HandoffError(
                f"{self.folder}: {setting} is '{name}', supported are {', '.join(VARIANTS)}."
            )
        return VARIANTS[name]
