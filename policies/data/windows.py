"""Windows over episodes: what the policy sees at one step, and the chunk it should answer.

Padding repeats the first and last step of the episode, as in diffusion_policy's `SequenceSampler`
with `pad_before = n_obs_steps - 1` and `pad_after = n_action_steps - 1`, so that the first step of
an episode can be a window's newest and the last action can still be executed.

Shape suffixes: N windows, T observed steps, H horizon, O observation, A action, B batch, M recorded
steps.
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

from policies.data.frames import Frames
from policies.policy import Batch, ObservationTensors
from policies.random_streams import ORDER_SPACING, RandomStream
from robots.errors import HandoffError

_DIGESTED = 1000
"""Pictures of a camera that enter the digest: all of them would take longer than many a
training."""


class WindowIndex(NamedTuple):
    """Rows of the recorded steps that make up each window."""

    observation_NT: np.ndarray
    action_NH: np.ndarray
    padded_NH: np.ndarray
    """True for actions outside their episode, which repeat its first or last."""
    episode_N: np.ndarray
    end_N: np.ndarray
    """Row after the last of each window's episode."""

    def of(self, episodes: Sequence[int] | np.ndarray) -> WindowIndex:
        """Those of `episodes`."""
        chosen = np.isin(self.episode_N, episodes)
        return WindowIndex(*(part[chosen] for part in self))


