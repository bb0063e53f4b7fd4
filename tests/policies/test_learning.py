"""Learning check with a negative control: two equally good paths around an obstacle.

Demonstrations go from (0, 0) to (1, 0) m, half of them over a disc of 0.2 m at (0.5, 0), half of
them under it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from policies.distillation.config import DistilConfig
from policies.distillation.one_step import distil
from policies.imitation.config import PretrainConfig
from policies.imitation.pretrain import pretrain
from policies.load import load_policy
from policies.networks.config import MlpConfig
from policies.policy_config import BehaviourCloningConfig, DiffusionPolicyConfig
from policies.training.config import TrainingConfig
from robots.interfaces import no_progress
from tests.policies.conftest import write_demonstrations

pytestmark = pytest.mark.slow

LENGTH = 16
MODEL = DiffusionPolicyConfig(
    observation_fields=("goal", "agent"),
    n_obs_steps=1,
    horizon=LENGTH,
    n_action_steps=LENGTH,
    network=MlpConfig(width=256),
)
TRAINING = TrainingConfig(steps=6000, learning_rate=1e-3, batch_size=128, precision="fp32")
ROLLOUTS = 200


@pytest.fixture(scope="module")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    rng = np.random.default_rng(0)
    x = np.linspace(0.0, 1.0, LENGTH)
    sides = np.resize([1.0, -1.0], 100)
    heights = sides * rng.uniform(0.35, 0.5, 100)
    actions = [np.stack([x, height * np.sin(np.pi * x)], axis=1) for height in heights]
    return write_demonstrations(
        tmp_path_factory.mktemp("forks"), actions, goal=np.array([1.0, 0.0])
    )


@pytest.fixture(scope="module")
def teacher(forks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher")
    pretrain(PretrainConfig(policy=MODEL, training=TRAINING), forks, out, no_progress)
    return out


def starts() -> tuple[np.ndarray, np.ndarray]:
    observation = np.tile(np.array([1.0, 0.0, 0.0, 0.0], np.float32), (ROLLOUTS, 1, 1))
    return observation, np.random.default_rng(1).standard_normal(
        (ROLLOUTS, LENGTH, 2), dtype=np.float32
    )


def ways(chunk: np.ndarray) -> tuple[float, float, float]:
    """Shares of paths that pass over the disc, under it, and through it."""
    through = (np.hypot(chunk[..., 0] - 0.5, chunk[..., 1]) < 0.2).any(axis=1)
    over = chunk[:, LENGTH // 2, 1] > 0
    return float((over & ~through).mean()), float((~over & ~through).mean()), float(through.mean())


def assert_keeps_both_ways(chunk: np.ndarray) -> None:
    over, under, through = ways(chunk)
    assert min(over, under) >= 0.25
    assert through <= 0.05


def cloned(forks: Path, out: Path, head: Literal["gmm", "mse"]) -> np.ndarray:
    """Chunks of behaviour cloning with as many updates as the others, at robomimic's learning
    rate."""
    policy = BehaviourCloningConfig(
        observation_fields=MODEL.observation_fields,
        horizon=LENGTH,
        n_action_steps=LENGTH,
        head=head,
        hidden=(256, 256),
    )
    pretrain(
        PretrainConfig(policy=policy, training=replace(TRAINING, learning_rate=1e-4)),
        forks,
        out,
        no_progress,
    )
    return load_policy(out)(*starts())


def test_regression_without_noise_drives_into_the_obstacle(forks: Path, tmp_path: Path):
    assert ways(cloned(forks, tmp_path, "mse"))[2] >= 0.8


def test_a_mixture_keeps_both_ways_where_regression_fails(forks: Path, tmp_path: Path):
    over, under, through = ways(cloned(forks, tmp_path, "gmm"))
    assert min(over, under) >= 0.25
    # A mode of little weight may lie between the ways.
    assert through <= 0.1


def test_diffusion_keeps_both_ways(teacher: Path):
    assert_keeps_both_ways(load_policy(teacher)(*starts()))


def test_more_denoising_steps_do_not_change_the_picture(teacher: Path):
    assert_keeps_both_ways(load_policy(teacher, 100)(*starts()))


def test_the_one_step_student_keeps_both_ways(teacher: Path, forks: Path, tmp_path: Path):
    config = DistilConfig(training=TRAINING, targets=16_384, teacher_batch=1024)
    distil(config, teacher, forks, tmp_path, no_progress)
    over, under, through = ways(load_policy(tmp_path)(*starts()))
    assert min(over, under) >= 0.25
    # The recipe's bar for few-step students: within five points of the teacher.
    assert through <= ways(load_policy(teacher)(*starts()))[2] + 0.05


def test_the_undistilled_teacher_in_one_step_drives_into_the_obstacle(teacher: Path):
    assert ways(load_policy(teacher, 1)(*starts()))[2] >= 0.8
