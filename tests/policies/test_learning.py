"""Learning check with a negative control: two equally good ways round an obstacle.

Demonstrations go from (0, 0) to (1, 0) m, half of them over a disc of 0.2 m at (0.5, 0), half of them under it.
"""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.config import TrainingConfig
from policies.demonstrations import read_demonstrations
from policies.diffusion import DiffusionPolicy
from policies.distill import DistilConfig, distil
from policies.imitation import new_policy, split_windows
from policies.load import load_policy
from policies.networks.config import MlpConfig
from policies.policy_config import DiffusionPolicyConfig
from policies.pretrain import PretrainConfig, pretrain
from policies.training import train, without_data
from policies.windows import shuffled_batch
from robots.types import no_progress
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
    return write_demonstrations(tmp_path_factory.mktemp("forks"), actions, goal=np.array([1.0, 0.0]))


@pytest.fixture(scope="module")
def teacher(forks: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("teacher")
    pretrain(PretrainConfig(policy=MODEL, training=TRAINING), forks, out, no_progress)
    return out


def starts() -> tuple[np.ndarray, np.ndarray]:
    observation = np.tile(np.array([1.0, 0.0, 0.0, 0.0], np.float32), (ROLLOUTS, 1, 1))
    return observation, np.random.default_rng(1).standard_normal((ROLLOUTS, LENGTH, 2), dtype=np.float32)


def ways(chunk: np.ndarray) -> tuple[float, float, float]:
    """Shares of paths that pass over the disc, under it, and through it."""
    through = (np.hypot(chunk[..., 0] - 0.5, chunk[..., 1]) < 0.2).any(axis=1)
    over = chunk[:, LENGTH // 2, 1] > 0
    return float((over & ~through).mean()), float((~over & ~through).mean()), float(through.mean())


def assert_keeps_both_ways(chunk: np.ndarray) -> None:
    over, under, through = ways(chunk)
    assert min(over, under) >= 0.25
    assert through <= 0.05


def test_regression_without_noise_drives_into_the_obstacle(forks: Path, tmp_path: Path):
    data = read_demonstrations(forks, MODEL)
    module = new_policy(data, np.array([], int), MODEL, seed=0)
    assert isinstance(module, DiffusionPolicy)
    denoiser = module.denoiser
    windows = split_windows(data, np.array([], int), module, MODEL).learned

    def predict(observation_BTO: Tensor) -> Tensor:
        rows = len(observation_BTO)
        return denoiser(torch.zeros(rows, LENGTH, 2), torch.zeros(rows, dtype=torch.int64), observation_BTO)

    def loss(step: int) -> Tensor:
        batch = windows.batch(torch.from_numpy(shuffled_batch(128, len(windows), step, 0)))
        return mse_loss(predict(batch.observed.vector_BTO), batch.chunk_BHA)

    trained = train(TRAINING, module, without_data(loss), "control", tmp_path, no_progress)
    module.load_state_dict(trained.average)
    observation = module.normalize_observation(torch.from_numpy(starts()[0]))
    with torch.no_grad():
        chunk = module.normalize_action.inverse(predict(observation)).numpy()
    assert ways(chunk)[2] >= 0.8


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
