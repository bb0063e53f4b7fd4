"""A `vla` that starts from a pi0 checkpoint; `test_pi0_itself` compares it with LeRobot."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from policies.card import Shapes
from policies.families.pi0 import VARIANTS, Pi0Checkpoint
from policies.families.vla import VlaPolicy
from policies.networks.config import BackboneConfig
from policies.networks.vlm import padded_image
from policies.policy_config import VlaConfig
from robots.errors import HandoffError
from tests.policies.families.checkpoint_training import SMALL, trained_from
from tests.policies.families.pi0_fixture import (
    ACTION,
    EXPERT,
    STATE,
    TINY_EXPERT,
    VLM,
    pi0_shapes,
    settings,
    use_tiny_variants,
    write_checkpoint,
    write_paligemma,
)
from tests.policies.families.test_vla import batch, noise, obs, policy
from tests.policies.vlm_fixture import write_tokenizer

WEIGHTS = "model.safetensors"
SIZES: dict[str, Any] = {"expert_width": 0.5, "self_attention_every": 1}


@pytest.fixture(scope="module", autouse=True)
def _tiny_variants() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        use_tiny_variants(patch)
        yield


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_paligemma(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def checkpoint(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), backbone)


def started(backbone: Path, checkpoint: Path, **options: Any) -> VlaPolicy:
    return policy(backbone, checkpoint=str(checkpoint), **{**SIZES, **options}).eval()


@pytest.mark.parametrize("trained", ["none", "lora", "all"])
def test_every_weight_is_that_of_the_checkpoint(backbone: Path, checkpoint: Path, trained: str):
    module = started(backbone, checkpoint, train_backbone=trained)
    assert isinstance(module.checkpoint, Pi0Checkpoint)
    found = module.checkpoint.read(load_file(checkpoint / WEIGHTS))
    own = {
        module.checkpoint.weight_name(name): part
        for name, part in module.named_parameters()
        if ".lora_" not in name
    }
    assert all(torch.equal(part, found[name]) for name, part in own.items())
    assert pi0_shapes(TINY_EXPERT, STATE, ACTION).keys() <= own.keys()


def test_norms_of_the_expert_are_stored_as_the_difference_from_one(
    backbone: Path, checkpoint: Path
):
    stored = load_file(checkpoint / WEIGHTS)[f"{EXPERT}model.norm.weight".removeprefix("model.")]
    module = started(backbone, checkpoint)
    assert torch.allclose(module.expert.norm.weight, 1.0 + stored)
    assert module.expert.norm.eps == 1e-6


def test_a_file_with_the_embedding_and_full_names_is_read_too(
    backbone: Path, checkpoint: Path, tmp_path: Path
):
    weights = {f"model.{name}": part for name, part in load_file(checkpoint / WEIGHTS).items()}
    embedding = weights.pop(f"{VLM}lm_head.weight")
    weights[f"{VLM}model.language_model.embed_tokens.weight"] = embedding
    shutil.copy(checkpoint / "config.json", tmp_path)
    save_file(weights, tmp_path / WEIGHTS)
    expected = started(backbone, checkpoint).sample(obs(2), noise(2))
    assert torch.equal(started(backbone, tmp_path).sample(obs(2), noise(2)), expected)


def velocities(module: VlaPolicy, noisy: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
    given = obs(1)._replace(vector_BTO=state)
    with torch.no_grad():
        return module.denoise(module.expert_context(given))(noisy, torch.tensor([0.5]))


def test_actions_see_one_another_and_the_state(backbone: Path, checkpoint: Path):
    module, state = started(backbone, checkpoint), torch.zeros(1, 1, 3)
    noisy = torch.randn(1, 4, ACTION, generator=torch.Generator().manual_seed(0))
    moved = noisy.clone()
    moved[:, 2] += 1.0
    before = velocities(module, noisy, state)
    for after in (velocities(module, moved, state), velocities(module, noisy, state + 1.0)):
        assert ((before - after).abs().amax(dim=(0, 2)) > 1e-4).all()


def test_the_state_sees_no_action(backbone: Path, checkpoint: Path):
    allowed = (
        started(backbone, checkpoint)
        .expert.layers[0]
        ._with_actions(  # type: ignore[operator]
            torch.tensor([[[True, False]]]), 4
        )
    )
    assert allowed[0].int().tolist() == [
        [1, 0, 1, 0, 0, 0],
        [1, 0, 1, 1, 1, 1],
        [1, 0, 1, 1, 1, 1],
        [1, 0, 1, 1, 1, 1],
    ]


def test_the_backbone_has_no_token_of_the_state(backbone: Path, checkpoint: Path):
    module = started(backbone, checkpoint)
    assert len(module.backbone.state_projections) == 0
    prefix = module.prefix(obs(1))
    words = module.tokens(("open the drawer",)).token_BL.shape[1]
    assert (prefix.state_tokens, prefix.embedding_BLW.shape[1]) == (0, 16 + words)


def test_a_picture_lies_in_the_middle_of_its_padding():
    picture = torch.ones(1, 3, 5, 16)
    rows = padded_image(picture, 16, centred=True)[0, 0, :, 0]
    assert rows.nonzero().flatten().tolist() == list(range(5, 10)), "11 rows: five above, six below"
    assert padded_image(picture, 16)[0, 0, :, 0].nonzero().flatten().tolist() == list(range(11, 16))


def test_the_state_is_padded_with_zeros(backbone: Path, checkpoint: Path):
    module = started(backbone, checkpoint)
    context = module.expert_context(obs(2))
    assert context.state_BS is not None
    assert context.state_BS.shape == (2, STATE)
    assert torch.equal(context.state_BS[:, :3], obs(2).vector_BTO[:, 0])
    assert not context.state_BS[:, 3:].any()


def test_a_step_changes_every_trained_weight(backbone: Path, checkpoint: Path):
    module = started(backbone, checkpoint).train()
    before = {name: part.clone() for name, part in module.named_parameters() if part.requires_grad}
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3)
    module.loss(batch(), np.random.default_rng(0)).backward()
    optimizer.step()
    changed = {
        name
        for name, part in module.named_parameters()
        if not torch.equal(part, before.get(name, part))
    }
    assert changed == before.keys()
    assert "expert.state.weight" in changed


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"use_relative_actions": True}, "use_relative_actions is True, expected False"),
        ({"time_sampling_beta_alpha": 1.0}, r"time_sampling_beta_alpha is 1\.0, expected 1\.5"),
        ({"knowledge_insulation": True}, "knowledge_insulation is a setting that is not known"),
        ({"action_expert_variant": 300}, "action_expert_variant is 300, expected a name"),
        ({"action_expert_variant": "gemma_9b"}, "action_expert_variant is 'gemma_9b', supported"),
        ({"paligemma_variant": "gemma_2b"}, r"width is \(32, 48\), expected \(2048, 16384\)"),
        ({"image_resolution": [224, 224]}, r"image_size is \[32, 32\], expected \[224, 224\]"),
        ({"max_state_dim": 2}, "3 entries of state"),
    ],
)
def test_settings_that_are_not_those_of_the_policy_are_refused(
    backbone: Path, checkpoint: Path, tmp_path: Path, changes: dict[str, Any], said: str
):
    shutil.copy(checkpoint / WEIGHTS, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings(**changes)))
    with pytest.raises(HandoffError, match=said):
        started(backbone, tmp_path)


def test_a_policy_of_other_sizes_is_refused(backbone: Path, checkpoint: Path):
    with pytest.raises(HandoffError, match=r"expert_width is 0\.75, expected 0\.5"):
        started(backbone, checkpoint, expert_width=0.75)
    with pytest.raises(HandoffError, match="self_attention_every is 2, expected 1"):
        started(backbone, checkpoint, self_attention_every=2)


def test_a_weight_that_is_missing_is_named(backbone: Path, checkpoint: Path, tmp_path: Path):
    weights = load_file(checkpoint / WEIGHTS)
    del weights["state_proj.bias"]
    shutil.copy(checkpoint / "config.json", tmp_path)
    save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(HandoffError, match=r"1 missing: model\.state_proj\.bias"):
        started(backbone, tmp_path)


def test_it_trains_moves_and_exports(backbone: Path, checkpoint: Path, tmp_path: Path):
    config = replace(SMALL, **SIZES, inference_steps=1)
    folder, module, parity = trained_from(config, backbone, checkpoint, tmp_path)
    assert isinstance(module.checkpoint, Pi0Checkpoint)
    assert {path.name for path in (folder / "pi0").iterdir()} == {"config.json"}
    assert parity <= 1e-4


def published_sizes(folder: Path) -> VlaPolicy:
    """An untrained policy of pi0's sizes, without memory for its weights."""
    from transformers import AutoConfig

    backbone, kept = folder / "backbone", folder / "pi0"
    backbone.mkdir()
    kept.mkdir()
    write_tokenizer(backbone)
    gemma = VARIANTS["gemma_2b"]
    words = {
        "model_type": "gemma",
        "hidden_size": gemma.width,
        "intermediate_size": gemma.inner,
        "num_hidden_layers": gemma.layers,
        "num_attention_heads": gemma.heads,
        "num_key_value_heads": gemma.kv_heads,
        "head_dim": gemma.head_dim,
        "hidden_activation": "gelu_pytorch_tanh",
        "vocab_size": 257152,
    }
    seeing = {
        "model_type": "siglip_vision_model",
        "hidden_size": 1152,
        "intermediate_size": 4304,
        "num_hidden_layers": 27,
        "num_attention_heads": 16,
        "image_size": 224,
        "patch_size": 14,
        "vision_use_head": False,
    }
    AutoConfig.for_model(
        "paligemma", text_config=words, vision_config=seeing, projection_dim=gemma.width
    ).save_pretrained(backbone)
    released = {"paligemma_variant": "gemma_2b", "action_expert_variant": "gemma_300m"}
    released |= {"max_state_dim": 32, "max_action_dim": 32, "image_resolution": [224, 224]}
    (kept / "config.json").write_text(json.dumps(settings(**released)))
    sizes = VlaConfig(
        backbone=BackboneConfig(folder=""),
        checkpoint="pi0_base",
        image_fields=("camera",),
        anchor_field=None,
        expert_width=0.5,
        self_attention_every=1,
    )
    with torch.device("meta"):
        shapes = Shapes({"s": (0, 8)}, 7, None, {"camera": (480, 640, 3)})
        return VlaPolicy(replace(sizes, observation_fields=("s",)), shapes, folder)


