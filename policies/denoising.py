"""Learning to denoise: data split, new policy, training loss and validation loss. Torch side of `policies.pretrain`.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, M recorded steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.config import DiffusionPolicyConfig, TransformerConfig
from policies.demonstrations import Demonstrations
from policies.diffusion import DiffusionPolicy
from policies.generative import NoiseSchedule, cosine_schedule
from policies.normalize import MinMaxStatistics
from policies.training import Loss, autocast, rng
from policies.windows import Windows, chunks, select_windows, shuffled_batch, window_index

_SPLIT, _VALIDATION = (1 << 61), (1 << 61) + 1
"""Numbers of the draws for the held-out episodes and for their noise, apart from those of the updates."""
_VALIDATION_DRAWS = 4
"""Noise levels at which each held-out window is tried."""


class Split(NamedTuple):
    """Normalised windows to learn from, and those held out."""

    learned: Windows
    held_out: Windows


def held_out_episodes(count: int, fraction: float, seed: int) -> np.ndarray:
    """Episodes kept from training: `fraction` of them, rounded up, but never all."""
    number = min(count - 1, int(np.ceil(fraction * count)))
    return np.sort(rng(seed, _SPLIT).permutation(count)[:number])


def new_policy(data: Demonstrations, held_out: np.ndarray, sizes: DiffusionPolicyConfig, seed: int) -> DiffusionPolicy:
    """An untrained policy on the CPU, its normalisers fitted to the episodes that are not `held_out`."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = DiffusionPolicy(sizes, data.observation_MO.shape[1], data.action_MA.shape[1], data.card.anchor)
    observed = MinMaxStatistics(data.observation_MO.shape[1])
    for episode, (start, end) in enumerate(zip([0, *data.ends_E[:-1]], data.ends_E, strict=True)):
        if episode not in held_out:
            observed.update(data.observation_MO[start:end])
    module.normalize_observation.fit(observed)
    index = window_index(data.ends_E, sizes.n_obs_steps, sizes.horizon, sizes.n_action_steps)
    chunk_NHA = chunks(index, data.observation_MO, data.action_MA, module.anchor)
    module.normalize_action.fit(chunk_NHA[~np.isin(index.episode_N, held_out)])
    return module


def split_windows(data: Demonstrations, held_out: np.ndarray, module: DiffusionPolicy) -> Split:
    """The windows of `data`, normalised, on the device of `module`."""
    learned = np.setdiff1d(np.arange(len(data.ends_E)), held_out)
    return Split(*(normalized_windows(data, module, chosen) for chosen in (learned, held_out)))


def normalized_windows(data: Demonstrations, module: DiffusionPolicy, episodes: np.ndarray) -> Windows:
    """The windows of `episodes`, normalised as the policy does, on its device."""
    sizes, device = module.config, module.normalize_action.centre.device
    index = window_index(data.ends_E, sizes.n_obs_steps, sizes.horizon, sizes.n_action_steps)
    chunk_NHA = chunks(index, data.observation_MO, data.action_MA, module.anchor)
    return select_windows(
        index,
        module.normalize_observation(torch.from_numpy(data.observation_MO).to(device)),
        module.normalize_action(torch.from_numpy(chunk_NHA).to(device)),
        episodes,
    )


def denoising_loss(module: DiffusionPolicy, windows: Windows, batch_size: int, seed: int, precision: str) -> Loss:
    """Mean squared error of the predicted velocity at noise levels drawn uniformly, over the batch of each update.

    Args:
        module: the policy whose denoiser learns.
        windows: normalised, on its device.
        batch_size: windows per update.
        seed: of order, noise and noise levels.
        precision: `bf16` or `fp32`.
    """
    device = windows.chunk_NHA.device
    schedule = cosine_schedule(module.config.train_timesteps).to(device)

    def loss(step: int) -> Tensor:
        chosen_B = torch.from_numpy(shuffled_batch(batch_size, len(windows), step, seed)).to(device)
        return _velocity_error(module, windows, chosen_B, schedule, rng(seed, step), precision)

    return loss


@torch.no_grad()
def validation_loss(module: DiffusionPolicy, windows: Windows, seed: int) -> float:
    """The same error on held-out windows, each at a few noise levels, in fp32 and without dropout."""
    device = windows.chunk_NHA.device
    chosen_B = torch.arange(len(windows), device=device).repeat(_VALIDATION_DRAWS)
    schedule = cosine_schedule(module.config.train_timesteps).to(device)
    learning = module.training
    error = _velocity_error(module.eval(), windows, chosen_B, schedule, rng(seed, _VALIDATION), "fp32")
    module.train(learning)
    return float(error)


def _velocity_error(
    module: DiffusionPolicy,
    windows: Windows,
    chosen_B: Tensor,
    schedule: NoiseSchedule,
    draw: np.random.Generator,
    precision: str,
) -> Tensor:
    device = chosen_B.device
    observation_BTO, clean_BHA = windows.batch(chosen_B)
    timestep_B = torch.from_numpy(draw.integers(0, module.config.train_timesteps, len(chosen_B))).to(device)
    noise_BHA = torch.from_numpy(draw.standard_normal(tuple(clean_BHA.shape), dtype=np.float32)).to(device)
    noisy_BHA, velocity_BHA = schedule.diffuse(clean_BHA, noise_BHA, timestep_B)
    with autocast(precision, device), _repeatable_dropout(module, draw, device):
        predicted_BHA = module.denoiser(noisy_BHA, timestep_B, observation_BTO)
    return mse_loss(predicted_BHA.float(), velocity_BHA)


@contextmanager
def _repeatable_dropout(module: DiffusionPolicy, draw: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Draws torch's random numbers from `draw` where the network drops units, so that an update can be repeated."""
    if not (module.training and isinstance(module.config.network, TransformerConfig)):
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(draw.integers(1 << 62)))
        yield
