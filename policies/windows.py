"""Windows over episodes: what the policy sees at one step, and the chunk it should answer.

Padding repeats the first and last step of the episode, as in diffusion_policy's `SequenceSampler` with
`pad_before = n_obs_steps - 1` and `pad_after = n_action_steps - 1`, so that the first step of an episode can be a
window's newest and the last action can still be executed.

Shape suffixes: N windows, T observed steps, H horizon, O observation, A action, B batch, M recorded steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.chunk_policy import Batch, Observed
from robots.errors import HandoffError

_DIGESTED = 1000
"""Pictures of a camera that enter the digest: all of them would take longer than many a training."""
_ORDER = 1 << 62
"""Keeps the keys of the data order apart from those of the noise, which are numbered by step."""


class WindowIndex(NamedTuple):
    """Rows of the recorded steps that make up each window."""

    observation_NT: np.ndarray
    action_NH: np.ndarray
    padded_NH: np.ndarray
    """True for actions outside their episode, which repeat its first or last."""
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
        wanted_NH = firsts[:, None] + np.arange(horizon)
        rows_NH = np.clip(wanted_NH, start, end - 1)
        parts.append((rows_NH, rows_NH != wanted_NH, np.full(len(rows_NH), episode)))
    if not sum(len(rows) for rows, _, _ in parts):
        raise HandoffError(f"windows: none in {len(ends)} episodes, all shorter than the horizon of {horizon} steps.")
    rows_NH, padded_NH, episode_N = (np.concatenate(part) for part in zip(*parts, strict=True))
    return WindowIndex(rows_NH[:, :n_obs_steps], rows_NH, padded_NH, episode_N)


@dataclass(frozen=True)
class Windows:
    """Recorded steps, normalised and on the training device, with the rows that make up each window."""

    observation_MO: Tensor
    observation_NT: Tensor
    chunk_NHA: Tensor
    padded_NH: Tensor
    """True for actions outside the window's episode."""
    sensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Per camera or point cloud (M, ...) as recorded, in main memory or memory-mapped."""
    instruction_N: tuple[str, ...] = ()
    """N sentences; empty where there are none."""

    def __len__(self) -> int:
        return len(self.chunk_NHA)

    def batch(self, windows_B: Tensor) -> Batch:
        """The windows numbered `windows_B`, on the device of the recorded steps."""
        return Batch(self.observations(windows_B), self.chunk_NHA[windows_B], self.padded_NH[windows_B])

    def observations(self, windows_B: Tensor) -> Observed:
        """What is seen in the windows numbered `windows_B`."""
        rows_BT = self.observation_NT[windows_B]
        device = self.chunk_NHA.device
        sensors = {name: frames[rows_BT.to(frames.device)].to(device) for name, frames in self.sensors.items()}
        chosen = windows_B.tolist() if self.instruction_N else []
        instructions = tuple(self.instruction_N[window] for window in chosen)
        return Observed(self.observation_MO[rows_BT], sensors, instructions)

    def digest(self) -> str:
        """Digest (hex sha256) of the windows' numbers and words; of pictures a thousand, evenly spread."""
        digest = hashlib.sha256()
        for tensor in (self.observation_MO, self.observation_NT, self.chunk_NHA):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        for name, frames in sorted(self.sensors.items()):
            chosen = torch.linspace(0, len(frames) - 1, min(len(frames), _DIGESTED)).long()
            digest.update(name.encode() + frames[chosen].contiguous().numpy().tobytes())
        digest.update("\n".join(self.instruction_N).encode())
        return digest.hexdigest()


def select_windows(
    index: WindowIndex,
    observation_MO: Tensor,
    chunk_NHA: Tensor,
    episodes: Sequence[int] | np.ndarray,
    sensors: Mapping[str, Tensor] | None = None,
    instruction_E: tuple[str, ...] = (),
) -> Windows:
    """The windows of `episodes`, on the device of the recorded steps.

    Args:
        index: of all windows.
        observation_MO: normalised.
        chunk_NHA: normalised, of all windows.
        episodes: numbers of the chosen ones.
        sensors: see `Windows`.
        instruction_E: one sentence per episode, or none at all.
    """
    device = chunk_NHA.device
    chosen = np.isin(index.episode_N, episodes)
    chosen_N = torch.from_numpy(chosen)
    return Windows(
        observation_MO,
        torch.from_numpy(index.observation_NT)[chosen_N].to(device),
        chunk_NHA[chosen_N.to(device)],
        torch.from_numpy(index.padded_NH)[chosen_N].to(device),
        sensors or {},
        tuple(instruction_E[episode] for episode in index.episode_N[chosen]) if instruction_E else (),
    )


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
