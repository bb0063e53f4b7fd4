"""SmolVLA as the start of a `vla` policy: its settings, sizes and names of weights.

This follows LeRobot 0.6.1 (`policies/smolvla`; arXiv 2506.01844), whose files are those of
`lerobot/smolvla_base`; `policies.families.vla_checkpoint` reads them.
"""

from __future__ import annotations

import re
from typing import ClassVar

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

_NUMBER = (int, float)
_VLM = "model.vlm_with_expert.vlm.model."
_NAMES = (
    (r"backbone\.state_projections\.0\.(\w+)", r"model.state_proj.\1"),
    *expert_names("model.vlm_with_expert.lm_expert."),
    (r"backbone\.text\.(.+)", rf"{_VLM}text_model.\1"),
    (r"backbone\.vision\.(.+)", rf"{_VLM}vision_model.\1"),
    (r"backbone\.connector\.(.+)", rf"{_VLM}connector.\1"),
)
"""Patterns of our names of weights, and the checkpoint's names."""
_ROTARY_BASE = 10_000.0
"""Base of the rotary frequencies in SmolVLA's code; SmolVLM2 was trained with 100,000."""


class SmolvlaCheckpoint(VlaCheckpoint):
    """The configuration of a SmolVLA checkpoint.

    SmolVLA scales image and text embeddings by the square root of their width and has rotary
    frequencies of its own; actions attend to earlier ones.
    """

    kind: ClassVar = "smolvla"
    known: ClassVar = KnownSettings(
        implemented={
            "n_obs_steps": 1,
            "attention_mode": "cross_attn",
            "add_image_special_tokens": False,
            "adapt_to_pi_aloha": False,
            "use_delta_joint_actions_aloha": False,
            "use_peft": False,
            "rtc_config": None,
            "min_period": 0.004,
            "max_period": 4.0,
            "normalization_mapping": {
                "VISUAL": "IDENTITY",
                "STATE": "MEAN_STD",
                "ACTION": "MEAN_STD",
            },
        },
        required={
            "attention_mode": str,
            "max_state_dim": _NUMBER,
            "max_action_dim": _NUMBER,
            "resize_imgs_with_padding": list,
            "num_vlm_layers": _NUMBER,
            "num_expert_layers": _NUMBER,
            "self_attn_every_n_layers": _NUMBER,
            "expert_width_multiplier": _NUMBER,
        },
        # Data, sampler and length of a chunk, which a policy sets itself. Padding of the prefix and
        # cameras that are not there are masked and not counted, so they change nothing.
        unread=(
            "input_features",
            "output_features",
            "chunk_size",
            "n_action_steps",
            "num_steps",
            "empty_cameras",
            "prefix_length",
            "pad_language_to",
            "tokenizer_max_length",
            "vlm_model_name",
            "load_vlm_weights",
            "use_cache",
            "train_state_proj",
            *COMPUTATION_AND_HUB,
        ),
    )
    # The language head, and the normalisers of LeRobot's older files.
    unread_weights: ClassVar = re.compile(
        r"model\.vlm_with_expert\.vlm\.lm_head\.weight"
        r"|(normalize_inputs|normalize_targets|unnormalize_outputs)\..*"
    )
    state_in_prefix: ClassVar = True
    backbone_code: ClassVar = BackboneCode(scaled=True, rotary_base=_ROTARY_BASE)

    @property
    def expert_layers(self) -> ExpertLayers:
        """See `VlaCheckpoint.expert_layers`."""
        return ExpertLayers(causal=True)

    def sizes(
        self, config: VlaConfig, backbone: VisionLanguageModel
    ) -> dict[str, tuple[object, object]]:
        """See `VlaCheckpoint.sizes`."""
        own, settings = backbone.source, self.settings
        text = own.config.text_config
        layers, expert = settings["num_vlm_layers"], settings["num_expert_layers"]
        return {
            "n_obs_steps": (config.n_obs_steps, 1),
            "expert_width": (config.expert_width, settings["expert_width_multiplier"]),
            "self_attention_every": (
                config.self_attention_every,
                settings["self_attn_every_n_layers"],
            ),
            # A number up to 0 means all layers.
            "backbone.layers": (backbone.layers, layers if layers > 0 else backbone.layers),
            "expert_layers": (
                backbone.layers if config.expert_layers is None else config.expert_layers,
                expert if expert > 0 else backbone.layers,
            ),
            "the number of layers of the backbone": (
                backbone.layers,
                expert if expert > 0 else backbone.layers,
            ),
            "the backbone's image_size": (
                [backbone.image_size] * 2,
                settings["resize_imgs_with_padding"],
            ),
            "the backbone's image_mean and image_std": ({*own.mean, *own.std}, {0.5}),
            "the backbone's model_type": (own.config.model_type, "smolvlm"),
            "the backbone's text layers": (
                (text.model_type, text.rms_norm_eps, text.hidden_act, text.attention_bias),
                ("llama", 1e-5, "silu", False),
            ),
        }

    def weight_name(self, name: str) -> str:
        """See `VlaCheckpoint.weight_name`."""
        return renamed(name, _NAMES, self.kind)


def smolvla_name(name: str) -> str:
    """The checkpoint's name of a weight of `VlaPolicy`; see `VlaCheckpoint.weight_name`."""
    return renamed(name, _NAMES, SmolvlaCheckpoint.kind)
