"""A `vla` that starts from a SmolVLA checkpoint; `test_smolvla_itself` compares it with LeRobot."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from policies.families.smolvla import smolvla_name
from policies.families.vla import VlaPolicy
from policies.families.vla_checkpoint import padded_noise
from policies.networks.config import BackboneConfig
from policies.rl.finetuning.vla import check_language_conditioned
from robots.errors import HandoffError
from tests.policies.families.checkpoint_training import SMALL, trained_from
from tests.policies.families.smolvla_fixture import TINY, settings, smolvla_shapes, write_checkpoint
from tests.policies.families.test_vla import batch, noise, obs, policy
from tests.policies.vlm_fixture import write_backbone

WEIGHTS = "model.safetensors"


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_backbone(tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def checkpoint(backbone: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("checkpoint"), backbone)


def started(backbone: Path, checkpoint: Path, **options: Any) -> VlaPolicy:
    return policy(backbone, checkpoint=str(checkpoint), **options).eval()


@pytest.mark.parametrize("trained", ["none", "lora", "all"])
def test_every_weight_is_that_of_the_checkpoint(backbone: Path, checkpoint: Path, trained: str):
    found = load_file(checkpoint / WEIGHTS)
    module = started(backbone, checkpoint, train_backbone=trained)
    own = {name: part for name, part in module.named_parameters() if ".lora_" not in name}
    assert all(torch.equal(part, found[smolvla_name(name)]) for name, part in own.items())
    assert smolvla_shapes(TINY).keys() <= {smolvla_name(name) for name in own}


def test_the_backbones_own_weights_are_not_read(backbone: Path, checkpoint: Path, tmp_path: Path):
    bare = shutil.copytree(backbone, tmp_path / "bare", ignore=shutil.ignore_patterns(WEIGHTS))
    expected = started(backbone, checkpoint).sample(obs(2), noise(2))
    assert torch.equal(started(bare, checkpoint).sample(obs(2), noise(2)), expected)


def test_half_precision_weights_are_read_as_float32(
    backbone: Path, checkpoint: Path, tmp_path: Path
):
    half = {name: part.bfloat16() for name, part in load_file(checkpoint / WEIGHTS).items()}
    shutil.copy(checkpoint / "config.json", tmp_path)
    save_file(half, tmp_path / WEIGHTS)
    module = started(backbone, tmp_path)
    assert {part.dtype for part in module.parameters()} == {torch.float32}
    assert torch.equal(module.expert.norm.weight, half[smolvla_name("expert.norm.weight")].float())


def test_an_action_sees_earlier_actions_only(backbone: Path, checkpoint: Path):
    changes = []
    for module in (started(backbone, checkpoint), policy(backbone).eval()):
        denoise, time = module.denoise(module.expert_context(obs(1))), torch.tensor([0.5])
        noisy = torch.randn(1, 4, module.expert.out.out_features)
        other = noisy.clone()
        other[:, 2] += 1.0
        with torch.no_grad():
            changes.append((denoise(noisy, time) - denoise(other, time)).abs().amax(dim=(0, 2)))
    assert (changes[0] > 1e-4).tolist() == [False, False, True, True]
    assert (changes[1] > 1e-4).all()


def test_image_and_text_embeddings_are_scaled_and_the_state_is_not(
    backbone: Path, checkpoint: Path
):
    module, plain = started(backbone, checkpoint), policy(backbone).eval()
    with torch.no_grad():
        scaled, plain_prefix = module.prefix(obs(1)), plain.prefix(obs(1))
        state = torch.nn.functional.pad(obs(1).vector_BTO[:, 0], (0, TINY.state - 3))
        expected = module.backbone.state_projections[0](state)
    seen = plain_prefix.embedding_BLW[:, :-1] * 32**0.5
    assert torch.allclose(scaled.embedding_BLW[:, :-1], seen, rtol=1e-5)
    assert torch.allclose(scaled.embedding_BLW[:, -1], expected)


def test_the_rotary_base_is_ten_thousand(tmp_path: Path):
    folder = write_backbone(
        tmp_path / "backbone", rope_parameters={"rope_type": "default", "rope_theta": 1e5}
    )
    module = started(folder, write_checkpoint(tmp_path / "checkpoint", folder))
    cosine, _ = module.backbone.rotary(torch.tensor([[1]]))
    assert torch.allclose(cosine[0, 0, :4], (10_000.0 ** -(torch.arange(4) / 4.0)).cos())


def test_the_loss_is_that_of_the_robots_entries_with_actions_of_deviation_one(
    backbone: Path, checkpoint: Path
):
    module, rows = started(backbone, checkpoint), batch(2)
    torch.nn.init.zeros_(module.expert.out.weight)
    torch.nn.init.zeros_(module.expert.out.bias)
    draw = np.random.default_rng(3)
    draw.random(2, dtype=np.float32)
    drawn = torch.from_numpy(draw.standard_normal((2, 4, TINY.action), dtype=np.float32))
    expected = (drawn[..., :2] - 2.0 * rows.chunk_BHA).square().mean()
    loss = module.loss(rows, np.random.default_rng(3))
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)


def test_the_noise_of_other_entries_is_the_chunks_moved_by_an_action():
    own = torch.arange(6.0).reshape(1, 3, 2)
    assert padded_noise(own, 5).tolist() == [
        [[0, 1, 2, 3, 4], [2, 3, 4, 5, 0], [4, 5, 0, 1, 2]],
    ]
    assert torch.equal(padded_noise(own, 2), own)


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
    assert "expert.embed.weight" in changed
    assert "backbone.state_projections.0.weight" in changed


def damaged(checkpoint: Path, folder: Path, change: Any) -> Path:
    weights = load_file(checkpoint / WEIGHTS)
    change(weights)
    shutil.copy(checkpoint / "config.json", folder)
    save_file(weights, folder / WEIGHTS)
    return folder


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda weights: weights.pop("model.action_in_proj.bias"),
            r"1 missing: model\.action_in_proj\.bias",
        ),
        (
            lambda weights: weights.update({"model.more": torch.zeros(1)}),
            r"1 unexpected: model\.more",
        ),
        (
            lambda weights: weights.update({"model.state_proj.weight": torch.zeros(32, 7)}),
            r"1 of another shape: model\.state_proj\.weight \(32, 7\) in place of \(32, 6\)",
        ),
    ],
)
def test_weights_that_do_not_fit_are_refused(
    backbone: Path, checkpoint: Path, tmp_path: Path, change: Any, said: str
):
    with pytest.raises(HandoffError, match=said):
        started(backbone, damaged(checkpoint, tmp_path, change))


def test_a_file_that_is_cut_short_is_refused(backbone: Path, checkpoint: Path, tmp_path: Path):
    shutil.copytree(checkpoint, tmp_path, dirs_exist_ok=True)
    (tmp_path / WEIGHTS).write_bytes((checkpoint / WEIGHTS).read_bytes()[:-9])
    with pytest.raises(HandoffError, match="cannot be read"):
        started(backbone, tmp_path)
    (tmp_path / WEIGHTS).unlink()
    with pytest.raises(HandoffError, match="cannot be read"):
        started(backbone, tmp_path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"state_noise": 0.1}, "state_noise is a setting that is not known"),
        ({"attention_mode": "self_attn"}, "attention_mode is 'self_attn', expected 'cross_attn'"),
        ({"add_image_special_tokens": True}, "add_image_special_tokens is True, expected False"),
        ({"adapt_to_pi_aloha": True}, "adapt_to_pi_aloha is True, expected False"),
        ({"n_obs_steps": 2}, "n_obs_steps is 2, expected 1"),
        ({"max_state_dim": "6"}, "max_state_dim is '6', expected a number"),
        ({"type": "act"}, "type is 'act', expected 'smolvla' or 'pi0'"),
        ({"num_expert_layers": 1}, "expert_layers is 2, expected 1"),
        ({"num_vlm_layers": 1}, r"backbone\.layers is 2, expected 1"),
        ({"resize_imgs_with_padding": [64, 32]}, r"image_size is \[32, 32\], expected \[64, 32\]"),
        ({"resize_imgs_with_padding": None}, "resize_imgs_with_padding is None, expected a list"),
        ({"expert_width_multiplier": 0.5}, r"expert_width is 0\.75, expected 0\.5"),
        ({"self_attn_every_n_layers": -1}, "self_attention_every is 2, expected -1"),
        ({"max_state_dim": 2}, "3 entries of state"),
        ({"max_action_dim": 1}, "2 of an action"),
    ],
)
def test_settings_that_are_not_those_of_the_policy_are_refused(
    backbone: Path, checkpoint: Path, tmp_path: Path, changes: dict[str, Any], said: str
):
    shutil.copy(checkpoint / WEIGHTS, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(settings(**changes)))
    with pytest.raises(HandoffError, match=said):
        started(backbone, tmp_path)


def test_a_setting_that_is_missing_is_named(backbone: Path, tmp_path: Path):
    left = {name: value for name, value in settings().items() if name != "num_vlm_layers"}
    (tmp_path / "config.json").write_text(json.dumps(left))
    with pytest.raises(HandoffError, match="num_vlm_layers is missing"):
        started(backbone, tmp_path)
    with pytest.raises(
        HandoffError,
        match=r"no config\.json, expected the folder of a checkpoint of smolvla or pi0",
    ):
        started(backbone, tmp_path / "none")


def test_a_backbone_that_was_not_smolvlas_is_refused(checkpoint: Path, tmp_path: Path):
    folder = write_backbone(tmp_path, rms_norm_eps=1e-6)
    with pytest.raises(HandoffError, match=r"text layers is \('llama', 1e-06"):
        started(folder, checkpoint)


def test_a_policy_without_cameras_or_backbone_is_refused(backbone: Path, checkpoint: Path):
    with pytest.raises(HandoffError, match="0 cameras"):
        policy(backbone, cameras=0, checkpoint=str(checkpoint))
    with pytest.raises(HandoffError, match=r"backbone\.folder None"):
        policy(backbone, checkpoint=str(checkpoint), backbone=BackboneConfig())
    with pytest.raises(HandoffError, match="state_tokens 'field'"):
        started(backbone, checkpoint, state_tokens="field")


def test_the_checkpoint_takes_part_in_the_cache_key_and_excludes_training_its_flow(
    backbone: Path, checkpoint: Path
):
    module = started(backbone, checkpoint)
    config = module.config
    assert config.external_folders == {"backbone": str(backbone), "checkpoint": str(checkpoint)}
    assert config.finetuning_methods == ("dsrl", "rl_token")
    assert replace(config, checkpoint=None).finetuning_methods == (
        "vla",
        "fpo",
        "dsrl",
        "rl_token",
    )
    with pytest.raises(HandoffError, match="padded actions, which neither"):
        module.velocity(obs(1))
    with pytest.raises(HandoffError, match="the policy started from a checkpoint"):
        check_language_conditioned(module)
    # DSRL chooses the noise of the robot's entries, of which the sampler makes the others'.
    observed = obs(1)
    sampler = module.encoded_sampler(observed)
    noise = torch.randn(1, *module.chunk_shape)
    with torch.no_grad():
        assert sampler.features().shape == (1, 3 + module.expert.width)
        # The tokens of an actor beside it are the hidden states of all actions.
        vector, token, mask = sampler.tokens()
        assert (vector.shape, token.shape[:2]) == ((1, 3), (1, module.chunk_shape[0]))
        assert mask.all()
        torch.testing.assert_close(sampler.chunk(noise), module.sample(observed, noise))


def test_it_trains_moves_and_exports(backbone: Path, checkpoint: Path, tmp_path: Path):
    folder, module, parity = trained_from(SMALL, backbone, checkpoint, tmp_path)
    assert {path.name for path in (folder / "smolvla").iterdir()} == {"config.json"}
    assert parity <= 1e-4
    trained = module.state_dict()["expert.embed.weight"]
    start = load_file(checkpoint / WEIGHTS)[smolvla_name("expert.embed.weight")]
    assert 0.0 < (trained - start).abs().max() < 0.1
