"""One-step students of policies that see: the encoder is the teacher's, and pictures are encoded
once."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.checkpoint import read_card, read_weights
from policies.data.encoded_steps import encoded_steps
from policies.data.visited_states import (
    FILE,
    MAX_BYTES,
    MAX_STATES,
    most_states,
    save_visited_states,
)
from policies.distillation.config import DistilConfig, ShortcutConfig
from policies.distillation.one_step import distil
from policies.families.diffusion import DiffusionPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy
from policies.networks.config import PointEncoderConfig, ResnetEncoderConfig
from policies.training.config import TrainingConfig
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from robots.spec import FieldSpec
from tests.policies.conftest import TINY
from tests.policies.distillation.test_one_step import windows_of
from tests.policies.kill import run_until_killed

EDGE = 32
SEEING = replace(
    TINY,
    objective="flow",
    observation_fields=("agent",),
    image_fields=("camera",),
    point_fields=("cloud",),
    image_encoder=ResnetEncoderConfig(channels=(16, 16), keypoints=4, features=8),
    point_encoder=PointEncoderConfig(widths=(8,), features=4),
)
TRAINING = TrainingConfig(
    steps=60, learning_rate=1e-3, batch_size=16, warmup_steps=5, log_every=20, precision="fp32",
    device="cpu",
)  # fmt: skip
ALGORITHMS = {
    "one_step": DistilConfig(training=TRAINING, targets=640, teacher_batch=64),
    "shortcut": ShortcutConfig(training=TRAINING, halvings=1),
}


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Reaches to a goal that the picture shows by its brightness."""
    folder = tmp_path_factory.mktemp("demos")
    point = FieldSpec(shape=(2,), unit="m")
    fields = {
        "agent": point,
        "action": point,
        "camera": FieldSpec(shape=(EDGE, EDGE, 3), dtype="uint8", unit="u8"),
        "cloud": FieldSpec(shape=(6, 3), unit="m"),
    }
    schema = EpisodeSchema(
        name="square", streams={"policy": StreamSpec(rate_hz=10.0, fields=fields)}
    )
    draw = np.random.default_rng(0)
    with EpisodeStore.create(folder / "store.zarr", schema) as store, store.writer() as writer:
        for _ in range(8):
            goal = draw.uniform(0.0, 1.0, 2)
            action = goal * np.linspace(0.1, 1.0, 12)[:, None]
            picture = draw.integers(0, 100, (12, EDGE, EDGE, 3)) + (150 * goal[0]).astype(int)
            values = {
                "agent": np.concatenate([np.zeros((1, 2)), action[:-1]]),
                "action": action,
                "camera": picture.astype(np.uint8),
                "cloud": draw.uniform(-0.2, 0.2, (12, 6, 3)),
            }
            writer.append({"policy": values}, {})
    return folder


@pytest.fixture(scope="module")
def teacher(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher")
    config = PretrainConfig(policy=SEEING, training=replace(TRAINING, steps=150))
    pretrain(config, demos, out, no_progress)
    return out


def inputs(rows: int = 60) -> tuple[PolicyInput, np.ndarray]:
    draw = np.random.default_rng(5)
    sensors = {
        "camera": draw.integers(0, 255, (rows, 2, EDGE, EDGE, 3), dtype=np.uint8),
        "cloud": draw.uniform(-0.2, 0.2, (rows, 2, 6, 3)).astype(np.float32),
    }
    vector = draw.uniform(0.0, 1.0, (rows, 2, 2)).astype(np.float32)
    return PolicyInput(vector, sensors), draw.standard_normal((rows, 4, 2), dtype=np.float32)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_the_student_comes_closer_to_the_teacher_than_the_teacher_in_one_step(
    algorithm: str, teacher: Path, demos: Path, tmp_path: Path
) -> None:
    distil(ALGORITHMS[algorithm], teacher, demos, tmp_path, no_progress)
    observed, noise = inputs()
    wanted = load_policy(teacher)(observed, noise)
    student = load_policy(tmp_path)(observed, noise)
    control = load_policy(teacher, 1)(observed, noise)
    assert np.square(student - wanted).mean() < 0.8 * np.square(control - wanted).mean()
    assert read_card(tmp_path).model.sampler_steps == 1
    # It still looks at the pictures, by the teacher's encoder.
    dark = PolicyInput(
        observed.vector, {**observed.sensors, "camera": 0 * observed.sensors["camera"]}
    )
    assert np.abs(load_policy(tmp_path)(dark, noise) - student).max() > 1e-4
    mine, theirs = read_weights(tmp_path), read_weights(teacher)
    encoder = [name for name in theirs if name.startswith("encoder.")]
    assert encoder
    assert all(torch.equal(mine[name], theirs[name]) for name in encoder)


def test_encoded_steps_are_what_the_policy_is_conditioned_on(teacher: Path, demos: Path) -> None:
    module, card = load_module(teacher)
    assert isinstance(module, DiffusionPolicy)
    windows = windows_of(demos, card, module)
    reports: list[tuple[int, int]] = []

    def report(done: int, total: int, note: str = "") -> None:
        reports.append((done, total))

    encoded_MO = encoded_steps(module, windows.observation_MO, windows.sensors, report)
    chosen = torch.tensor([0, 3, 17, len(windows) - 1])
    expected = module.encoder(windows.observations(chosen))
    torch.testing.assert_close(encoded_MO[windows.observation_NT[chosen]], expected)
    assert reports[-1] == (96, 96)


@pytest.mark.parametrize("call", [1, 12, 40])
def test_a_killed_distillation_ends_with_the_very_weights_it_would_have_had(
    call: int, teacher: Path, demos: Path, tmp_path: Path
) -> None:
    config = ALGORITHMS["one_step"]
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    for folder in (whole, parts):
        folder.mkdir()
    distil(config, teacher, demos, whole, no_progress)
    run_until_killed(call, distil, config, teacher, demos, parts)
    distil(config, teacher, demos, parts, no_progress)
    weights, others = read_weights(whole), read_weights(parts)
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_the_teachers_visited_states_are_used_as_they_were_encoded(
    teacher: Path, demos: Path, tmp_path: Path
) -> None:
    module, _ = load_module(teacher)
    visited = tmp_path / "practised"
    shutil.copytree(teacher, visited)
    save_visited_states(visited, torch.zeros(30, *module.encoded_shape))
    out = tmp_path / "student"
    out.mkdir()
    assert distil(ALGORITHMS["one_step"], visited, demos, out, no_progress)["practised"] == 30
    save_visited_states(visited, torch.zeros(30, *module.observation_shape))
    with pytest.raises(HandoffError, match=r"states of shape \(2, 2\), expected \(2, 14\)"):
        distil(ALGORITHMS["one_step"], visited, demos, out, no_progress)


def test_states_with_pictures_are_kept_within_a_bound(tmp_path: Path) -> None:
    assert most_states(torch.zeros(5, 2, 20)) == MAX_STATES
    pictures = {"vector": torch.zeros(4, 1, 2), "camera": torch.zeros(4, 480, 640, 3).byte()}
    kept = most_states(pictures)
    assert 100 < kept < MAX_BYTES // (480 * 640 * 3) + 1
    small = {"vector": torch.zeros(4, 1, 2), "camera": torch.zeros(4, 8, 8, 3).byte()}
    shutil.rmtree(tmp_path)
    tmp_path.mkdir()
    save_visited_states(tmp_path, small)
    assert (tmp_path / FILE).stat().st_size < 10_000
