"""Flow matching: targets, times and samplers (Lipman et al. 2023; pi0, arXiv 2410.24164; RLinf,
arXiv 2510.06710).

As in openpi's and RLinf's code, time runs from 1 (noise) to 0 (clean chunk); pi0's paper uses the
opposite direction. A sample at time t is (1 - t) * clean + t * noise, and the network predicts the
velocity noise - clean.

Shape suffixes: B batch, H horizon, A action, K steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from policies.samplers.chain import Denoise, Gaussian, Grid
from robots.errors import HandoffError

TimeDistribution = Literal["uniform", "beta"]
"""Distribution of training times; `beta` is pi0's, with more weight on noise."""

_BETA, _MIN_TIME = 1.5, 0.001
"""First parameter of pi0's Beta(1.5, 1), and smallest training time."""


def flow_example(clean_BHA: Tensor, noise_BHA: Tensor, time_B: Tensor) -> tuple[Tensor, Tensor]:
    """The noisy chunk and its velocity target, each (B, H, A)."""
    time = time_B[:, None, None]
    return (1.0 - time) * clean_BHA + time * noise_BHA, noise_BHA - clean_BHA


def training_time(uniform_B: Tensor, distribution: TimeDistribution) -> Tensor:
    """Training times (B,) from uniform numbers in [0, 1), by inverse transform sampling."""
    match distribution:
        case "uniform":
            return uniform_B
        case "beta":
            return _MIN_TIME + (1.0 - _MIN_TIME) * uniform_B ** (1.0 / _BETA)


@dataclass(frozen=True)
class FlowGrid(Grid):
    """Steps of the flow's ODE, or of RLinf's flow-SDE."""

    time_K: Tensor
    next_time_K: Tensor
    noise_K: Tensor
    """Diffusion coefficient of the SDE; 0 for the ODE."""
    heun: bool = False
    """Whether to use Heun's method, which averages the velocities at both ends of a step; the last
    step is Euler's."""

    def transition(
        self, denoise: Denoise, sample_BHA: Tensor, step_B: Tensor, active_B: Tensor
    ) -> Gaussian:
        """The Gaussian of the next sample; see `Grid.transition`.

        Mean (1 - s) * clean + (s - noise^2 * d / 2t) * noise and std noise * sqrt(d), for a step of
        d from t to s.
        """
        time_B, next_B = self.time_K[step_B], self.next_time_K[step_B]
        length_B = time_B - next_B
        velocity_BHA = denoise(sample_BHA, time_B)
        if self.heun and bool((next_B > 0).any()):
            end_BHA = sample_BHA - length_B[:, None, None] * velocity_BHA
            average_BHA = (velocity_BHA + denoise(end_BHA, next_B)) / 2.0
            velocity_BHA = average_BHA.where(next_B[:, None, None] > 0, velocity_BHA)
        coefficient_B = self.noise_K[step_B] * active_B
        drift_B = coefficient_B**2 * length_B / (2.0 * time_B)
        # Equal to the mean in the docstring, but a step without noise is exactly Euler's.
        noise_BHA = sample_BHA + (1.0 - time_B)[:, None, None] * velocity_BHA
        mean_BHA = (
            sample_BHA - length_B[:, None, None] * velocity_BHA - drift_B[:, None, None] * noise_BHA
        )
        return Gaussian(mean_BHA, coefficient_B * length_B.sqrt())


def ode_grid(steps: int, solver: Literal["euler", "heun"] = "euler") -> FlowGrid:
    """The ODE in `steps` equal steps from time 1 to 0; Heun's solver evaluates the network 2 *
    steps - 1 times."""
    time_L = _times(steps)
    return FlowGrid(time_L[:-1], time_L[1:], torch.zeros(steps), heun=solver == "heun")


def sde_grid(steps: int, noise: float) -> FlowGrid:
    """The flow-SDE in `steps` equal steps, with diffusion coefficient noise * sqrt(t / (1 - t)).

    At t = 1, where the coefficient is infinite, 1 - t of the next step is used, as in RLinf's code.
    Its marginals are the flow's only in the limit of many steps.

    Args:
        steps: number of steps; RLinf uses 4.
        noise: noise scale; RLinf uses 0.5, 0 gives the ODE.

    Raises:
        HandoffError: fewer than one step, or a negative noise.
    """
    if noise < 0.0:
        raise HandoffError(f"flow-SDE: noise is {noise}, expected 0 (the ODE) or more.")
    time_L = _times(steps)
    remaining_K = 1.0 - time_L[:-1]
    remaining_K[0] = 1.0 - time_L[1]
    return FlowGrid(time_L[:-1], time_L[1:], noise * (time_L[:-1] / remaining_K).sqrt())


def _times(steps: int) -> Tensor:
    if steps < 1:
        raise HandoffError(f"flow: {steps} steps, expected at least 1.")
    return torch.linspace(1.0, 0.0, steps + 1, dtype=torch.float64).float()
