"""On-policy distillation of students that see: every picture is encoded once, the encoders stay."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from policies.card import PolicyCard, Shapes
from policies.checkpoint import read_weights, save_policy
from policies.data.visited_states import FILE, load_visited_states
from policies.distillation.config import OnPolicyDistilConfig
from policies.distillation.on_policy import on_policy_distil
from policies.distillation.teachers import Teachers
from policies.families.diffusion import DiffusionPolicy
from policies.families.vla import VlaPolicy
from policies.load import load_module, new_module
from policies.networks.config import BackboneConfig, MlpConfig, ResnetEncoderConfig, ScratchConfig
from policies.policy import ChunkPolicy, ObservationTensors
from policies.policy_config import DiffusionPolicyConfig, VlaConfig
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.policies.kill import run_until_killed
from tests.policies.rl.counting import CAMERA, SeeingCounting

CONFIG = OnPolicyDistilConfig(
    rollouts=2, decisions=3, batch_size=5, save_every=1, learning_rate=1e-3
)
ENVS = partial(SeeingCounting, 3)


def seeing(seed: int, features: int = 6) -> DiffusionPolicy:
    torch.manual_seed(seed)
    config = DiffusionPolicyConfig(
        anchor_field=None,
        observation_fields=("step", "seed"),
        image_fields=("camera",),
        image_encoder=ResnetEncoderConfig(channels=(16,), keypoints=4, features=features),
        horizon=2,
        n_action_steps=2,
        train_timesteps=10,
        inference_steps=2,
        network=MlpConfig(width=16, blocks=1),
    )
    shapes = Shapes({"step": (0, 1), "seed": (1, 2)}, 1, None, {"camera": CAMERA.shape})
    return DiffusionPolicy(config, shapes).eval()


def speaking(seed: int) -> VlaPolicy:
    torch.manual_seed(seed)
    config = VlaConfig(
        backbone=BackboneConfig(
            scratch=ScratchConfig(width=16, layers=1, heads=2, feedforward=24, vision_layers=1)
        ),
        train_backbone="all",
        observation_fields=("step",),
        image_fields=("camera",),
        instruction="count",
        anchor_field=None,
        horizon=2,
        n_action_steps=2,
        inference_steps=2,
    )
    shapes = Shapes({"step": (0, 1)}, 1, None, {"camera": CAMERA.shape})
    policy = new_module(config, shapes)
    assert isinstance(policy, VlaPolicy)
    return policy.eval()


def card_of(module: ChunkPolicy) -> PolicyCard:
    one = FieldSpec(shape=(1,))
    return PolicyCard(
        task="counting",
        rate_hz=10.0,
        observation=dict.fromkeys(module.shapes.entries, one),
        sensors={"camera": CAMERA},
        action=one,
        model=module.config,
    )


def saved(folder: Path, module: ChunkPolicy) -> Path:
    folder.mkdir()
    save_policy(folder, card_of(module), module.state_dict(), module.extra_files())
    return folder


@pytest.mark.parametrize("features", [6, 9], ids=["alike", "other encoder"])
def test_the_denoiser_learns_and_the_encoder_stays(features: int, tmp_path: Path) -> None:
    student, teacher = (
        saved(tmp_path / "student", seeing(0)),
        saved(tmp_path / "teacher", seeing(1, features)),
    )
    out = tmp_path / "out"
    out.mkdir()
    metrics = on_policy_distil(CONFIG, student, teacher, ENVS, out, no_progress)
    assert metrics["rollouts"] == 2
    before, after = read_weights(student), read_weights(out)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("denoiser.") for name in moved)
    assert not any(name.startswith(("encoder.", "normalize")) for name in moved)
    visited = load_visited_states(out, load_module(out)[0].encoded_shape)
    assert visited is not None


def test_a_killed_distillation_goes_on_with_its_encoded_states(tmp_path: Path) -> None:
    student, teacher = saved(tmp_path / "student", seeing(0)), saved(tmp_path / "t", seeing(1, 9))
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    arguments = CONFIG, student, teacher, ENVS
    on_policy_distil(*arguments, whole, no_progress)
    run_until_killed(1, on_policy_distil, *arguments, parts)
    on_policy_distil(*arguments, parts, no_progress)
    weights, others = read_weights(whole), read_weights(parts)
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.parametrize(
    "seeds", [(0, 1), (1, 0), (2, 3, 0)], ids=["same, other", "other, same", "three"]
)
def test_every_teacher_decides_as_on_the_pictures_themselves(
    seeds: Sequence[int], tmp_path: Path
) -> None:
    student = seeing(0)
    modules = [seeing(seed, 6 if seed == 0 else 5 + seed) for seed in seeds]
    for number, module in enumerate(modules):
        nn.init.constant_(module.normalize_observation.centre, 0.1 * number)
    folders = [saved(tmp_path / str(number), module) for number, module in enumerate(modules)]
    teachers = Teachers(folders, student, card_of(student), CONFIG)
    generator = torch.Generator().manual_seed(0)
    vector_BTO = torch.randn(4, 1, 2, generator=generator)
    camera = torch.randint(0, 255, (4, 1, *CAMERA.shape), generator=generator).byte()
    normalised = student.normalize_observation(vector_BTO)
    encoded = teachers.encode(ObservationTensors(normalised, {"camera": camera}))
    assert encoded is not None
    own = student.encode(ObservationTensors(normalised, {"camera": camera}))
    torch.testing.assert_close(teachers.student_part(encoded), own)
    assigned = teachers.assign(ObservationTensors(encoded))
    assert len(assigned) == len(seeds)
    for module, (_, _, inputs, _) in zip(modules, assigned, strict=True):
        expected = module.encode(
            ObservationTensors(module.normalize_observation(vector_BTO), {"camera": camera})
        )
        torch.testing.assert_close(inputs.vector_BTO, expected)


def test_a_vision_language_student_sees_the_pictures_themselves(tmp_path: Path) -> None:
    student, teacher = (saved(tmp_path / str(seed), speaking(seed)) for seed in (0, 1))
    out = tmp_path / "out"
    out.mkdir()
    on_policy_distil(CONFIG, student, teacher, ENVS, out, no_progress)
    before, after = read_weights(student), read_weights(out)
    assert any("vision" in name and not torch.equal(before[name], after[name]) for name in before)
    states = load_file(out / FILE)
    assert states["camera"].shape[-3:] == CAMERA.shape
