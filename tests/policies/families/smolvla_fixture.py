"""Tiny SmolVLA checkpoints in LeRobot's files, with random weights.

Names and shapes were worked out from LeRobot's public code (`policies/smolvla`), and
`test_smolvla_itself` compares them with a checkpoint that LeRobot writes. No released file was at
hand.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

EXPERT_PREFIX, VLM_PREFIX = "model.vlm_with_expert.lm_expert.", "model.vlm_with_expert.vlm."


@dataclass(frozen=True)
class Sizes:
    """Sizes of a checkpoint."""

    layers: int
    width: int
    expert: int
    inner: int
    queries: int
    keys: int
    state: int = 32
    action: int = 32


PUBLISHED = Sizes(layers=16, width=960, expert=720, inner=2048, queries=15 * 64, keys=5 * 64)
"""16 of SmolVLM2-500M's text layers, an expert of three quarters of their width whose every second
layer, from the first on, attends to itself, too."""
TINY = Sizes(layers=2, width=32, expert=24, inner=256, queries=32, keys=16, state=6, action=5)
"""Beside the backbone of `vlm_fixture`."""


def smolvla_shapes(sizes: Sizes = PUBLISHED) -> dict[str, tuple[int, ...]]:
    """Shapes of the action expert and of the projections of a checkpoint, by name."""
    expert, keys = sizes.expert, sizes.keys
    shapes: dict[str, tuple[int, ...]] = {f"{EXPERT_PREFIX}norm.weight": (expert,)}
    for name, outputs, inputs in (
        ("state_proj", sizes.width, sizes.state),
        ("action_in_proj", expert, sizes.action),
        ("action_out_proj", sizes.action, expert),
        ("action_time_mlp_in", expert, 2 * expert),
        ("action_time_mlp_out", expert, expert),
    ):
        shapes |= {f"model.{name}.weight": (outputs, inputs), f"model.{name}.bias": (outputs,)}
    for number in range(sizes.layers):
        source = keys if number % 2 else expert
        weights = {
            "self_attn.q_proj": (sizes.queries, expert),
            "self_attn.k_proj": (keys, source),
            "self_attn.v_proj": (keys, source),
            "self_attn.o_proj": (expert, sizes.queries),
            "mlp.gate_proj": (sizes.inner, expert),
            "mlp.up_proj": (sizes.inner, expert),
            "mlp.down_proj": (expert, sizes.inner),
            "input_layernorm": (expert,),
            "post_attention_layernorm": (expert,),
        }
        layer = f"{EXPERT_PREFIX}layers.{number}."
        shapes |= {f"{layer}{name}.weight": shape for name, shape in weights.items()}
    return shapes


def settings(sizes: Sizes = TINY, **changes: Any) -> dict[str, Any]:
    """The content of a checkpoint's `config.json`, as LeRobot's defaults with tiny sizes."""
    return {
        "type": "smolvla",
        "n_obs_steps": 1,
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
        "input_features": {"observation.state": {"type": "STATE", "shape": [3]}},
        "output_features": {"action": {"type": "ACTION", "shape": [2]}},
        "chunk_size": 50,
        "n_action_steps": 50,
        "max_state_dim": sizes.state,
        "max_action_dim": sizes.action,
        "resize_imgs_with_padding": [32, 32],
        "empty_cameras": 0,
        "adapt_to_pi_aloha": False,
        "use_delta_joint_actions_aloha": False,
        "tokenizer_max_length": 48,
        "num_steps": 10,
        "optimizer_lr": 1e-4,
        "vlm_model_name": "HuggingFaceTB/SmolVLM2-500M-Video-Instruct",
        "load_vlm_weights": True,
        "attention_mode": "cross_attn",
        "prefix_length": 0,
        "pad_language_to": "max_length",
        "num_expert_layers": 0,
        "num_vlm_layers": sizes.layers,
        "self_attn_every_n_layers": 2,
        "expert_width_multiplier": 0.75,
    } | changes


def write_checkpoint(folder: Path, backbone: Path, sizes: Sizes = TINY, **changes: Any) -> Path:
    """Writes a checkpoint whose backbone has the weights of the folder `backbone`, with one
    normaliser of LeRobot's older files.

    Args:
        folder: created if missing.
        backbone: written by `write_backbone`.
        sizes: sizes that fit the backbone.
        changes: settings that replace those of `settings`.
    """
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings(sizes, **changes)))
    source = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(shape, generator=source) * (0.1 if len(shape) == 1 else shape[-1] ** -0.5)
        for name, shape in smolvla_shapes(sizes).items()
    }
    for name, part in weights.items():
        if "norm" in name:
            part += 1.0
    vision = load_file(backbone / "model.safetensors")
    weights |= {f"{VLM_PREFIX}{name}": part for name, part in vision.items()}
    weights["normalize_inputs.buffer_observation_state.mean"] = torch.zeros(3)
    save_file(weights, folder / "model.safetensors")
    return folder
