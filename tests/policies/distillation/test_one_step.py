import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from policies.card import PolicyCard
from policies.checkpoint import read_weights
from policies.data.demonstrations import read_demonstrations
from policies.data.visited_states import FILE, save_visited_states
from policies.data.windows import Windows
from policies.distillation.config import DistilConfig, ShortcutConfig
from policies.distillation.one_step import distil
from policies.distillation.regression import make_targets, one_step_student, same_noise_objective
from policies.export.onnx import decided_rows
from policies.families.diffusion import DiffusionPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.objective import normalized_windows
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy
from policies.policy import ObservationTensors
from policies.training.config import TrainingConfig
from robots.errors import HandoffError
from robots.interfaces import PolicyInput, no_progress
from tests.policies.conftest import TINY
from tests.policies.kill import run_until_killed

TRAINING = TrainingConfig(
    steps=60,
    learning_rate=3e-3,
    batch_size=16,
    warmup_steps=5,
    log_every=10,
    checkpoint_seconds=0.0,
    precision="fp32",
)
CONFIG = DistilConfig(training=TRAINING, targets=320, teacher_batch=32)


@pytest.fixture(scope="module")
def teacher(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A briefly trained policy."""
    out = tmp_path_factory.mktemp("teacher")
    config = PretrainConfig(policy=TINY, training=replace(TRAINING, steps=200, learning_rate=1e-2))
    pretrain(config, demos, out, no_progress)
    return out


@pytest.fixture(scope="module")
def student(teacher: Path, demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its student, trained without interruption."""
    out = tmp_path_factory.mktemp("student")
    distil(CONFIG, teacher, demos, out, no_progress)
    return out


def load_teacher(path: Path, steps: int | None = None) -> tuple[DiffusionPolicy, PolicyCard]:
    expert, card = load_module(path, steps)
    assert isinstance(expert, DiffusionPolicy)
    return expert, card


def windows_of(demos: Path, card: PolicyCard, expert: DiffusionPolicy) -> Windows:
    data = read_demonstrations(demos, card.model)
    return normalized_windows(data, expert, card.model, np.arange(len(data.ends_E)))


def test_a_target_is_what_the_teacher_answers_to_the_same_noise(
    teacher: Path, demos: Path, tmp_path: Path
):
    expert, card = load_teacher(teacher)
    windows = windows_of(demos, card, expert)
    targets = make_targets(CONFIG, expert, windows, "fp32", "job", tmp_path, no_progress)
    pair = len(windows) + 3
    answer = expert.sample(
        windows.observations(torch.tensor([3])), targets.noise_PHA[pair : pair + 1]
    )
    assert torch.allclose(answer[0], targets.chunk_PHA[pair], atol=1e-5)


def test_the_loss_is_zero_exactly_when_the_student_answers_as_the_teacher(
    teacher: Path, demos: Path, tmp_path: Path
):
    expert, card = load_teacher(teacher, steps=1)
    windows = windows_of(demos, card, expert)
    own = make_targets(CONFIG, expert, windows, "fp32", "job", tmp_path, no_progress)
    within = own.chunk_PHA.abs().amax((1, 2)) < TINY.clip
    assert within.any()
    loss = same_noise_objective(one_step_student(expert), windows, own, 320, 0, "fp32")
    shifted = same_noise_objective(
        one_step_student(expert),
        windows,
        own._replace(chunk_PHA=own.chunk_PHA + 0.1),
        320,
        0,
        "fp32",
    )
    assert loss(0).item() < 0.02
    assert shifted(0).item() > 0.5 * 0.1**2


def test_the_student_comes_closer_to_the_teacher_than_the_teacher_in_one_step(
    teacher: Path, student: Path
):
    rng = np.random.default_rng(1)
    observation = np.repeat(rng.uniform(0.1, 0.4, (200, 1, 4)), 2, axis=1).astype(np.float32)
    noise = rng.standard_normal((200, 4, 2), dtype=np.float32)
    policies = load_policy(student), load_policy(teacher, 1)
    wanted = load_policy(teacher)(observation, noise)
    own, control = (np.square(policy(observation, noise) - wanted).mean() for policy in policies)
    assert own < 0.8 * control


def test_the_student_samples_in_one_step(student: Path):
    assert load_teacher(student)[0].config.inference_steps == 1


@pytest.mark.parametrize("call", [7, 10 + 37])
def test_a_killed_distillation_ends_with_the_very_weights_it_would_have_had(
    call: int, student: Path, teacher: Path, demos: Path, tmp_path: Path
):
    run_until_killed(call, distil, CONFIG, teacher, demos, tmp_path)
    calls = []
    distil(CONFIG, teacher, demos, tmp_path, lambda done, total, note="": calls.append(done))
    assert len(calls) < 70
    weights, others = read_weights(student), read_weights(tmp_path)
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_a_student_matches_its_teacher_at_the_teachers_visited_states(
    teacher: Path, demos: Path, tmp_path: Path
):
    """Far from the demonstrations, where a student of them alone knows nothing."""
    rng = np.random.default_rng(2)
    obs = rng.uniform(-4.0, -2.0, (300, 2, 4)).astype(np.float32)
    visited = tmp_path / "practised"
    shutil.copytree(teacher, visited)
    save_visited_states(visited, torch.from_numpy(obs[:200]))
    config = replace(CONFIG, training=replace(TRAINING, steps=300), targets=3200)
    noise = rng.standard_normal((100, 4, 2), dtype=np.float32)
    expert, _ = load_teacher(teacher)
    there = torch.from_numpy(obs[200:])
    wanted = expert.sample(ObservationTensors(there), torch.from_numpy(noise))
    errors = []
    for folder, num_visited in ((visited, 200), (teacher, 0)):
        out = tmp_path / f"student-{num_visited}"
        out.mkdir()
        assert distil(config, folder, demos, out, no_progress)["practised"] == num_visited
        own = load_teacher(out)[0].sample(ObservationTensors(there), torch.from_numpy(noise))
        errors.append(float((own - wanted).square().mean()))
    assert errors[0] < 0.75 * errors[1]


def test_states_of_another_policy_are_refused(teacher: Path, demos: Path, tmp_path: Path):
    visited = tmp_path / "practised"
    shutil.copytree(teacher, visited)
    save_visited_states(visited, torch.zeros(10, 2, 7))
    with pytest.raises(HandoffError, match=r"states of shape \(2, 7\), expected \(2, 4\)"):
        distil(CONFIG, visited, demos, tmp_path, no_progress)
    (visited / FILE).write_bytes(b"cut")
    with pytest.raises(HandoffError, match="damaged"):
        distil(CONFIG, visited, demos, tmp_path, no_progress)


def test_only_the_student_and_its_curve_are_left(student: Path):
    assert {path.name for path in student.iterdir()} == {
        "config.json",
        "policy.safetensors",
        "loss.jsonl",
        "loss.png",
    }


def test_the_teacher_is_left_as_it_was(teacher: Path, demos: Path, tmp_path: Path):
    before = (teacher / "policy.safetensors").read_bytes()
    distil(
        replace(CONFIG, training=replace(TRAINING, steps=10)), teacher, demos, tmp_path, no_progress
    )
    assert (teacher / "policy.safetensors").read_bytes() == before


def test_a_missing_teacher_is_named(demos: Path, tmp_path: Path):
    with pytest.raises(HandoffError, match="no policy is here"):
        distil(CONFIG, tmp_path / "nowhere", demos, tmp_path, no_progress)


def test_a_student_goes_on_from_decided_actions_as_its_teacher_does(demos: Path, tmp_path: Path):
    prefixed = replace(TINY, horizon=6, prefix=3)
    pretraining = replace(TRAINING, steps=300, learning_rate=1e-2)
    pretrain(PretrainConfig(policy=prefixed, training=pretraining), demos, tmp_path, no_progress)
    taught = tmp_path / "student"
    taught.mkdir()
    config = replace(CONFIG, training=replace(TRAINING, steps=200), targets=960)
    distil(config, tmp_path, demos, taught, no_progress)
    teacher, student, control = (
        load_policy(tmp_path),
        load_policy(taught),
        load_policy(tmp_path, 1),
    )
    rng = np.random.default_rng(1)
    observation = np.repeat(rng.uniform(0.1, 0.4, (200, 1, 4)), 2, axis=1).astype(np.float32)
    noise, other = (rng.standard_normal((200, 6, 2), dtype=np.float32) for _ in range(2))
    prefix = decided_rows(teacher(observation, other)[:, 1:4])
    given = PolicyInput(observation, prefix=prefix)
    wanted, open_places = teacher(given, noise), np.s_[:, 4:]
    own, one_step = (
        np.square(policy(given, noise) - wanted)[open_places].mean()
        for policy in (student, control)
    )
    assert own < 0.8 * one_step
    # What the prefix changes, it changes alike.
    changes = [(policy(given, noise) - policy(observation, noise)) for policy in (teacher, student)]
    decided = prefix[..., -1].sum(axis=1) > 0
    changed = [change[decided][open_places].ravel() for change in changes]
    assert np.corrcoef(changed)[0, 1] > 0.5


def test_decided_actions_have_no_shortcut(demos: Path, tmp_path: Path):
    prefixed = replace(TINY, objective="flow", horizon=6, prefix=3)
    short = replace(TRAINING, steps=5)
    pretrain(PretrainConfig(policy=prefixed, training=short), demos, tmp_path, no_progress)
    with pytest.raises(HandoffError, match="cannot be distilled with the algorithm 'shortcut'"):
        distil(ShortcutConfig(), tmp_path, demos, tmp_path / "out", no_progress)
