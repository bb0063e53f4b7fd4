"""Self-distillation of a flow to one step."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from policies.checkpoint import read_weights
from policies.data.demonstrations import read_demonstrations
from policies.data.visited_states import save_visited_states
from policies.distillation.config import DistilConfig, ShortcutConfig
from policies.distillation.one_step import distil
from policies.distillation.shortcut import (
    SamplerSteps,
    draw_steps,
    shortcut_objective,
    shortcut_student,
    two_half_steps,
)
from policies.families.diffusion import DiffusionPolicy
from policies.imitation.config import PretrainConfig
from policies.imitation.objective import normalized_windows
from policies.imitation.pretrain import pretrain
from policies.load import load_module, load_policy
from policies.networks.config import MlpConfig, NetworkConfig, TransformerConfig, UnetConfig
from policies.policy import ObservationTensors
from robots.errors import HandoffError
from robots.interfaces import no_progress
from tests.policies.conftest import TINY
from tests.policies.distillation.test_one_step import TRAINING
from tests.policies.kill import run_until_killed

FLOW = replace(TINY, objective="flow", inference_steps=10, network=MlpConfig(width=32, blocks=2))
CONFIG = ShortcutConfig(training=replace(TRAINING, batch_size=64), halvings=3)
TIMESTEPS = 100
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def teacher(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A briefly trained flow policy."""
    out = tmp_path_factory.mktemp("teacher")
    training = replace(TRAINING, steps=400, learning_rate=1e-2, batch_size=64)
    pretrain(PretrainConfig(policy=FLOW, training=training), demos, out, no_progress)
    return out


