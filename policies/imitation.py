"""Imitation: data split, new policy, training loss and validation loss. Torch side of `policies.pretrain`.

Shape suffixes: B batch, H horizon, A action, E episodes, N windows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.chunk_policy import Batch, ChunkPolicy
from policies.demonstrations import Demonstrations
from policies.load import new_module
from policies.normalize import MinMaxStatistics
from policies.policy_config import PolicyConfig
from policies.training import Objective, autocast, rng
from policies.windows import Windows, chunks, select_windows, shuffled_batch, window_index

_SPLIT, _VALIDATION = (1 << 61), (1 << 61) + 1
"""Numbers of the draws for the held-out episodes and, from the second on, for their noise, apart from the updates'."""
_VALIDATION_DRAWS = 4
"""Times that each held-out window is tried, with other noise."""
_VALIDATION_ROWS = 256
"""Rows per pass."""


class Split(NamedTuple):
    """Normalised windows to learn from, and those held out."""

    learned: Windows
    held_out: Windows


def held_out_episodes(count: int, fraction: float, seed: int) -> np.ndarray:
    """Episodes kept from training: `fraction` of them, rounded up, but never all."""
    number = min(count - 1, int(np.ceil(fraction * count)))
    return np.sort(rng(seed, _SPLIT).permutation(count)[:number])


def new_policy(data: Demonstrations, held_out: np.ndarray, sizes: PolicyConfig, seed: int) -> ChunkPolicy:
    """An untrained policy on the CPU, its normalisers fitted to the episodes that are not `held_out`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = new_module(sizes, data.card.shapes)
    observed = MinMaxStatistics(data.observation_MO.shape[1])
    for episode, (start, end) in enumerate(zip([0, *data.ends_E[:-1]], data.ends_E, strict=True)):
        if episode not in held_out:
            observed.update(data.observation_MO[start:end])
    module.normalize_observation.fit(observed)
    index = window_index(data.ends_E, sizes.n_obs_steps, sizes.horizon, sizes.n_action_steps)
    chunk_NHA = chunks(index, data.observation_MO, data.action_MA, module.anchor)
    module.normalize_action.fit(chunk_NHA[~np.isin(index.episode_N, held_out)])
    return module


def split_windows(data: Demonstrations, held_out: np.ndarray, module: ChunkPolicy, sizes: PolicyConfig) -> Split:
    """The windows of `data`, normalised, on the device of `module`."""
    learned = np.setdiff1d(np.arange(len(data.ends_E)), held_out)
    return Split(*(normalized_windows(data, module, sizes, chosen) for chosen in (learned, held_out)))


def normalized_windows(data: Demonstrations, module: ChunkPolicy, sizes: PolicyConfig, episodes: np.ndarray) -> Windows:
    """The windows of `episodes`, normalised as the policy does, on its device."""
    index = window_index(data.ends_E, sizes.n_obs_steps, sizes.horizon, sizes.n_action_steps)
    chunk_NHA = chunks(index, data.observation_MO, data.action_MA, module.anchor)
    return select_windows(
        index,
        module.normalize_observation(torch.from_numpy(data.observation_MO).to(module.device)),
        module.normalize_action(torch.from_numpy(chunk_NHA).to(module.device)),
        episodes,
        {name: torch.from_numpy(frames) for name, frames in data.sensors.items()},
        data.instruction_E,
    )


def imitation_objective(
    module: ChunkPolicy, windows: Windows, batch_size: int, seed: int, precision: str
) -> Objective[Batch]:
    """The family's own loss over the batch of each update.

    Args:
        module: the policy that learns.
        windows: normalised, on its device.
        batch_size: windows per update.
        seed: of order, noise and whatever else the loss draws.
        precision: `bf16` or `fp32`.
    """

    def batch(step: int) -> Batch:
        chosen_B = torch.from_numpy(shuffled_batch(batch_size, len(windows), step, seed))
        return windows.batch(chosen_B.to(windows.chunk_NHA.device))

    def loss(batch: Batch, step: int) -> Tensor:
        with autocast(precision, module.device):
            return module.loss(batch, rng(seed, step))

    return Objective(batch, loss)


@torch.no_grad()
def validation_loss(module: ChunkPolicy, windows: Windows, seed: int) -> float:
    """The same loss on held-out windows, each tried a few times, in fp32 and without dropout or random crops."""
    learning = module.training
    module.eval()
    tried_N = torch.arange(len(windows), device=windows.chunk_NHA.device).repeat(_VALIDATION_DRAWS)
    total = 0.0
    for number, chosen_B in enumerate(tried_N.split(_VALIDATION_ROWS)):
        error = module.loss(windows.batch(chosen_B), rng(seed, _VALIDATION + number))
        total += float(error) * len(chosen_B)
    module.train(learning)
    return total / len(tried_N)
