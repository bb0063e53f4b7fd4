"""Noise schedules and samplers over tensors, on top of diffusers' schedulers.

Schedules and timesteps come from diffusers' `DDPMScheduler` and `DDIMScheduler`. Steps that leave a
chain behind are
ours (`DiffusionGrid` here, the other two families in `policies.samplers.flow_matching` and
`policies.samplers.edm`): diffusers' `step` returns neither mean, standard deviation nor
log-probability, keeps a counter, and takes one timestep for the whole batch. Tests hold ours equal
to its DDPM, DDIM, FlowMatchEulerDiscrete, FlowMatchHeunDiscrete, EDMEuler and
EulerAncestralDiscrete schedulers.

Unless said otherwise the network predicts the velocity v = alpha * noise - sigma * clean (Salimans
and Ho 2022), where a sample at level k is x = alpha[k] * clean + sigma[k] * noise. At the last
level alpha is almost 0, so that sampling starts from noise alone and one step from there predicts
the clean chunk; hence `trailing` timesteps, which include that level.

DDIM with eta = 0 is unrolled here with diffusers' coefficients as plain numbers: its own `step`
looks tensors up by timestep, which an exported graph would have to carry. A test holds the two
equal.

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
"""What the network answers: velocity alpha * noise - sigma * clean, noise, or clean chunk."""


def clean_and_noise(
    prediction: Prediction, answer_BHA: Tensor, noisy_BHA: Tensor, alpha: Tensor, sigma: Tensor
) -> tuple[Tensor, Tensor]:
    """Clean chunk and noise, each (B, H, A), that the network's answer means.

    From noise, the clean chunk comes by a division by alpha, which is 5e-4 at the last of 100
    cosine levels: clip it.
    """
    match prediction:
        case "v":
            return alpha * noisy_BHA - sigma * answer_BHA, sigma * noisy_BHA + alpha * answer_BHA
        case "epsilon":
            return (noisy_BHA - sigma * answer_BHA) / alpha, answer_BHA
        case "sample":
            return answer_BHA, (noisy_BHA - alpha * answer_BHA) / sigma


def guide(conditional: Denoise, unconditional: Denoise, scale: float) -> Denoise:
    """Classifier-free guidance (Ho and Salimans 2022): unconditional + scale * (conditional -
    unconditional).

    A scale of 1 is the conditional network alone and 0 the unconditional one, exactly and at half
    the price.
    """
    if scale in (0.0, 1.0):
        return conditional if scale else unconditional

    def denoise(noisy_BHA: Tensor, level_B: Tensor) -> Tensor:
        return torch.lerp(unconditional(noisy_BHA, level_B), conditional(noisy_BHA, level_B), scale)

    return denoise


class NoiseSchedule(NamedTuple):
    """Share of signal and of noise at every level; squares sum to 1."""

    alpha_K: Tensor
    sigma_K: Tensor

    def diffuse(
        self, clean_BHA: Tensor, noise_BHA: Tensor, timestep_B: Tensor
    ) -> tuple[Tensor, Tensor]:
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
        """The sample at the next level, as diffusers' `DDIMScheduler.step` with `clip_sample` works
        it out."""
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
        raise HandoffError(
            f"sampler: {steps} steps, expected a divisor of the schedule's {timesteps} levels."
        )
    scheduler = DDIMScheduler(
        timesteps, beta_schedule="squaredcos_cap_v2", timestep_spacing="trailing"
    )
    scheduler.set_timesteps(steps)
    levels = [int(level) for level in scheduler.timesteps]
    alpha_bars = [float(scheduler.alphas_cumprod[level]) for level in levels]
    following = [*alpha_bars[1:], float(scheduler.final_alpha_cumprod)]
    return tuple(
        DdimStep(level, here**0.5, (1.0 - here) ** 0.5, there**0.5, (1.0 - there) ** 0.5)
        for level, here, there in zip(levels, alpha_bars, following, strict=True)
    )


def ddim_sample(
    denoise: Denoise, noise_BHA: Tensor, steps: Sequence[DdimStep], clip: float
) -> Tensor:
    """The clean chunk (B, H, A), normalised, that the probability flow reaches from `noise_BHA`."""
    sample_BHA = noise_BHA
    for step in steps:
        timestep_B = torch.full((noise_BHA.shape[0],), step.timestep, device=noise_BHA.device)
        sample_BHA = step.apply(sample_BHA, denoise(sample_BHA, timestep_B), clip)
    return sample_BHA


@dataclass(frozen=True)
class DiffusionGrid(Grid):
    """Steps of DDPM, of DDIM, and of everything between (Song et al. 2021, equation 12)."""

    timestep_K: Tensor
    alpha_K: Tensor
    sigma_K: Tensor
    next_alpha_K: Tensor
    next_sigma_K: Tensor
    std_K: Tensor
    """Of the noise that a step adds."""
    clip: float
    """Bound on every clean chunk that a step works out [normalised units]."""
    prediction: Prediction = "v"
    renoise: bool = False
    """Works the noise out again from the clipped clean chunk, as DDPM's posterior and DPPO's DDIM
    do; diffusers' DDIM does not. The same wherever nothing is clipped."""

    def transition(
        self, denoise: Denoise, sample_BHA: Tensor, step_B: Tensor, active_B: Tensor
    ) -> Gaussian:
        """The Gaussian of the next sample; see `Grid.transition`."""
        alpha, sigma = self.alpha_K[step_B, None, None], self.sigma_K[step_B, None, None]
        answer_BHA = denoise(sample_BHA, self.timestep_K[step_B])
        clean_BHA, noise_BHA = clean_and_noise(
            self.prediction, answer_BHA, sample_BHA, alpha, sigma
        )
        clean_BHA = clean_BHA.clamp(-self.clip, self.clip)
        if self.renoise:
            noise_BHA = (sample_BHA - alpha * clean_BHA) / sigma
        std_B = self.std_K[step_B] * active_B
        kept_B = (self.next_sigma_K[step_B] ** 2 - std_B**2).clamp(min=0.0).sqrt()
        mean_BHA = (
            self.next_alpha_K[step_B, None, None] * clean_BHA + kept_B[:, None, None] * noise_BHA
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
        timesteps: noise levels of the schedule.
        steps: of the sampler; a divisor of `timesteps`.
        eta: 0 follows the probability flow, 1 adds as much noise as DDPM.
        clip: bound on the clean chunk.
        prediction: what the network answers.
        renoise: see `DiffusionGrid`.

    Raises:
        HandoffError: `steps` does not divide `timesteps`, or eta lies outside [0, 1].
    """
    if not 0.0 <= eta <= 1.0:
        raise HandoffError(f"sampler: eta is {eta}, expected 0 (DDIM) to 1 (DDPM).")
    levels = ddim_steps(timesteps, steps)
    numbers = torch.tensor([level[1:] for level in levels], dtype=torch.float64)
    alpha_K, sigma_K, next_alpha_K, next_sigma_K = numbers.T
    std_K = eta * next_sigma_K / sigma_K * (1.0 - (alpha_K / next_alpha_K) ** 2).sqrt()
    coefficients = (
        value.float() for value in (alpha_K, sigma_K, next_alpha_K, next_sigma_K, std_K)
    )
    timestep_K = torch.tensor([level.timestep for level in levels])
    return DiffusionGrid(
        timestep_K, *coefficients, clip=clip, prediction=prediction, renoise=renoise
    )