def window_index(
    ends: np.ndarray, n_obs_steps: int, horizon: int, n_action_steps: int
) -> WindowIndex:
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
    starts = [0, *ends[:-1]]
    parts = [
        _episode_windows(number, int(start), int(end), (n_obs_steps, horizon, n_action_steps))
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    index = WindowIndex(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    if not len(index.episode_N):
        raise HandoffError(
            f"windows: none in {len(ends)} episodes, all shorter than the horizon of {horizon} steps."
        )
    return index


def episode_windows(
    length: int, n_obs_steps: int, horizon: int, n_action_steps: int
) -> WindowIndex:
    """The windows of one episode of `length` steps, which may be none; see `window_index`."""
    return _episode_windows(0, 0, length, (n_obs_steps, horizon, n_action_steps))


def _episode_windows(number: int, start: int, end: int, sizes: tuple[int, int, int]) -> WindowIndex:
    n_obs_steps, horizon, n_action_steps = sizes
    firsts = np.arange(start - (n_obs_steps - 1), end - horizon + n_action_steps)
    wanted_NH = firsts[:, None] + np.arange(horizon)
    rows_NH = np.clip(wanted_NH, start, end - 1)
    number_N, end_N = (np.full(len(rows_NH), value) for value in (number, end))
    return WindowIndex(rows_NH[:, :n_obs_steps], rows_NH, rows_NH != wanted_NH, number_N, end_N)


@dataclass(frozen=True)
class Windows:
    """Recorded steps, normalised and on the training device, with the rows that make up each
    window."""

    observation_MO: Tensor
    observation_NT: Tensor
    """On the CPU, where frames are gathered."""
    chunk_NHA: Tensor
    padded_NH: Tensor
    """True for actions outside the window's episode."""
    sensors: Mapping[str, Frames] = field(default_factory=dict)
    """Per camera or point cloud, of every recorded step, as recorded."""
    instruction_N: tuple[str, ...] = ()
    """N sentences; empty where there are none."""
    goal_end_N: Tensor | None = None
    """Row after the last of each window's episode, on the CPU, where a later observation of the
    episode is the goal; None where the policy is told none."""

    def __len__(self) -> int:
        return len(self.chunk_NHA)

    def batch(
        self,
        windows_B: Tensor,
        draw: np.random.Generator | None = None,
        frames: Mapping[str, Tensor] | None = None,
    ) -> Batch:
        """The windows numbered `windows_B`, on the device of the recorded steps; arguments see
        `observations`."""
        observed, own_B = (
            self.observations(windows_B, draw, frames),
            windows_B.to(self.chunk_NHA.device),
        )
        return Batch(observed, self.chunk_NHA[own_B], self.padded_NH[own_B])

    def observations(
        self,
        windows_B: Tensor,
        draw: np.random.Generator | None = None,
        frames: Mapping[str, Tensor] | None = None,
    ) -> ObservationTensors:
        """What is seen in the windows numbered `windows_B`.

        Args:
            windows_B: on the CPU, which spares a GPU the wait for them, or on the device.
            draw: picks the goals, where there are any.
            frames: what `frames` made of the same windows; read here by default.

        Raises:
            HandoffError: goals have to be drawn and there is nothing to draw them with.
        """
        device, windows_B = self.chunk_NHA.device, windows_B.cpu()
        read = self.frames(windows_B) if frames is None else frames
        sensors = {name: steps.to(device, non_blocking=True) for name, steps in read.items()}
        rows_BT = self.observation_NT[windows_B]
        chosen = windows_B.tolist() if self.instruction_N else []
        instructions = tuple(self.instruction_N[window] for window in chosen)
        goal_BO = None
        if self.goal_end_N is not None:
            if draw is None:
                raise HandoffError(
                    "windows: goals are later observations, but no random numbers were given."
                )
            goal_B = future_rows(rows_BT[:, -1].numpy(), self.goal_end_N[windows_B].numpy(), draw)
            goal_BO = self.observation_MO[torch.from_numpy(goal_B).to(device)]
        return ObservationTensors(
            self.observation_MO[rows_BT.to(device)], sensors, instructions, goal_BO
        )

    def frames(self, windows_B: Tensor) -> dict[str, Tensor]:
        """Pictures and point clouds of the windows numbered `windows_B`, both on the CPU, ready for
        the device."""
        rows_BT, remote = self.observation_NT[windows_B], self.chunk_NHA.device.type == "cuda"
        return {name: frames.steps(rows_BT, pinned=remote) for name, frames in self.sensors.items()}

    def digest(self) -> str:
        """Digest (hex sha256) of the windows' numbers and words; of pictures a thousand, evenly
        spread."""
        digest = hashlib.sha256()
        for tensor in (self.observation_MO, self.observation_NT, self.chunk_NHA):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        for name, frames in sorted(self.sensors.items()):
            chosen = torch.linspace(0, len(frames) - 1, min(len(frames), _DIGESTED)).long()
            digest.update(name.encode() + frames.steps(chosen).numpy().tobytes())
        digest.update("\n".join(self.instruction_N).encode())
        return digest.hexdigest()


def with_states(windows: Windows, seen_RTO: Tensor) -> Windows:
    """`windows` and, behind them, states that belong to no episode; for who asks for observations
    alone.

    Args:
        windows: of vectors, without instructions and goals.
        seen_RTO: R normalised histories. Their chunks are zeros, and count as padded.
    """
    count, history = seen_RTO.shape[:2]
    device, zeros = (
        windows.chunk_NHA.device,
        windows.chunk_NHA.new_zeros(count, *windows.chunk_NHA.shape[1:]),
    )
    rows_RT = torch.arange(count * history).view(count, history) + len(windows.observation_MO)
    return Windows(
        observation_MO=torch.cat([windows.observation_MO, seen_RTO.flatten(0, 1).to(device)]),
        observation_NT=torch.cat([windows.observation_NT, rows_RT]),
        chunk_NHA=torch.cat([windows.chunk_NHA, zeros]),
        padded_NH=torch.cat([windows.padded_NH, torch.ones_like(zeros[..., 0], dtype=torch.bool)]),
    )


def future_rows(newest_B: np.ndarray, end_B: np.ndarray, draw: np.random.Generator) -> np.ndarray:
    """(B,) rows after `newest_B` and before `end_B`, each equally likely; the last of the episode
    if none is later.

    Hindsight goals of play (BESO, Reuss et al., RSS 2023; Lynch et al., CoRL 2019).
    """
    return draw.integers(np.minimum(newest_B + 1, end_B - 1), end_B)


def chunks(
    index: WindowIndex, observation_MO: np.ndarray, action_MA: np.ndarray, anchor: int | None
) -> np.ndarray:
    """The chunk (N, H, A) of every window in physical units.

    Args:
        index: of the windows.
        observation_MO: recorded.
        action_MA: recorded.
        anchor: entry of the observation from which on the A entries stand that actions are relative
            to, as seen at the window's newest observed step; None leaves the actions as they are.
    """
    chunk_NHA = action_MA[index.action_NH]
    if anchor is None:
        return chunk_NHA
    return (
        chunk_NHA
        - observation_MO[index.observation_NT[:, -1], None, anchor : anchor + action_MA.shape[1]]
    )


def shuffled_batch(size: int, count: int, step: int, seed: int) -> np.ndarray:
    """(size,) windows out of `count` for update number `step`: an epoch is a permutation, its
    remainder dropped.

    A pure function of its arguments, so an interrupted run goes on with exactly the batches it
    would have had.
    """
    size = min(size, count)
    epoch, place = divmod(step, count // size)
    return _permutation(count, epoch, seed, 0)[place * size : (place + 1) * size]


def shuffled_span(first: int, size: int, count: int, seed: int, order: int) -> np.ndarray:
    """(size,) windows out of `count`, from place `first` on in an endless row of permutations, one
    per epoch.

    Nothing is dropped, so every window comes once per epoch even if batches of other sizes are cut
    from the row.

    Args:
        first: place in the row.
        size: windows.
        count: windows there are.
        seed: of the orders.
        order: which row; those of other numbers are independent.
    """
    epochs = range(first // count, (first + size - 1) // count + 1)
    row = [_permutation(count, epoch, seed, order) for epoch in epochs]
    start = first - epochs.start * count
    return np.concatenate([np.zeros(0, np.int64), *row])[start : start + size]


@lru_cache(maxsize=16)
def _permutation(count: int, epoch: int, seed: int, order: int) -> np.ndarray:
    number = RandomStream.DATA_ORDER + order * ORDER_SPACING + epoch
    return np.random.Generator(np.random.Philox(key=[seed, number])).permutation(count)
