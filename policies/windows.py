"""Windows over episodes: what the policy sees at one step, and the chunk it should answer.

Padding repeats the first and last step of the episode, as in diffusion_policy's `SequenceSampler` with
`pad_before = n_obs_steps - 1` and `pad_after = n_action_steps - 1`, so that the first step of an episode can be a
window's newest and the last action can still be executed.

Shape suffixes: N windows, T observed steps, H horizon, O observation, A action, B batch, M recorded steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from robots.errors import HandoffError

_ORDER = 1 << 62
"""Keeps the keys of the data order apart from those of the noise, which are numbered by step."""


class WindowIndex(NamedTuple):
    """Rows of the recorded steps that make up each window."""

    observation_NT: np.ndarray
    action_NH: np.ndarray
    episode_N: np.ndarray


def window_index(ends: np.ndarray, n_obs_steps: int, horizon: int, n_action_steps: int) -> WindowIndex:
    """All windows of the episodes that end (exclusively) at `ends`.

    Args:
        ends: (E,) increasing.
        n_obs_steps: T; the newest observed step is entry T-1 of the chunk.
        horizon: H.
        n_action_steps: actions executed per chunk.

    Raises:
        HandoffError: the executed actions do not fit in the horizon, or there is no window.
    """
    if not 1 <= n_obs_steps <= n_obs_steps - 1 + n_action_steps <= horizon:
        raise HandoffError(
            f"windows: {n_action_steps} actions from index {n_obs_steps - 1} on do not fit in a horizon of {horizon}."
        )
    parts = []
    for episode, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        firsts = np.arange(start - (n_obs_steps - 1), end - horizon + n_action_steps)
        rows_NH = np.clip(firsts[:, None] + np.arange(horizon), start, end - 1)
        parts.append((rows_NH, np.full(len(rows_NH), episode)))
    if not sum(len(rows) for rows, _ in parts):
        raise HandoffError(f"windows: none in {len(ends)} episodes, all shorter than the horizon of {horizon} steps.")
    rows_NH = np.concatenate([rows for rows, _ in parts])
    return WindowIndex(rows_NH[:, :n_obs_steps], rows_NH, np.concatenate([episodes for _, episodes in parts]))


@dataclass(frozen=True)
class Windows:
    """Recorded steps on the training device, with the rows that make up each window."""

    observation_MO: Tensor
    action_MA: Tensor
    observation_NT: Tensor
    action_NH: Tensor

    def __len__(self) -> int:
        return len(self.action_NH)

    def batch(self, windows_B: Tensor) -> tuple[Tensor, Tensor]:
        """The observations (B, T, O) and chunks (B, H, A) of the windows numbered `windows_B`."""
        return self.observations(windows_B), self.action_MA[self.action_NH[windows_B]]

    def digest(self) -> str:
        """Digest (hex sha256) of the windows' numbers."""
        digest = hashlib.sha256()
        for tensor in (self.observation_MO, self.action_MA, self.observation_NT, self.action_NH):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def observations(self, windows_B: Tensor) -> Tensor:
        """(B, T, O)."""
        return self.observation_MO[self.observation_NT[windows_B]]


def select_windows(
    index: WindowIndex, observation_MO: Tensor, action_MA: Tensor, episodes: Sequence[int] | np.ndarray
) -> Windows:
    """The windows of `episodes`, on the device of the recorded steps."""
    chosen = np.isin(index.episode_N, episodes)
    rows = (torch.from_numpy(rows[chosen]).to(action_MA.device) for rows in (index.observation_NT, index.action_NH))
    return Windows(observation_MO, action_MA, *rows)


def shuffled_batch(size: int, count: int, step: int, seed: int) -> np.ndarray:
    """(size,) windows out of `count` for update number `step`: an epoch is a permutation, its remainder dropped.

    A pure function of its arguments, so an interrupted run goes on with exactly the batches it would have had.
    """
    size = min(size, count)
    epoch, place = divmod(step, count // size)
    return _permutation(count, epoch, seed)[place * size : (place + 1) * size]


@lru_cache(maxsize=2)
def _permutation(count: int, epoch: int, seed: int) -> np.ndarray:
    return np.random.Generator(np.random.Philox(key=[seed, _ORDER + epoch])).permutation(count)
