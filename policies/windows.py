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
    observation_NT: Tensor
    chunk_NHA: Tensor

    def __len__(self) -> int:
        return len(self.chunk_NHA)

    def batch(self, windows_B: Tensor) -> tuple[Tensor, Tensor]:
        """The observations (B, T, O) and chunks (B, H, A) of the windows numbered `windows_B`."""
        return self.observations(windows_B), self.chunk_NHA[windows_B]

    def digest(self) -> str:
        """Digest (hex sha256) of the windows' numbers."""
        digest = hashlib.sha256()
        for tensor in (self.observation_MO, self.observation_NT, self.chunk_NHA):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def observations(self, windows_B: Tensor) -> Tensor:
        """(B, T, O)."""
        return self.observation_MO[self.observation_NT[windows_B]]


def select_windows(
    index: WindowIndex, observation_MO: Tensor, chunk_NHA: Tensor, episodes: Sequence[int] | np.ndarray
) -> Windows:
    """The windows of `episodes`, on the device of the recorded steps."""
    chosen_N = torch.from_numpy(np.isin(index.episode_N, episodes))
    observation_NT = torch.from_numpy(index.observation_NT)[chosen_N].to(chunk_NHA.device)
    return Windows(observation_MO, observation_NT, chunk_NHA[chosen_N.to(chunk_NHA.device)])


def chunks(index: WindowIndex, observation_MO: np.ndarray, action_MA: np.ndarray, anchor: int | None) -> np.ndarray:
    """The chunk (N, H, A) of every window in physical units.

    Args:
        index: of the windows.
        observation_MO: recorded.
        action_MA: recorded.
        anchor: entry of the observation from which on the A entries stand that actions are relative to, as seen at
            the window's newest observed step; None leaves the actions as they are.
    """
    chunk_NHA = action_MA[index.action_NH]
    if anchor is None:
        return chunk_NHA
    return chunk_NHA - observation_MO[index.observation_NT[:, -1], None, anchor : anchor + action_MA.shape[1]]


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
