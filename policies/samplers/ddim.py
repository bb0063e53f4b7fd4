"""Diffusion with the squared-cosine schedule: DDIM and DDPM, on top of diffusers' schedulers.

Schedules and timesteps come from diffusers' `DDPMScheduler` and `DDIMScheduler`. Sampling of chains
is implemented here (`DiffusionGrid`, and for the other methods in `policies.samplers.flow_matching`
and `policies.samplers.edm`): diffusers' `step` returns no mean, standard deviation or
log-probability, is stateful, and takes one timestep for the whole batch. Tests compare the results
with diffusers' DDPM, DDIM, FlowMatchEulerDiscrete, FlowMatchHeunDiscrete, EDMEuler and
EulerAncestralDiscrete schedulers.

By default the network predicts the velocity v = alpha * noise - sigma * clean (Salimans
and Ho 2022), where a sample at timestep k is x = alpha[k] * clean + sigma[k] * noise. At the last
timestep alpha is almost 0, so that sampling starts from pure noise and a single step predicts the
clean chunk; hence the `trailing` timesteps, which include it.

DDIM with eta = 0 is unrolled with diffusers' coefficients as plain numbers: diffusers' `step` looks
tensors up by timestep, which would add tables to an exported graph. A test compares the two.

Shape suffixes: B batch, H horizon, A action, K noise levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from policies.samplers.chain import Denoise, Gaussian, Grid
from robots.errors import HandoffError

Prediction = Literal["v", "epsilon", "sample"]
"""Output of the network: velocity alpha * noise - sigma * clean, noise, or clean chunk."""


def clean_and_noise(
    prediction: Prediction, output_BHA: Tensor, noisy_BHA: Tensor, alpha: Tensor, sigma: Tensor
) -> tuple[Tensor, Tensor]:
    """Converts the network's output to clean chunk and noise, each (B, H, A).

    With epsilon prediction the clean chunk is divided by alpha, which is 5e-4 at the last of 100
    cosine timesteps, so it must be clipped.
    """
    match prediction:
        case "v":
            return alpha * noisy_BHA - sigma * output_BHA, sigma * noisy_BHA + alpha * output_BHA
        case "epsilon":
            return (noisy_BHA - sigma * output_BHA) / alpha, output_BHA
        case "sample":
            return output_BHA, (noisy_BHA - alpha * output_BHA) / sigma


def guide(conditional: Denoise, unconditional: Denoise, scale: float) -> Denoise:
    """Classifier-free guidance (Ho and Salimans 2022): unconditional + scale * (conditional -
    unconditional).

    A scale of 1 evaluates the conditional network alone and 0 the unconditional one, which halves
    the cost.
    """
    if scale in (0.0, 1.0):
        return conditional if scale else unconditional

    def denoise(noisy_BHA: Tensor, level_B: Tensor) -> Tensor:
        return torch.lerp(unconditional(noisy_BHA, level_B), conditional(noisy_BHA, level_B), scale)

    return denoise


class NoiseSchedule(NamedTuple):
    """Coefficients of signal (alpha) and noise (sigma) at every timestep; their squares sum to
    1."""

    alpha_K: Tensor
    sigma_K: Tensor

    def diffuse(
        self, clean_BHA: Tensor, noise_BHA: Tensor, timestep_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The noisy chunk and its velocity target, each (B, H, A)."""
        alpha, sigma = self.alpha_K[timestep_B, None, None], self.sigma_K[timestep_B, None, None]
        return alpha * clean_BHA + sigma * noise_BHA, alpha * noise_BHA - sigma * clean_BHA

    def to(self, device: torch.device) -> NoiseSchedule:
        """A copy on `device`."""
        return NoiseSchedule(self.alpha_K.to(device), self.sigma_K.to(device))


def cosine_schedule(timesteps: int) -> NoiseSchedule:
    """The squared-cosine schedule (Nichol and Dhariwal 2021) with `timesteps` steps."""
    from diffusers import DDPMScheduler

    alpha_bar_K = DDPMScheduler(timesteps, beta_schedule="squaredcos_cap_v2").alphas_cumprod
    return NoiseSchedule(alpha_bar_K.sqrt(), (1.0 - alpha_bar_K).sqrt())


class DdimStep(NamedTuple):
    """One deterministic step, from one timestep of the sampler to the next."""

    timestep: int
    alpha: float
    sigma: float
    next_alpha: float
    next_sigma: float

    def apply(self, noisy: Tensor, velocity: Tensor, clip: float) -> Tensor:
        """The sample at the next timestep, as in diffusers' `DDIMScheduler.step` with
        `clip_sample`."""
        clean = (self.alpha * noisy - self.sigma * velocity).clamp(-clip, clip)
        if self.next_sigma == 0.0:
            # The last step adds no noise, and an exported graph would multiply it by 0.
            return self.next_alpha * clean
        noise = self.sigma * noisy + self.alpha * velocity
        return self.next_alpha * clean + self.next_sigma * noise


