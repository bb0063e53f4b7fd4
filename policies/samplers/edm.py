"""EDM's preconditioned denoiser (Karras et al. 2022) with the sampler and noise distribution of
BESO (arXiv 2304.02532).

A sample at noise level sigma is clean + sigma * noise, and a denoiser predicts the clean chunk.
BESO starts sampling from pure noise at sigma 1, where noisy data of standard deviation 0.5 still
contain signal, so its samples are biased towards 0. This is kept here.

Shape suffixes: B batch, H horizon, A action, K steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from policies.samplers.chain import Denoise, Gaussian, Grid
from robots.errors import HandoffError

SIGMA_MIN = 0.005
SIGMA_MAX = 1.0
SIGMA_DATA = 0.5
"""BESO's smallest and largest noise level, and standard deviation of the data."""


class Coefficients(NamedTuple):
    """EDM's table 1: clean = skip * noisy + out * F(inner * noisy, noise) with the network F."""

    skip: Tensor
    out: Tensor
    inner: Tensor
    noise: Tensor


def coefficients(sigma: Tensor, sigma_data: float = SIGMA_DATA) -> Coefficients:
    """The four coefficients, each with the shape of `sigma`."""
    total = sigma**2 + sigma_data**2
    return Coefficients(
        skip=sigma_data**2 / total,
        out=sigma * sigma_data / total.sqrt(),
        inner=total.rsqrt(),
        noise=sigma.log() / 4.0,
    )


def preconditioned(network: Denoise, sigma_data: float = SIGMA_DATA) -> Denoise:
    """Wraps F (scaled input, log(sigma) / 4) into a denoiser (noisy (B, H, A), sigma (B,)) to clean
    chunk."""

    def denoise(noisy_BHA: Tensor, sigma_B: Tensor) -> Tensor:
        c = coefficients(sigma_B, sigma_data)
        output_BHA = network(c.inner[:, None, None] * noisy_BHA, c.noise)
        return c.skip[:, None, None] * noisy_BHA + c.out[:, None, None] * output_BHA

    return denoise


class Example(NamedTuple):
    """Input and target of the network F; the loss is the plain mean squared error, which is EDM's
    weight 1 / out^2."""

    input_BHA: Tensor
    noise_B: Tensor
    target_BHA: Tensor


def edm_example(
    clean_BHA: Tensor, noise_BHA: Tensor, sigma_B: Tensor, sigma_data: float = SIGMA_DATA
) -> Example:
    """One training example per row, at noise levels `sigma_B`."""
    c = coefficients(sigma_B, sigma_data)
    noisy_BHA = clean_BHA + sigma_B[:, None, None] * noise_BHA
    target_BHA = (clean_BHA - c.skip[:, None, None] * noisy_BHA) / c.out[:, None, None]
    return Example(c.inner[:, None, None] * noisy_BHA, c.noise, target_BHA)


def training_sigma(
    uniform_B: Tensor,
    centre: float = SIGMA_DATA,
    scale: float = 0.5,
    sigma_min: float = SIGMA_MIN,
    sigma_max: float = SIGMA_MAX,
) -> Tensor:
    """Noise levels (B,) from uniform numbers in [0, 1): log(sigma) is logistic around log(centre),
    truncated to the bounds."""
    low, high = (
        _sigmoid((math.log(bound) - math.log(centre)) / scale) for bound in (sigma_min, sigma_max)
    )
    probability_B = low + (high - low) * uniform_B
    return (math.log(centre) + scale * probability_B.logit()).exp().clamp(sigma_min, sigma_max)


@dataclass(frozen=True)
class EdmGrid(Grid):
    """Steps down a list of noise levels; start from `start` times a standard normal chunk."""

    sigma_K: Tensor
    next_sigma_K: Tensor
    std_K: Tensor
    """Standard deviation of the noise that a step adds, part of `next_sigma_K`."""

    @property
    def start(self) -> float:
        """The first noise level."""
        return float(self.sigma_K[0])

    def transition(
        self, denoise: Denoise, sample_BHA: Tensor, step_B: Tensor, active_B: Tensor
    ) -> Gaussian:
        """The Gaussian of the next sample; see `Grid.transition`."""
        sigma_B, std_B = self.sigma_K[step_B], self.std_K[step_B] * active_B
        target_sigma_B = (self.next_sigma_K[step_B] ** 2 - std_B**2).clamp(min=0.0).sqrt()
        sample_weight = (target_sigma_B / sigma_B)[:, None, None]
        return Gaussian(
            sample_weight * sample_BHA + (1.0 - sample_weight) * denoise(sample_BHA, sigma_B), std_B
        )


def exponential_sigmas(
    levels: int, sigma_min: float = SIGMA_MIN, sigma_max: float = SIGMA_MAX
) -> Tensor:
    """`levels` noise levels, evenly spaced in the logarithm, largest first.

    Raises:
        HandoffError: fewer than one level, or bounds that are not 0 < sigma_min < sigma_max.
    """
    if levels < 1 or not 0.0 < sigma_min < sigma_max:
        raise HandoffError(
            f"sigmas: {levels} levels from {sigma_max} down to {sigma_min}, expected at least 1 and positive bounds, "
            "the larger first."
        )
    return torch.linspace(
        math.log(sigma_max), math.log(sigma_min), levels, dtype=torch.float64
    ).exp()


def edm_grid(sigma_K: Tensor, eta: float) -> EdmGrid:
    """One step from each noise level to the next, and from the last to 0.

    Args:
        sigma_K: decreasing noise levels, such as from `exponential_sigmas`.
        eta: 0 gives the DDIM form (BESO's three steps), which is Euler's step of EDM's ODE; 1 the
            ancestral sampler.

    Raises:
        HandoffError: noise levels that are not positive and decreasing, or eta outside [0, 1].
    """
    next_K = torch.cat([sigma_K[1:], sigma_K.new_zeros(1)])
    if not bool((sigma_K > next_K).all()) or not 0.0 <= eta <= 1.0:
        raise HandoffError(
            f"EDM: sigmas {[round(float(sigma), 6) for sigma in sigma_K]} and eta {eta}, expected positive, "
            "decreasing sigmas and eta from 0 to 1."
        )
    std_K = eta * next_K * (1.0 - (next_K / sigma_K) ** 2).sqrt()
    return EdmGrid(sigma_K.float(), next_K.float(), std_K.float())


def _sigmoid(value: float) -> float:
    return 1.0 / (1.0 + math.exp(-value))
