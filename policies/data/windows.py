"""Training windows of episodes: the observation at one step and the chunk to predict.

Padding repeats the first and last step of the episode, as in diffusion_policy's `SequenceSampler`
with `pad_before = n_obs_steps - 1` and `pad_after = n_action_steps - 1`, so that the first step of
an episode can be the newest of a window and the last action can be executed.

Shape suffixes: N windows, T observed steps, H horizon, O observation, A action, B batch, M recorded
steps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.data.frames import FrameSource
from policies.policy import Batch, ObservationTensors
from policies.random_streams import ORDER_SPACING, RandomStream
from robots.errors import HandoffError

_DIGEST_IMAGES = 1000
"""Maximum number of images of a camera in the digest; hashing all could take longer than
training."""
_DIGEST_ROWS = 50
"""Images of the digest that are in memory at the same time."""
_KEPT_ORDERS = 2048
"""Largest number of data orders whose newest permutation is kept."""


class WindowIndex(NamedTuple):
    """Indices of the recorded steps of each window."""

    observation_NT: np.ndarray
    action_NH: np.ndarray
    padded_NH: np.ndarray
    """True for actions outside their episode, which repeat its first or last action."""
    episode_N: np.ndarray
    end_N: np.ndarray
    """Index after the last step of each window's episode."""

    def select(self, episodes: Sequence[int] | np.ndarray) -> WindowIndex:
        """The windows of `episodes`."""
        selected = np.isin(self.episode_N, episodes)
        return WindowIndex(*(part[selected] for part in self))


