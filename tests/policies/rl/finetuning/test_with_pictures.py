"""Fine-tuning of policies that see: the encoders stay, and every picture is encoded once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch

from policies.card import PolicyCard, Shapes
from policies.checkpoint import read_weights, save_policy
from policies.data.visited_states import load_visited_states
from policies.families.diffusion import DiffusionPolicy
from policies.load import load_module, load_policy
from policies.networks.config import MlpConfig, ResnetEncoderConfig
from policies.policy import ObservationTensors
from policies.policy_config import DiffusionPolicyConfig
from policies.rl.collection.chunk_env import ChunkEnv
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.finetuning.finetune import finetune
from policies.rl.offline.offline_dataset import demonstration_dataset
from robots.errors import HandoffError
from robots.interfaces import Observation, PolicyInput, no_progress
from robots.spec import FieldSpec
from tests.policies.rl.counted_demos import write_counted
from tests.policies.rl.counting import CAMERA, EDGE, SeeingCounting
from tests.policies.rl.finetuning.denoising.flow_actors import FPO, REINFLOW
from tests.policies.rl.finetuning.test_demonstration_selection import EXPO, Q_CHUNKING
from tests.policies.rl.finetuning.test_finetune import BEST_OF_N, SMALL, KilledError, killing
from tests.policies.rl.test_rl100 import CONFIG as RL100

ALGORITHMS = pytest.mark.parametrize(
    "algorithm",
    [SMALL.algorithm, BEST_OF_N, EXPO, Q_CHUNKING, replace(RL100, offline_every=1)],
    ids=["dppo", "best_of_n", "expo", "q_chunking", "rl100"],
)


def seeing_policy(
    history: int, stride: int = 1, objective: Literal["diffusion", "flow"] = "diffusion"
) -> DiffusionPolicy:
    torch.manual_seed(0)
    config = DiffusionPolicyConfig(
        objective=objective,
        anchor_field=None,
        observation_fields=("step", "seed"),
        image_fields=("camera",),
        image_encoder=ResnetEncoderConfig(channels=(16,), keypoints=4, features=6),
        n_obs_steps=history,
        observation_stride=stride,
        horizon=4,
        n_action_steps=2,
        train_timesteps=10,
        inference_steps=10,
        network=MlpConfig(width=16, blocks=1),
    )
    shapes = Shapes({"step": (0, 1), "seed": (1, 2)}, 1, None, {"camera": CAMERA.shape})
    return DiffusionPolicy(config, shapes).eval()


@pytest.fixture(params=[1, 2])
def policy(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return write_policy(seeing_policy(request.param), tmp_path / "policy")


def write_policy(module: DiffusionPolicy, folder: Path) -> Path:
    one = FieldSpec(shape=(1,))
    card = PolicyCard(
        task="counting",
        rate_hz=10.0,
        observation={"step": one, "seed": one},
        sensors={"camera": CAMERA},
        action=one,
        model=module.config,
    )
    folder.mkdir()
    save_policy(folder, card, module.state_dict())
    return folder


def observed(policy: DiffusionPolicy, history: Sequence[Observation]) -> torch.Tensor:
    """The encoding of whole observations, newest last."""
    vector = np.stack(
        [np.concatenate([row["step"], row["seed"]], axis=1) for row in history], axis=1
    )
    pictures = np.stack([row["camera"] for row in history], axis=1)
    normalised = policy.normalize_observation(torch.from_numpy(vector.astype(np.float32)))
    sensors = {"camera": torch.from_numpy(pictures)}
    with torch.no_grad():
        return policy.encode(ObservationTensors(normalised, sensors))


@pytest.mark.parametrize("history", [1, 2])
def test_an_observation_is_the_encoding_of_its_own_pictures(history: int) -> None:
    """Of every environment, before and after a decision, also of those that were reset."""
    policy = seeing_policy(history)
    env = SeeingCounting(3)
    seeds = iter(range(5, 100))
    chunks = ChunkEnv(env, policy, 2, seeds, 0.9)
    shadow: list[Observation] = [env._obs()] * history
    for _ in range(5):
        torch.testing.assert_close(chunks.observation(), observed(policy, shadow))
        frames: list[Observation] = []
        plain = env.step

        def noted(action: np.ndarray, plain=plain, frames=frames):
            step = plain(action)
            frames.append(step.observation)
            return step

        env.step = noted  # type: ignore[method-assign]
        result = chunks.step(torch.zeros(3, *policy.chunk_shape))
        env.step = plain  # type: ignore[method-assign]
        after = frames[-history:]
        torch.testing.assert_close(result.final_obs, observed(policy, after))
        ended = (result.terminated_N | result.truncated_N).numpy()
        fresh = env._obs()
        shadow = [
            {
                name: np.where(
                    ended.reshape(-1, *[1] * (row[name].ndim - 1)), fresh[name], row[name]
                )
                for name in row
            }
            for row in after
        ]


LONGEST = 8
"""More steps than an episode of the counting environments has."""


def test_a_stride_of_an_episodes_length_remembers_the_first_step_of_every_episode() -> None:
    policy, env = seeing_policy(2, LONGEST), SeeingCounting(3)
    env.max_steps = LONGEST  # type: ignore[attr-defined]
    chunks = ChunkEnv(env, policy, 2, iter(range(5, 100)), 0.9)
    first = env._obs()
    for _ in range(5):
        torch.testing.assert_close(chunks.observation(), observed(policy, [first, env._obs()]))
        result = chunks.step(torch.zeros(3, *policy.chunk_shape))
        ended = (result.terminated_N | result.truncated_N).numpy()
        fresh = env._obs()
        first = {
            name: np.where(
                ended.reshape(-1, *[1] * (first[name].ndim - 1)), fresh[name], first[name]
            )
            for name in first
        }


def test_a_shorter_stride_is_refused_with_the_length_of_an_episode() -> None:
    env = SeeingCounting(3)
    env.max_steps = LONGEST  # type: ignore[attr-defined]
    with pytest.raises(HandoffError, match="steps 3 apart in episodes of at most 8"):
        ChunkEnv(env, seeing_policy(2, 3), 2, iter(range(5, 100)), 0.9)


@pytest.mark.parametrize("algorithm", [FPO, replace(REINFLOW, steps=5)], ids=["fpo", "reinflow"])
def test_of_a_flow_policy_the_denoiser_learns_and_the_encoder_stays(
    algorithm: Any, tmp_path: Path
) -> None:
    policy = write_policy(seeing_policy(2, objective="flow"), tmp_path / "policy")
    test_the_denoiser_learns_and_the_encoder_stays(algorithm, policy, tmp_path)


@ALGORITHMS
def test_the_denoiser_learns_and_the_encoder_stays(
    algorithm: Any, policy: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    demos = write_counted(tmp_path / "demos", episodes=8, camera=True)
    config = replace(SMALL, algorithm=algorithm)
    finetune(config, policy, lambda: SeeingCounting(3), out, no_progress, demos)
    before, after = read_weights(policy), read_weights(out)
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert any(name.startswith("denoiser.") for name in moved)
    assert not any(name.startswith(("encoder.", "normalize")) for name in moved)
    module, _ = load_module(out)
    visited = load_visited_states(out, module.encoded_shape)
    assert visited is not None
    assert len(visited) == 4 * 6 * 3
    # The policy that is saved reads pictures as before.
    rows = PolicyInput(
        np.zeros((2, module.observation_shape[0], 2), np.float32),
        {"camera": np.zeros((2, module.observation_shape[0], EDGE, EDGE, 3), np.uint8)},
    )
    noise = np.zeros((2, 4, 1), np.float32)
    assert np.isfinite(load_policy(out)(rows, noise)).all()


def test_a_killed_run_goes_on_with_its_encoded_states(policy: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    with pytest.raises(KilledError):
        finetune(SMALL, policy, lambda: SeeingCounting(3), out, killing(2), None)
    finetune(SMALL, policy, lambda: SeeingCounting(3), out, no_progress, None)
    visited = load_visited_states(out, load_module(policy)[0].encoded_shape)
    assert visited is not None
    assert len(visited) == 4 * 6 * 3


@pytest.mark.parametrize("history", [1, 2])
def test_demonstrations_are_encoded_as_the_environments_are(history: int, tmp_path: Path) -> None:
    policy = seeing_policy(history)
    demos = write_counted(tmp_path / "demos", episodes=2, length=5, camera=True)
    shaping, discount = RewardShaping(), 0.9
    dataset = demonstration_dataset(demos, policy, policy.config, shaping, discount)
    env = SeeingCounting(1)
    env.reset([1])
    rows = []
    for step in (2, 3)[-history:]:
        env.steps[:] = step
        rows.append(env._obs())
    # The fourth step of the second episode.
    expected = observed(policy, rows)[0]
    assert any(torch.allclose(row, expected, atol=1e-6) for row in dataset.obs)
    assert dataset.obs.shape[1:] == policy.encoded_shape
