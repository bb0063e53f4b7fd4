"""Noise schedules and samplers over tensors, on top of diffusers' schedulers.

The network predicts the velocity v = alpha * noise - sigma * clean (Salimans and Ho 2022), where a sample at level k is
x = alpha[k] * clean + sigma[k] * noise. At the last level alpha is almost 0, so that sampling starts from noise alone
and one step from there predicts the clean chunk; hence `trailing` timesteps, which include that level.

DDIM with eta = 0 is unrolled here with diffusers' coefficients as plain numbers: its own `step` looks tensors up by
timestep, which an exported graph would have to carry. A test holds the two equal.

Shape suffixes: B batch, H horizon, A action, K noise levels.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from robots.errors import HandoffError

Denoise = Callable[[Tensor, Tensor], Tensor]
"""(noisy (B, H, A), timestep (B,)) to velocity (B, H, A)."""


class NoiseSchedule(NamedTuple):
    """Share of signal and of noise at every level; squares sum to 1."""

    alpha_K: Tensor
    sigma_K: Tensor

    def diffuse(self, clean_BHA: Tensor, noise_BHA: Tensor, timestep_B: Tensor) -> tuple[Tensor, Tensor]:
        """The noisy chunk and the velocity there, each (B, H, A)."""
        alpha, sigma = self.alpha_K[timestep_B, None, None], self.sigma_K[timestep_B, None, None]
        return alpha * clean_BHA + sigma * noise_BHA, alpha * noise_BHA - sigma * clean_BHA

    def to(self, device: torch.device) -> NoiseSchedule:
        """The same on `device`."""
        return NoiseSchedule(self.alpha_K.to(device), self.sigma_K.to(device))


def cosine_schedule(timesteps: int) -> NoiseSchedule:
    """The squared-cosine schedule (Nichol and Dhariwal 2021) with `timesteps` levels."""
    from diffusers import DDPMScheduler

    alpha_bar_K = DDPMScheduler(timesteps, beta_schedule="squaredcos_cap_v2").alphas_cumprod
    return NoiseSchedule(alpha_bar_K.sqrt(), (1.0 - alpha_bar_K).sqrt())


class DdimStep(NamedTuple):
    """One deterministic step, from a level to the next lower one of the sampler's grid."""

    timestep: int
    alpha: float
    sigma: float
    next_alpha: float
    next_sigma: float

    def apply(self, noisy: Tensor, velocity: Tensor, clip: float) -> Tensor:
        """The sample at the next level, as diffusers' `DDIMScheduler.step` with `clip_sample` works it out."""
        clean = (self.alpha * noisy - self.sigma * velocity).clamp(-clip, clip)
        noise = self.sigma * noisy + self.alpha * velocity
        return self.next_alpha * clean + self.next_sigma * noise


def ddim_steps(timesteps: int, steps: int) -> tuple[DdimStep, ...]:
    """The grid of a sampler with `steps` steps from the noisiest level to the clean sample.

    Raises:
        HandoffError: `steps` does not divide `timesteps`.
    """
    from diffusers import DDIMScheduler

    if not 1 <= steps <= timesteps or timesteps % steps:
        raise HandoffError(f"sampler: {steps} steps, expected a divisor of the schedule's {timesteps} levels.")
    scheduler = DDIMScheduler(timesteps, beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing")
    scheduler.set_timesteps(steps)
    levels = [int(level) for level in scheduler.timesteps]
    alpha_bars = [float(scheduler.alphas_cumprod[level]) for level in levels]
    following = [*alpha_bars[1:], float(scheduler.final_alpha_cumprod)]
    return tuple(
        DdimStep(level, here**0.5, (1.0 - here) ** 0.5, there**0.5, (1.0 - there) ** 0.5)
        for level, here, there in zip(levels, alpha_bars, following, strict=True)
    )


def ddim_sample(denoise: Denoise, noise_BHA: Tensor, steps: Sequence[DdimStep], clip: float) -> Tensor:
    """The clean chunk (B, H, A), normalised, that the probability flow reaches from `noise_BHA`."""
    sample_BHA = noise_BHA
    for step in steps:
        timestep_B = torch.full((noise_BHA.shape[0],), step.timestep, device=noise_BHA.device)
        sample_BHA = step.apply(sample_BHA, denoise(sample_BHA, timestep_B), clip)
    return sample_BHA


def ddpm_sample(denoise: Denoise, noise_BHA: Tensor, timesteps: int, clip: float, generator: torch.Generator) -> Tensor:
    """The clean chunk (B, H, A), normalised, by ancestral sampling over all levels (Ho et al. 2020)."""
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(
        timesteps, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction", clip_sample_range=clip
    )
    sample_BHA = noise_BHA
    for timestep in scheduler.timesteps.tolist():
        timestep_B = torch.full((noise_BHA.shape[0],), timestep, device=noise_BHA.device)
        velocity_BHA = denoise(sample_BHA, timestep_B)
        sample_BHA = scheduler.step(velocity_BHA, timestep, sample_BHA, generator, return_dict=False)[0]
    return sample_BHA