def window_index(
    ends: np.ndarray, n_obs_steps: int, horizon: int, n_action_steps: int, stride: int = 1
) -> WindowIndex:
    """All windows of the episodes that end (exclusively) at `ends`.

    Args:
        ends: (E,) increasing.
        n_obs_steps: T; the newest observation step is step T-1 of the chunk.
        horizon: H.
        n_action_steps: actions executed per chunk.
        stride: steps between two observation steps.

    Raises:
        HandoffError: the horizon is too short for the executed actions, or there is no window.
    """
    if not 1 <= n_obs_steps <= n_obs_steps - 1 + n_action_steps <= horizon:
        raise HandoffError(
            f"windows: {n_action_steps} actions from index {n_obs_steps - 1} on do not fit in a horizon of {horizon}."
        )
    starts = [0, *ends[:-1]]
    parts = [
        _episode_windows(
            number, int(start), int(end), (n_obs_steps, horizon, n_action_steps, stride)
        )
        for number, (start, end) in enumerate(zip(starts, ends, strict=True))
    ]
    index = WindowIndex(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    if not len(index.episode_N):
        raise HandoffError(
            f"windows: none in {len(ends)} episodes, all are shorter than the horizon of {horizon} steps."
        )
    return index


def shortest_episode(n_obs_steps: int, horizon: int, n_action_steps: int, stride: int = 1) -> int:
    """Fewest steps of an episode that has a window, with any stride; see `window_index`."""
    return max(1, horizon - n_action_steps - (n_obs_steps - 1) + 1)


def episode_windows(
    length: int, n_obs_steps: int, horizon: int, n_action_steps: int, stride: int = 1
) -> WindowIndex:
    """The windows, possibly none, of one episode of `length` steps; see `window_index`."""
    return _episode_windows(0, 0, length, (n_obs_steps, horizon, n_action_steps, stride))


def _episode_windows(
    number: int, start: int, end: int, sizes: tuple[int, int, int, int]
) -> WindowIndex:
    n_obs_steps, horizon, n_action_steps, stride = sizes
    firsts = np.arange(start - (n_obs_steps - 1), end - horizon + n_action_steps)
    unclipped_NH = firsts[:, None] + np.arange(horizon)
    rows_NH = np.clip(unclipped_NH, start, end - 1)
    number_N, end_N = (np.full(len(rows_NH), value) for value in (number, end))
    observed_NT = observed_rows(firsts + n_obs_steps - 1, start, n_obs_steps, stride)
    return WindowIndex(observed_NT, rows_NH, rows_NH != unclipped_NH, number_N, end_N)


def observed_rows(
    newest_N: np.ndarray, start: int | np.ndarray, n_obs_steps: int, stride: int
) -> np.ndarray:
    """Indices (N, T) of the observation steps, oldest first, from the episode's first step on.

    Args:
        newest_N: indices of the newest steps.
        start: index of the first step of the episode, one or (N,).
        n_obs_steps: T.
        stride: steps between two observation steps.
    """
    back_T = stride * np.arange(1 - n_obs_steps, 1)
    return np.maximum(newest_N[:, None] + back_T, np.reshape(start, (-1, 1)))


@dataclass(frozen=True)
class Windows:
    """Normalised recorded steps on the training device, with the indices of each window."""

    observation_MO: Tensor
    observation_NT: Tensor
    """Indices of the observation steps, on the CPU, where frames are gathered."""
    chunk_NHA: Tensor
    padded_NH: Tensor
    """True for actions outside the window's episode."""
    sensors: Mapping[str, FrameSource] = field(default_factory=dict)
    """Frames of every recorded step, per camera and point cloud."""
    instruction_N: tuple[str, ...] = ()
    """N instructions, those of the newest observed steps; empty for policies that are not
    language-conditioned."""
    goal_end_N: Tensor | None = None
    """Index after the last step of each window's episode, on the CPU, for policies whose goal is a
    later observation of the episode; None for others."""
    weight_N: np.ndarray | None = None
    """Weight of every window's episode; None if all are equal."""
    ending_NG: Tensor | None = None
    """What `policies.imitation.end_prediction` predicts of every window; None for nothing."""
    estimated_MG: Tensor | None = None
    """Recorded values of what the policy estimates, mapped to [-1, 1]; None for nothing."""
    executed_NHA: Tensor | None = None
    """Chunks of the executed actions, of which decided ones are shown; None for `chunk_NHA`."""

    def __len__(self) -> int:
        return len(self.chunk_NHA)

    @property
    def frame_bytes(self) -> int:
        """Size of the pictures of one window [bytes]."""
        pictures = (frames.step_shape for frames in self.sensors.values())
        pixels = sum(prod(shape) for shape in pictures if len(shape) == 3)
        return self.observation_NT.shape[1] * pixels

    def batch(
        self,
        windows_B: Tensor,
        generator: np.random.Generator | None = None,
        frames: Mapping[str, Tensor] | None = None,
    ) -> Batch:
        """Training batch of the windows `windows_B`, on the device of the recorded steps; for the
        arguments see `observations`."""
        observed, device_windows_B = (
            self.observations(windows_B, generator, frames),
            windows_B.to(self.chunk_NHA.device),
        )
        return Batch(
            observed,
            self.chunk_NHA[device_windows_B],
            self.padded_NH[device_windows_B],
            None if self.ending_NG is None else self.ending_NG[device_windows_B],
            None if self.estimated_MG is None else self.estimated_MG[self._observed(windows_B)],
            None if self.executed_NHA is None else self.executed_NHA[device_windows_B],
        )

    def observations(
        self,
        windows_B: Tensor,
        generator: np.random.Generator | None = None,
        frames: Mapping[str, Tensor] | None = None,
    ) -> ObservationTensors:
        """Observations of the windows `windows_B`.

        Args:
            windows_B: window indices, preferably on the CPU, which avoids a GPU synchronisation.
            generator: random generator of the goals; required by windows with goals.
            frames: result of `frames` for the same windows; computed here by default.

        Raises:
            HandoffError: goals must be drawn, but there is no generator.
        """
        device, windows_B = self.chunk_NHA.device, windows_B.cpu()
        cpu_frames = self.frames(windows_B) if frames is None else frames
        sensors = {name: steps.to(device, non_blocking=True) for name, steps in cpu_frames.items()}
        rows_BT = self.observation_NT[windows_B]
        window_list = windows_B.tolist() if self.instruction_N else []
        instructions = tuple(self.instruction_N[window] for window in window_list)
        goal_BO = None
        if self.goal_end_N is not None:
            if generator is None:
                raise HandoffError(
                    "windows: goals are drawn from later observations, but no generator was given."
                )
            goal_B = future_rows(
                rows_BT[:, -1].numpy(), self.goal_end_N[windows_B].numpy(), generator
            )
            goal_BO = self.observation_MO[torch.from_numpy(goal_B).to(device)]
        return ObservationTensors(
            self.observation_MO[self._observed(windows_B)], sensors, instructions, goal_BO
        )

    def _observed(self, windows_B: Tensor) -> Tensor:
        """Rows (B, T) of the observed steps, on the device."""
        return self.observation_NT[windows_B.cpu()].to(self.chunk_NHA.device)

    def frames(self, windows_B: Tensor) -> dict[str, Tensor]:
        """Images and point clouds of the windows `windows_B`, on the CPU, pinned if the device is a
        GPU."""
        pinned = self.chunk_NHA.device.type == "cuda"
        return gather_frames(self.sensors, self.observation_NT[windows_B], pinned)

    def digest(self) -> str:
        """Digest (hex sha256) of the windows' vectors, instructions and weights, and of up to a
        thousand evenly spread frames per sensor."""
        digest = hashlib.sha256()
        for tensor in (self.observation_MO, self.observation_NT, self.chunk_NHA):
            digest.update(tensor.cpu().contiguous().numpy().tobytes())
        for name, frames in sorted(self.sensors.items()):
            rows = torch.linspace(0, len(frames) - 1, min(len(frames), _DIGEST_IMAGES)).long()
            digest.update(name.encode())
            for part in rows.split(_DIGEST_ROWS):
                digest.update(frames.steps(part).numpy().data)
        if self.estimated_MG is not None:
            digest.update(self.estimated_MG.cpu().contiguous().numpy().tobytes())
        if self.executed_NHA is not None:
            digest.update(self.executed_NHA.cpu().contiguous().numpy().tobytes())
        digest.update("\n".join(self.instruction_N).encode())
        if self.weight_N is not None:
            digest.update(self.weight_N.tobytes())
        return digest.hexdigest()


def gather_frames(
    sensors: Mapping[str, FrameSource], rows_BT: Tensor, pinned: bool = False
) -> dict[str, Tensor]:
    """Images and point clouds of the steps `rows_BT`, on the CPU.

    Args:
        sensors: frames by camera and point cloud.
        rows_BT: indices of recorded steps.
        pinned: whether to use pinned memory.

    Raises:
        HandoffError: streamed frames cannot be read.
    """
    return {name: frames.steps(rows_BT, pinned=pinned) for name, frames in sensors.items()}


def append_states(
    windows: Windows, states_RTO: Tensor, instructions: Sequence[str] = ()
) -> Windows:
    """Appends states without actions to `windows`, for uses that need observations only.

    Args:
        windows: windows with vectors only, without sensors and goals.
        states_RTO: R normalised observation histories. Their chunks are zeros and marked as padded.
        instructions: R sentences, for windows that have some.

    Raises:
        HandoffError: windows with instructions and states without, or the other way round.
    """
    if len(instructions) != (len(states_RTO) if windows.instruction_N else 0):
        raise HandoffError(
            f"windows: {len(instructions)} instructions for {len(states_RTO)} states behind "
            f"{len(windows.instruction_N)} instructions of windows, expected one for every state, or none at all."
        )
    count, history = states_RTO.shape[:2]
    device, zeros = (
        windows.chunk_NHA.device,
        windows.chunk_NHA.new_zeros(count, *windows.chunk_NHA.shape[1:]),
    )
    rows_RT = torch.arange(count * history).view(count, history) + len(windows.observation_MO)
    return Windows(
        observation_MO=torch.cat([windows.observation_MO, states_RTO.flatten(0, 1).to(device)]),
        observation_NT=torch.cat([windows.observation_NT, rows_RT]),
        chunk_NHA=torch.cat([windows.chunk_NHA, zeros]),
        padded_NH=torch.cat([windows.padded_NH, torch.ones_like(zeros[..., 0], dtype=torch.bool)]),
        instruction_N=(*windows.instruction_N, *instructions),
    )


def future_rows(
    newest_B: np.ndarray, end_B: np.ndarray, generator: np.random.Generator
) -> np.ndarray:
    """Indices (B,) drawn uniformly from after `newest_B` to before `end_B`; the episode's last step
    if none is later.

    Hindsight goals of play (BESO, Reuss et al., RSS 2023; Lynch et al., CoRL 2019).
    """
    return generator.integers(np.minimum(newest_B + 1, end_B - 1), end_B)


def chunks(
    index: WindowIndex, observation_MO: np.ndarray, action_MA: np.ndarray, anchor: int | None
) -> np.ndarray:
    """The chunk (N, H, A) of every window in physical units.

    Args:
        index: indices of the windows.
        observation_MO: recorded observations.
        action_MA: recorded actions.
        anchor: first of the A observation entries that actions are relative to, at the window's
            newest observation step; None leaves actions absolute.
    """
    chunk_NHA = action_MA[index.action_NH]
    if anchor is None:
        return chunk_NHA
    return (
        chunk_NHA
        - observation_MO[index.observation_NT[:, -1], None, anchor : anchor + action_MA.shape[1]]
    )


def shuffled_batch(size: int, count: int, step: int, seed: int) -> np.ndarray:
    """Window indices (size,) below `count` for update `step`; an epoch is a permutation whose
    remainder is dropped.

    A pure function of its arguments, so a resumed run continues with the same batches.
    """
    size = min(size, count)
    epoch, batch = divmod(step, count // size)
    return _permutation(count, epoch, seed, 0)[batch * size : (batch + 1) * size]


def shuffled_span(first: int, size: int, count: int, seed: int, order: int) -> np.ndarray:
    """Window indices (size,) below `count`, from position `first` of an endless sequence of
    permutations, one per epoch.

    Nothing is dropped, so every window occurs once per epoch, whatever the batch sizes.

    Args:
        first: position in the sequence.
        size: number of windows to return.
        count: number of windows of the store.
        seed: seed of the data order.
        order: number of the sequence; different numbers give independent ones.
    """
    epochs = range(first // count, (first + size - 1) // count + 1)
    sequence = [_permutation(count, epoch, seed, order) for epoch in epochs]
    start = first - epochs.start * count
    return np.concatenate([np.zeros(0, np.int64), *sequence])[start : start + size]


@lru_cache(maxsize=_KEPT_ORDERS)
def _newest_permutation(seed: int, order: int) -> dict[tuple[int, int], np.ndarray]:
    """The newest permutation of an order by its count and epoch. A mixture uses many orders at the
    same time, each of which needs one permutation for many batches."""
    return {}


def _permutation(count: int, epoch: int, seed: int, order: int) -> np.ndarray:
    newest = _newest_permutation(seed, order)
    permutation = newest.get((count, epoch))
    if permutation is None:
        number = RandomStream.DATA_ORDER + order * ORDER_SPACING + epoch
        permutation = np.random.Generator(np.random.Philox(key=[seed, number])).permutation(count)
        newest.clear()
        newest[count, epoch] = permutation
    return permutation
