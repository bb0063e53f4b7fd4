"""Compares the chunks of a policy with the recorded actions of episodes that it was not trained on.

At every step of an episode but the first, the policy predicts a chunk from the recorded
observation. Its actions from the newest observed step on are compared with those that were recorded
at the same steps. The control repeats the last action before the chunk. An open-loop error needs no
environment, and says less than a success rate: a policy may follow another way than the person and
still succeed.

Shape suffixes: E episodes, N windows, K steps ahead, A action, H horizon, O observation.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from policies.card import PolicyCard
from policies.data.demonstrations import DemonstrationArrays, read_demonstrations
from policies.data.windows import WindowIndex, window_index
from policies.random_streams import RandomStream
from policies.training.loop import rng
from robots.errors import HandoffError
from robots.interfaces import MultimodalPolicy, PolicyInput, Progress

_VECTOR_ROWS = 256
_SENSOR_ROWS = 16
"""Windows per call of the policy, without and with pictures."""


class OpenLoopErrors(NamedTuple):
    """Mean absolute errors per episode, in the units of the actions."""

    policy_EKA: np.ndarray
    """Errors of the policy, K steps ahead; NaN where no window reaches so far ahead."""
    control_EKA: np.ndarray
    """Errors of repeating the last action, over the same steps."""
    windows_E: np.ndarray
    """Number of compared chunks per episode."""
    deviation_A: np.ndarray
    """Standard deviation of every action entry in these episodes."""
    examples: tuple[PredictedEpisode, ...]
    """Predictions of some episodes, for plots."""


class PredictedEpisode(NamedTuple):
    """Recorded actions of one episode beside chunks that follow one another."""

    episode: int
    recorded_TA: np.ndarray
    predicted_TA: np.ndarray
    """Chunks of `n_action_steps` each, every one from the recorded observation at its start."""


def open_loop_errors(
    policy: MultimodalPolicy,
    card: PolicyCard,
    demos: Path,
    progress: Progress,
    *,
    stride: int = 1,
    seed: int = 0,
    examples: int = 3,
) -> OpenLoopErrors:
    """Predicts a chunk at the steps of all episodes of a store, and compares it with the record.

    Args:
        policy: the policy.
        card: its card, which names the fields.
        demos: folder with the episodes' `store.zarr`.
        progress: counts episodes.
        stride: steps between two predictions.
        seed: seed of the policy's noise.
        examples: number of episodes that are kept for plots.

    Raises:
        HandoffError: the episodes lack a field of the policy, or none has two steps.
    """
    model = card.model
    data = read_demonstrations(demos, model)
    # Every step is the newest of a window, also where training leaves out the last ones.
    index = window_index(
        data.ends_E,
        model.n_obs_steps,
        model.horizon,
        model.horizon - model.n_obs_steps + 1,
        model.observation_stride,
    )
    ahead = np.arange(model.n_obs_steps - 1, model.horizon)
    episodes = len(data.ends_E)
    shape = (episodes, len(ahead), data.card.action_size)
    policy_EKA, control_EKA = np.full(shape, np.nan), np.full(shape, np.nan)
    windows_E = np.zeros(episodes, np.int64)
    kept: list[PredictedEpisode] = []
    for episode in range(episodes):
        chosen_N = _windows(index, data.ends_E, episode, stride)
        if len(chosen_N):
            chunk_NHA = _predicted(policy, data, index, chosen_N, seed, episode)
            recorded_NKA = data.action_MA[index.action_NH[chosen_N][:, ahead]]
            inside_NK = ~index.padded_NH[chosen_N][:, ahead]
            last_NA = data.action_MA[index.observation_NT[chosen_N][:, -1] - 1]
            policy_EKA[episode] = _mean_error(chunk_NHA[:, ahead], recorded_NKA, inside_NK)
            control_EKA[episode] = _mean_error(last_NA[:, None], recorded_NKA, inside_NK)
            windows_E[episode] = len(chosen_N)
        if len(kept) < examples and len(chosen_N):
            kept.append(_example(policy, data, index, episode, seed))
        progress(episode + 1, episodes, "episodes")
    if not windows_E.any():
        raise HandoffError(
            f"{demos}: no episode has two steps, so there is nothing to compare. Were they cut too short?"
        )
    deviation_A = data.action_MA.astype(np.float64).std(axis=0)
    return OpenLoopErrors(policy_EKA, control_EKA, windows_E, deviation_A, tuple(kept))


def _windows(index: WindowIndex, ends_E: np.ndarray, episode: int, stride: int) -> np.ndarray:
    """Windows of an episode whose newest observation is at its second step or later."""
    start = 0 if episode == 0 else int(ends_E[episode - 1])
    newest_N = index.observation_NT[:, -1]
    inside = (index.episode_N == episode) & (newest_N > start)
    return np.flatnonzero(inside & ((newest_N - start - 1) % stride == 0))


def _predicted(
    policy: MultimodalPolicy,
    data: DemonstrationArrays,
    index: WindowIndex,
    windows_N: np.ndarray,
    seed: int,
    episode: int,
) -> np.ndarray:
    """Chunks (N, H, A) of the policy."""
    model = data.card.model
    generator = rng(seed, RandomStream.OPEN_LOOP + episode)
    noise_NHA = generator.standard_normal(
        (len(windows_N), model.horizon, data.card.action_size), dtype=np.float32
    )
    rows = _SENSOR_ROWS if data.sensors or data.instruction_M else _VECTOR_ROWS
    parts = []
    for first in range(0, len(windows_N), rows):
        batch_N = windows_N[first : first + rows]
        steps_NT = index.observation_NT[batch_N]
        sensors = {
            name: frames.steps(torch.from_numpy(steps_NT)).numpy()
            for name, frames in data.sensors.items()
        }
        newest_N = steps_NT[:, -1] if data.instruction_M else ()
        instructions = tuple(data.instruction_M[step] for step in newest_N)
        goal = None
        if model.uses_future_goal:
            # The state in which the recorded episode ended.
            goal = data.observation_MO[index.end_N[batch_N] - 1]
        inputs = PolicyInput(data.observation_MO[steps_NT], sensors, instructions, goal)
        parts.append(policy(inputs, noise_NHA[first : first + rows]))
    return np.concatenate(parts)


def _mean_error(
    predicted_NKA: np.ndarray, recorded_NKA: np.ndarray, inside_NK: np.ndarray
) -> np.ndarray:
    """Mean absolute error (K, A) over the actions inside the episode; NaN without one."""
    error_NKA = np.abs(predicted_NKA.astype(np.float64) - recorded_NKA)
    count_K1 = inside_NK.sum(axis=0)[:, None]
    total_KA = (error_NKA * inside_NK[..., None]).sum(axis=0)
    return np.where(count_K1 > 0, total_KA / np.maximum(count_K1, 1), np.nan)


def _example(
    policy: MultimodalPolicy,
    data: DemonstrationArrays,
    index: WindowIndex,
    episode: int,
    seed: int,
) -> PredictedEpisode:
    model = data.card.model
    start = 0 if episode == 0 else int(data.ends_E[episode - 1])
    recorded_TA = data.action_MA[start : int(data.ends_E[episode])]
    newest_N = index.observation_NT[:, -1]
    inside = (index.episode_N == episode) & ((newest_N - start) % model.n_action_steps == 0)
    chunk_NHA = _predicted(policy, data, index, np.flatnonzero(inside), seed, episode)
    first = model.n_obs_steps - 1
    executed = chunk_NHA[:, first : first + model.n_action_steps]
    predicted_TA = executed.reshape(-1, executed.shape[-1])[: len(recorded_TA)]
    return PredictedEpisode(episode, recorded_TA, predicted_TA)
