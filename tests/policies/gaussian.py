"""Exact moments of a sampler on Gaussian data, where every step is affine."""

import torch
from torch import Tensor

from policies.samplers.chain import Denoise, Grid


def end_moments(
    grid: Grid, denoise: Denoise, start: float = 1.0, noisy: float = 1.0
) -> tuple[float, float]:
    """Mean and standard deviation after the last step, for noise of mean 0 and std `start`.

    Args:
        grid: the sampler.
        denoise: affine in the sample.
        start: standard deviation of the noise at the beginning.
        noisy: 1.0 takes the steps with their noise, 0.0 without.
    """
    mean, variance = 0.0, start**2
    probes = torch.tensor([0.0, 1.0]).view(2, 1, 1)
    for number in range(len(grid)):
        step_B, active_B = torch.full((2,), number), torch.full((2,), noisy)
        image: Tensor
        image, std_B = grid.transition(denoise, probes, step_B, active_B)
        offset, slope = image[0].item(), (image[1] - image[0]).item()
        mean, variance = slope * mean + offset, slope**2 * variance + std_B[0].item() ** 2
    return mean, variance**0.5
