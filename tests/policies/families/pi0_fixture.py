"""Tiny pi0 checkpoints in LeRobot's files, with random weights.

Names and shapes were worked out from LeRobot's public code (`policies/pi0`), and `test_pi0_itself`
compares them with a checkpoint that LeRobot writes. No released file was at hand.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.families import pi0
from policies.families.pi0 import VARIANTS, GemmaSizes
from tests.policies.vlm_fixture import write_backbone

EXPERT = "model.paligemma_with_expert.gemma_expert."
VLM = "model.paligemma_with_expert.paligemma."
STATE, ACTION = 6, 5
"""Entries to which the tiny checkpoints pad; the released ones pad both to 32."""
TINY_VLM = GemmaSizes(width=32, layers=2, inner=48, head_dim=8)
TINY_EXPERT = GemmaSizes(width=16, layers=2, inner=40, head_dim=8)
TINY = {"tiny_vlm": TINY_VLM, "tiny_expert": TINY_EXPERT}
"""Variants of tiny checkpoints."""


def pi0_shapes(
    expert: GemmaSizes = VARIANTS["gemma_300m"], state: int = 32, action: int = 32
) -> dict[str, tuple[int, ...]]:
    """Shapes of the action expert and of the projections of a checkpoint, by name."""
    width, inner = expert.width, expert.inner
    queries, keys = expert.heads * expert.head_dim, expert.kv_heads * expert.head_dim
    shapes: dict[str, tuple[int, ...]] = {f"{EXPERT}model.norm.weight": (width,)}
    for name, outputs, inputs in (
        ("state_proj", width, state),
        ("action_in_proj", width, action),
        ("action_out_proj", action, width),
        ("action_time_mlp_in", width, 2 * width),
        ("action_time_mlp_out", width, width),
    ):
        shapes |= {f"model.{name}.weight": (outputs, inputs), f"model.{name}.bias": (outputs,)}
    for number in range(expert.layers):
        weights = {
            "self_attn.q_proj": (queries, width),
            "self_attn.k_proj": (keys, width),
            "self_attn.v_proj": (keys, width),
            "self_attn.o_proj": (width, queries),
            "mlp.gate_proj": (inner, width),
            "mlp.up_proj": (inner, width),
            "mlp.down_proj": (width, inner),
            "input_layernorm": (width,),
            "post_attention_layernorm": (width,),
        }
        layer = f"{EXPERT}model.layers.{number}."
        shapes |= {f"{layer}{name}.weight": shape for name, shape in weights.items()}
    return shapes


def settings(**changes: Any) -> dict[str, Any]:
    """The content of a checkpoint's `config.json`, as LeRobot's defaults with tiny sizes."""
    return {
        "type": "pi0",
        "n_obs_steps": 1,
        "normalization_mapping": {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"},
        "input_features": {"observation.state": {"type": "STATE", "shape": [3]}},
        "output_features": {"action": {"type": "ACTION", "shape": [2]}},
        "device": "cpu",
        "paligemma_variant": "tiny_vlm",
        "action_expert_variant": "tiny_expert",
        "dtype": "float32",
        "chunk_size": 50,
        "n_action_steps": 50,
        "max_state_dim": STATE,
        "max_action_dim": ACTION,
        "num_inference_steps": 10,
        "time_sampling_beta_alpha": 1.5,
        "time_sampling_beta_beta": 1.0,
        "time_sampling_scale": 0.999,
        "time_sampling_offset": 0.001,
        "min_period": 0.004,
        "max_period": 4.0,
        "image_resolution": [32, 32],
        "empty_cameras": 0,
        "gradient_checkpointing": False,
        "optimizer_lr": 2.5e-05,
        "tokenizer_max_length": 48,
    } | changes


def write_paligemma(folder: Path) -> Path:
    """Writes a tiny PaliGemma with Gemma's number of heads; returns the folder."""
    return write_backbone(
        folder,
        family="paligemma",
        tied=True,
        rms_norm_eps=1e-6,
        num_attention_heads=TINY_VLM.heads,
    )


def use_tiny_variants(patch: pytest.MonkeyPatch) -> None:
    """Makes the sizes of `TINY` known."""
    patch.setattr(pi0, "VARIANTS", {**VARIANTS, **TINY})


def write_checkpoint(folder: Path, backbone: Path, **changes: Any) -> Path:
    """Writes a checkpoint whose backbone has the weights of the folder `backbone`, under the names
    of released files: without `model.` in front, with the vision tower's inner part, and with the
    embedding as the language head.

    Args:
        folder: created if missing.
        backbone: written by `write_paligemma`.
        changes: settings that replace those of `settings`.
    """
    from safetensors.torch import load_file, save_file

    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings(**changes)))
    source = torch.Generator().manual_seed(1)
    weights = {
        name: torch.randn(shape, generator=source) * (0.1 if len(shape) == 1 else shape[-1] ** -0.5)
        for name, shape in pi0_shapes(TINY_EXPERT, STATE, ACTION).items()
    }
    for name, part in load_file(backbone / "model.safetensors").items():
        weights[f"{VLM}{released_name(name)}"] = part
    embedding = weights.pop(f"{VLM}model.language_model.embed_tokens.weight")
    weights[f"{VLM}lm_head.weight"] = embedding
    weights[f"{EXPERT}lm_head.weight"] = torch.zeros(4, TINY_EXPERT.width)
    weights = {name.removeprefix("model."): part for name, part in weights.items()}
    save_file(weights, folder / "model.safetensors")
    return folder


def released_name(name: str) -> str:
    """The name of a weight of the backbone's own file in a checkpoint's PaliGemma."""
    for part in ("language_model", "vision_tower", "multi_modal_projector"):
        if part in name:
            rest = name.split(f"{part}.", 1)[1].removeprefix("model.")
            inner = "vision_model." if part == "vision_tower" else ""
            return f"model.{part}.{inner}{rest.removeprefix('vision_model.')}"
    return name
