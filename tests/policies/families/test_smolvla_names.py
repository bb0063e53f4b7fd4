"""The weights of a SmolVLA checkpoint, by name and shape, beside those of a policy of its sizes."""

from __future__ import annotations

from pathlib import Path

import pytest

from policies.families.smolvla import smolvla_name
from robots.errors import HandoffError
from tests.policies.families.smolvla_fixture import PUBLISHED, VLM_PREFIX, smolvla_shapes
from tests.policies.families.test_vla import published_sizes


def named_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Shapes of the weights of a policy of the published sizes, by the checkpoint's names."""
    own = dict(published_sizes(folder).named_parameters())
    named = {smolvla_name(name): tuple(part.shape) for name, part in own.items()}
    assert len(named) == len(own)
    return named


def test_every_weight_of_a_policy_of_its_sizes_is_one_of_smolvla(tmp_path: Path):
    expected = smolvla_shapes()
    assert len(expected) == 1 + 5 * 2 + PUBLISHED.layers * 9
    named = named_shapes(tmp_path)
    assert {name: shape for name, shape in named.items() if VLM_PREFIX not in name} == expected


def test_the_backbone_has_the_layers_of_its_checkpoint(tmp_path: Path):
    named, text = named_shapes(tmp_path), f"{VLM_PREFIX}model.text_model."
    assert named[f"{text}embed_tokens.weight"] == (49280, PUBLISHED.width)
    assert named[f"{text}layers.15.self_attn.k_proj.weight"] == (PUBLISHED.keys, PUBLISHED.width)
    assert f"{text}layers.16.self_attn.k_proj.weight" not in named
    # 8 x 8 tokens of 4 x 4 patches of 768 features each.
    connector = f"{VLM_PREFIX}model.connector.modality_projection.proj.weight"
    assert named[connector] == (PUBLISHED.width, 12288)
    patches = f"{VLM_PREFIX}model.vision_model.embeddings."
    assert named[f"{patches}patch_embedding.weight"] == (768, 3, 16, 16)
    assert named[f"{patches}position_embedding.weight"] == (1024, 768)


def test_an_adapted_layer_has_the_name_of_its_plain_one():
    adapted = "backbone.text.layers.0.self_attn.q_proj.base_layer.weight"
    assert smolvla_name(adapted) == smolvla_name(adapted.replace("base_layer.", ""))
    with pytest.raises(HandoffError, match="the weight head has no name in a checkpoint"):
        smolvla_name("head")