def ddim_steps(timesteps: int, steps: int) -> tuple[DdimStep, ...]:
    """Steps of a DDIM sampler from the last timestep to the clean sample.

    Raises:
        HandoffError: `steps` does not divide `timesteps`.
    """
    from diffusers import DDIMScheduler

    if not 1 <= steps <= timesteps or timesteps % steps:
        raise HandoffError(
            f"sampler: {steps} steps, expected a divisor of the schedule's {timesteps} timesteps."
        )
    scheduler = DDIMScheduler(
        timesteps, beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing"
    )
    scheduler.set_timesteps(steps)
    timestep_values = [int(timestep) for timestep in scheduler.timesteps]
    alpha_bars = [float(scheduler.alphas_cumprod[timestep]) for timestep in timestep_values]
    next_alpha_bars = [*alpha_bars[1:], float(scheduler.final_alpha_cumprod)]
    return tuple(
        DdimStep(
            timestep,
            alpha_bar**0.5,
            (1.0 - alpha_bar) ** 0.5,
            next_alpha_bar**0.5,
            (1.0 - next_alpha_bar) ** 0.5,
        )
        for timestep, alpha_bar, next_alpha_bar in zip(
            timestep_values, alpha_bars, next_alpha_bars, strict=True
        )
    )


def ddim_sample(
    denoise: Denoise, noise_BHA: Tensor, steps: Sequence[DdimStep], clip: float
) -> Tensor:
    """The clean normalised chunk (B, H, A), sampled from `noise_BHA` with DDIM."""
    sample_BHA = noise_BHA
    for step in steps:
        timestep_B = torch.full((noise_BHA.shape[0],), step.timestep, device=noise_BHA.device)
        sample_BHA = step.apply(sample_BHA, denoise(sample_BHA, timestep_B), clip)
    return sample_BHA


@dataclass(frozen=True)
class DiffusionGrid(Grid):
    """Steps of DDIM with any eta, from DDIM (0) to DDPM (1) (Song et al. 2021, equation 12)."""

    timestep_K: Tensor
    alpha_K: Tensor
    sigma_K: Tensor
    next_alpha_K: Tensor
    next_sigma_K: Tensor
    std_K: Tensor
    """Standard deviation of the noise that a step adds."""
    clip: float
    """Bound on the clean chunk predicted at every step [normalised units]."""
    prediction: Prediction = "v"
    renoise: bool = False
    """Whether to recompute the noise from the clipped clean chunk, as DDPM's posterior and DPPO's
    DDIM do; diffusers' DDIM does not. It makes no difference without clipping."""

    def transition(
        self, denoise: Denoise, sample_BHA: Tensor, step_B: Tensor, active_B: Tensor
    ) -> Gaussian:
        """The Gaussian of the next sample; see `Grid.transition`."""
        alpha, sigma = self.alpha_K[step_B, None, None], self.sigma_K[step_B, None, None]
        output_BHA = denoise(sample_BHA, self.timestep_K[step_B])
        clean_BHA, noise_BHA = clean_and_noise(
            self.prediction, output_BHA, sample_BHA, alpha, sigma
        )
        clean_BHA = clean_BHA.clamp(-self.clip, self.clip)
        if self.renoise:
            noise_BHA = (sample_BHA - alpha * clean_BHA) / sigma
        std_B = self.std_K[step_B] * active_B
        noise_scale_B = (self.next_sigma_K[step_B] ** 2 - std_B**2).clamp(min=0.0).sqrt()
        mean_BHA = (
            self.next_alpha_K[step_B, None, None] * clean_BHA
            + noise_scale_B[:, None, None] * noise_BHA
        )
        return Gaussian(mean_BHA, std_B)


def ddim_grid(
    timesteps: int,
    steps: int,
    eta: float,
    clip: float,
    prediction: Prediction = "v",
    renoise: bool = False,
) -> DiffusionGrid:
    """DDIM in `steps` steps over the cosine schedule.

    Args:
        timesteps: timesteps of the schedule.
        steps: sampler steps; a divisor of `timesteps`.
        eta: 0 for the deterministic sampler, 1 for as much noise as DDPM.
        clip: bound on the clean chunk.
        prediction: output of the network.
        renoise: see `DiffusionGrid`.

    Raises:
        HandoffError: `steps` does not divide `timesteps`, or eta lies outside [0, 1].
    """
    if not 0.0 <= eta <= 1.0:
        raise HandoffError(f"sampler: eta is {eta}, expected 0 (DDIM) to 1 (DDPM).")
    grid_steps = ddim_steps(timesteps, steps)
    numbers = torch.tensor([step[1:] for step in grid_steps], dtype=torch.float64)
    alpha_K, sigma_K, next_alpha_K, next_sigma_K = numbers.T
    std_K = eta * next_sigma_K / sigma_K * (1.0 - (alpha_K / next_alpha_K) ** 2).sqrt()
    coefficients = (
        value.float() for value in (alpha_K, sigma_K, next_alpha_K, next_sigma_K, std_K)
    )
    timestep_K = torch.tensor([step.timestep for step in grid_steps])
    return DiffusionGrid(
        timestep_K, *coefficients, clip=clip, prediction=prediction, renoise=renoise
    )
