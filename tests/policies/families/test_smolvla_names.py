"""The weights of a SmolVLA checkpoint, by name and shape, beside those of a policy of its sizes.

The table was worked out from LeRobot's public code (`policies/smolvla`, commit 7427f318) with the
defaults of its configuration: 16 of SmolVLM2-500M's text layers, an expert of three quarters of
their width whose every second layer, from the first on, attends to itself, too, and state and
actions padded to 32 entries. No released file was at hand.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.policies.families.test_vla import published_sizes

LAYERS, WIDTH, EXPERT, INNER = 16, 960, 720, 2048
QUERIES, KEYS, PADDED = 15 * 64, 5 * 64, 32
EXPERT_PREFIX, VLM_PREFIX = "vlm_with_expert.lm_expert.", "vlm_with_expert.vlm.model."
OWN_NAMES = (
    (r"backbone\.state_projections\.0\.(\w+)", r"state_proj.\1"),
    (r"expert\.embed\.(\w+)", r"action_in_proj.\1"),
    (r"expert\.out\.(\w+)", r"action_out_proj.\1"),
    (r"expert\.join\.0\.(\w+)", r"action_time_mlp_in.\1"),
    (r"expert\.join\.1\.(\w+)", r"action_time_mlp_out.\1"),
    (r"expert\.norm\.weight", rf"{EXPERT_PREFIX}norm.weight"),
    (r"expert\.(layers\.\d+)\.([qkvo]_proj\.\w+)", rf"{EXPERT_PREFIX}\1.self_attn.\2"),
    (r"expert\.(layers\.\d+)\.((?:gate|up|down)_proj\.\w+)", rf"{EXPERT_PREFIX}\1.mlp.\2"),
    (r"expert\.(layers\.\d+)\.attention_norm\.(\w+)", rf"{EXPERT_PREFIX}\1.input_layernorm.\2"),
    (
        r"expert\.(layers\.\d+)\.feedforward_norm\.(\w+)",
        rf"{EXPERT_PREFIX}\1.post_attention_layernorm.\2",
    ),
    (r"backbone\.text\.(.+)", rf"{VLM_PREFIX}text_model.\1"),
    (r"backbone\.vision\.(.+)", rf"{VLM_PREFIX}vision_model.\1"),
    (r"backbone\.connector\.(.+)", rf"{VLM_PREFIX}connector.\1"),
)
"""Names of Handoff, and SmolVLA's of the same weights."""


def smolvla_shapes() -> dict[str, tuple[int, ...]]:
    """Shapes of the action expert and of the projections of a checkpoint, by name."""
    shapes: dict[str, tuple[int, ...]] = {f"{EXPERT_PREFIX}norm.weight": (EXPERT,)}
    for name, outputs, inputs in (
        ("state_proj", WIDTH, PADDED),
        ("action_in_proj", EXPERT, PADDED),
        ("action_out_proj", PADDED, EXPERT),
        ("action_time_mlp_in", EXPERT, 2 * EXPERT),
        ("action_time_mlp_out", EXPERT, EXPERT),
    ):
        shapes |= {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}
    for number in range(LAYERS):
        source = KEYS if number % 2 else EXPERT
        weights = {
            "self_attn.q_proj": (QUERIES, EXPERT),
            "self_attn.k_proj": (KEYS, source),
            "self_attn.v_proj": (KEYS, source),
            "self_attn.o_proj": (EXPERT, QUERIES),
            "mlp.gate_proj": (INNER, EXPERT),
            "mlp.up_proj": (INNER, EXPERT),
            "mlp.down_proj": (EXPERT, INNER),
            "input_layernorm": (EXPERT,),
            "post_attention_layernorm": (EXPERT,),
        }
        layer = f"{EXPERT_PREFIX}layers.{number}."
        shapes |= {f"{layer}{name}.weight": shape for name, shape in weights.items()}
    return shapes


def smolvla_name(name: str) -> str | None:
    """SmolVLA's name of a weight of Handoff; None for one that it does not have."""
    for pattern, replacement in OWN_NAMES:
        if re.fullmatch(pattern, name):
            return re.sub(pattern, replacement, name)
    return None


def test_every_weight_of_a_policy_of_its_sizes_is_one_of_smolvla(tmp_path: Path):
    own = {name: tuple(part.shape) for name, part in published_sizes(tmp_path).named_parameters()}
    named = {smolvla_name(name): shape for name, shape in own.items()}
    assert None not in named
    assert len(named) == len(own)
    expected = smolvla_shapes()
    assert len(expected) == 1 + 5 * 2 + LAYERS * 9
    expert = {name: shape for name, shape in named.items() if not str(name).startswith(VLM_PREFIX)}
    assert expert == expected


def test_the_backbone_has_the_layers_of_its_checkpoint(tmp_path: Path):
    own = {name: tuple(part.shape) for name, part in published_sizes(tmp_path).named_parameters()}
    named = {str(smolvla_name(name)): shape for name, shape in own.items()}
    text = f"{VLM_PREFIX}text_model."
    assert named[f"{text}embed_tokens.weight"] == (49280, WIDTH)
    assert named[f"{text}layers.15.self_attn.k_proj.weight"] == (KEYS, WIDTH)
    assert f"{text}layers.16.self_attn.k_proj.weight" not in named
    # 8 x 8 tokens of 4 x 4 patches of 768 features each.
    assert named[f"{VLM_PREFIX}connector.modality_projection.proj.weight"] == (WIDTH, 12288)
    patches = f"{VLM_PREFIX}vision_model.embeddings."
    assert named[f"{patches}patch_embedding.weight"] == (768, 3, 16, 16)
    assert named[f"{patches}position_embedding.weight"] == (1024, 768)