@pytest.fixture(scope="module")
def student(teacher: Path, demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its student, trained without interruption."""
    out = tmp_path_factory.mktemp("student")
    distil(CONFIG, teacher, demos, out, no_progress)
    return out


def flow_policy(path: Path) -> DiffusionPolicy:
    module, _ = load_module(path)
    assert isinstance(module, DiffusionPolicy)
    return module


def inputs(rows: int = 200) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    observation = np.repeat(rng.uniform(0.1, 0.4, (rows, 1, 4)), 2, axis=1).astype(np.float32)
    return observation, rng.standard_normal((rows, 4, 2), dtype=np.float32)


def steps_from(draws: int = 500, halvings: int = 3) -> SamplerSteps:
    config = replace(CONFIG, halvings=halvings, whole_share=0.4)
    return draw_steps(config, np.random.default_rng(0), draws, TIMESTEPS, CPU)


@pytest.mark.parametrize(
    "network",
    [
        MlpConfig(width=16, blocks=1, time_embedding=8),
        UnetConfig(widths=(8, 16), groups=4, time_embedding=8),
        TransformerConfig(layers=1, heads=2, width=16),
    ],
    ids=["mlp", "unet", "transformer"],
)
def test_a_student_begins_as_its_teacher_at_every_step_length(network: NetworkConfig) -> None:
    from policies.card import Shapes

    torch.manual_seed(0)
    shapes = Shapes.of_vector(4, 2, anchor=2)
    module = DiffusionPolicy(replace(FLOW, network=network), shapes).eval()
    with torch.no_grad():
        # The last layer of a network may begin at 0, at which all policies are the same.
        for part in module.denoiser.parameters():
            part.add_(0.1 * torch.randn(part.shape))
    own = shortcut_student(module)
    observed = ObservationTensors(torch.randn(5, 2, 4))
    noisy, time = torch.randn(5, 4, 2), torch.full((5,), 7)
    wanted = module.denoise(module.encoder(observed))(noisy, time)
    learned = own.denoise(own.encoder(observed))
    for length in (0, 1, 20):
        assert torch.equal(learned(noisy, time, torch.full((5,), length)), wanted)
    module.set_sampler_steps(1)
    assert torch.equal(own.sample(observed, noisy), module.sample(observed, noisy))
    # What the embedding has learned changes a step, and never the velocity.
    assert own.step_length is not None
    torch.nn.init.ones_(own.step_length.linear.weight)
    assert torch.equal(learned(noisy, time, torch.full((5,), 0)), wanted)
    assert not torch.equal(learned(noisy, time, torch.full((5,), 20)), wanted)


def to_point(goal: Tensor) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """The velocity of a flow to one chunk, which is constant along every way."""
    return lambda noisy, time, length: (noisy - goal) / (time / TIMESTEPS)[:, None, None]


def test_two_half_steps_of_a_straight_flow_are_the_whole_step_exactly() -> None:
    goal, steps = torch.randn(4, 2), steps_from()
    noise = torch.randn(500, 4, 2, generator=torch.Generator().manual_seed(0))
    share = (steps.start_B / TIMESTEPS)[:, None, None]
    noisy = share * noise + (1.0 - share) * goal
    found = two_half_steps(to_point(goal), noisy, steps, TIMESTEPS)
    torch.testing.assert_close(found, noise - goal, rtol=1e-4, atol=1e-4)


def test_two_half_steps_of_a_curved_flow_are_the_ones_worked_by_hand() -> None:
    """dx/dt = x from 1 at time 0.5 by 0.25 to 0: 1 - 0.25, then 0.75 - 0.25 * 0.75, together
    0.4375 in a time of 0.5."""
    start, middle, end = (torch.tensor([value]) for value in (50, 25, 0))
    steps = SamplerSteps(start, middle, end, torch.tensor([True]))
    asked: list[tuple[int, int]] = []

    def velocity(noisy: Tensor, time: Tensor, length: Tensor) -> Tensor:
        asked.append((int(time), int(length)))
        return noisy

    found = two_half_steps(velocity, torch.ones(1, 1, 1), steps, TIMESTEPS)
    assert found.item() == pytest.approx(0.4375 / 0.5)
    assert asked == [(50, 0), (25, 0)]
    two_half_steps(
        velocity, torch.ones(1, 1, 1), steps._replace(shortest_B=torch.tensor([False])), TIMESTEPS
    )
    assert asked[2:] == [(50, 25), (25, 25)]


def test_the_drawn_steps_are_the_halvings_of_the_way_from_noise_to_chunk() -> None:
    steps = steps_from(draws=2000, halvings=2)
    found = {tuple(int(value) for value in step) for step in zip(*steps[:3], strict=True)}
    assert found == {
        (100, 50, 0),
        (100, 75, 50),
        (50, 25, 0),
        (100, 88, 75),
        (75, 62, 50),
        (50, 38, 25),
        (25, 12, 0),
    }
    assert torch.equal(steps.shortest_B, steps.start_B - steps.end_B == 25)
    whole = (steps.start_B - steps.end_B == TIMESTEPS).float().mean().item()
    assert whole == pytest.approx(0.4, abs=0.04)


@pytest.mark.parametrize(("velocity", "low", "high"), [("teacher", 0.0, 0.01), ("own", 0.05, 1.0)])
def test_the_velocity_of_a_student_that_has_not_begun_is_its_teachers(
    velocity: Literal["teacher", "own"], low: float, high: float, teacher: Path, demos: Path
) -> None:
    """Almost all rows learn the velocity; `own` is compared with single demonstrated chunks, and
    differs from their mean by their spread."""
    expert = flow_policy(teacher)
    data = read_demonstrations(demos, FLOW)
    windows = normalized_windows(data, expert, FLOW, np.arange(len(data.ends_E)))
    config = replace(CONFIG, velocity=velocity, flow_share=0.99)
    students = shortcut_student(expert), shortcut_student(expert)
    loss = shortcut_objective(config, expert, *students, windows, "fp32")(0).item()
    assert low <= loss < high


@pytest.mark.parametrize("velocity", ["teacher", "own"])
def test_the_student_comes_closer_to_the_teacher_than_the_teacher_in_one_step(
    velocity: Literal["teacher", "own"], teacher: Path, demos: Path, tmp_path: Path
) -> None:
    config = replace(CONFIG, velocity=velocity, training=replace(CONFIG.training, steps=400))
    metrics = distil(config, teacher, demos, tmp_path, no_progress)
    assert (metrics["steps"], metrics["teacher_steps"]) == (400, 10)
    wanted = load_policy(teacher)(*inputs())
    own, control = (
        np.square(policy(*inputs()) - wanted).mean()
        for policy in (load_policy(tmp_path), load_policy(teacher, 1))
    )
    assert own < 0.5 * control


def test_the_student_samples_in_one_step_and_is_not_distilled_again(
    student: Path, demos: Path, tmp_path: Path
) -> None:
    config = flow_policy(student).config
    assert (config.inference_steps, config.step_conditioned) == (1, True)
    assert config.sampler_name(config.sampler_steps) == "one-step"
    assert config.finetuning_methods == ("dsrl", "rl_token")
    for algorithm in (CONFIG, DistilConfig(training=TRAINING)):
        with pytest.raises(HandoffError, match="that samples in several steps"):
            distil(algorithm, student, demos, tmp_path, no_progress)


def test_the_student_is_exported_as_it_acts(student: Path) -> None:
    import onnxruntime

    from policies.export.graph import to_onnx

    model = to_onnx(flow_policy(student), 21)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    observation, noise = inputs(8)
    (found,) = session.run(["action"], {"observation": observation, "noise": noise})
    np.testing.assert_allclose(
        np.asarray(found), load_policy(student)(observation, noise), atol=1e-5
    )


def test_a_killed_distillation_ends_with_the_very_weights_it_would_have_had(
    student: Path, teacher: Path, demos: Path, tmp_path: Path
) -> None:
    run_until_killed(37, distil, CONFIG, teacher, demos, tmp_path)
    calls = []
    distil(CONFIG, teacher, demos, tmp_path, lambda done, total, note="": calls.append(done))
    assert calls[0] > 30
    weights, others = read_weights(student), read_weights(tmp_path)
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "policy.safetensors",
        "loss.jsonl",
        "loss.png",
    }


def test_regression_distils_a_flow_too(teacher: Path, demos: Path, tmp_path: Path) -> None:
    config = DistilConfig(
        training=replace(TRAINING, steps=200, batch_size=64), targets=3200, teacher_batch=320
    )
    distil(config, teacher, demos, tmp_path, no_progress)
    wanted = load_policy(teacher)(*inputs())
    own, control = (
        np.square(policy(*inputs()) - wanted).mean()
        for policy in (load_policy(tmp_path), load_policy(teacher, 1))
    )
    assert own < 0.5 * control


def test_a_fine_tuned_teacher_is_refused(teacher: Path, demos: Path, tmp_path: Path) -> None:
    import shutil

    tuned = tmp_path / "tuned"
    shutil.copytree(teacher, tuned)
    save_visited_states(tuned, torch.zeros(10, 2, 4))
    with pytest.raises(HandoffError, match="learns from demonstrated"):
        distil(CONFIG, tuned, demos, tmp_path, no_progress)


def test_a_diffusion_teacher_is_refused(demos: Path, tmp_path: Path) -> None:
    out = tmp_path / "teacher"
    out.mkdir()
    training = replace(TRAINING, steps=10)
    pretrain(PretrainConfig(policy=TINY, training=training), demos, out, no_progress)
    with pytest.raises(HandoffError, match=r"algorithm 'shortcut', expected a flow policy"):
        distil(CONFIG, out, demos, tmp_path, no_progress)