def test_at_the_published_sizes_every_weight_has_pi0s_name_and_shape(tmp_path: Path):
    module = published_sizes(tmp_path)
    assert module.checkpoint is not None
    named = {
        module.checkpoint.weight_name(name): tuple(part.shape)
        for name, part in module.named_parameters()
    }
    assert len(named) == len(list(module.named_parameters()))
    own = {name: shape for name, shape in named.items() if VLM not in name}
    assert own == pi0_shapes()
    assert len(own) == 1 + 5 * 2 + 18 * 9
    text, vision = f"{VLM}model.language_model.", f"{VLM}model.vision_tower."
    assert named[f"{text}embed_tokens.weight"] == (257152, 2048)
    assert named[f"{text}layers.17.self_attn.k_proj.weight"] == (256, 2048)
    assert named[f"{text}layers.17.mlp.gate_proj.weight"] == (16384, 2048)
    assert named[f"{vision}embeddings.patch_embedding.weight"] == (1152, 3, 14, 14)
    assert named[f"{VLM}model.multi_modal_projector.linear.weight"] == (2048, 1152)
    # Gemma's 300 M, without an embedding of words, and the projections.
    expert = sum(part.numel() for name, part in module.named_parameters() if "expert." in name)
    assert round(expert / 1e6) == 315
