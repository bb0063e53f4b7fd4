"""Flow matching: targets, times, ODE and flow-SDE."""

from typing import Any

import pytest
import torch
from torch import Tensor

from policies.samplers.chain import ChainConfig, sample, sample_chain
from policies.samplers.flow_matching import (
    FlowGrid,
    flow_example,
    ode_grid,
    sde_grid,
    training_time,
)
from robots.errors import HandoffError
from tests.policies.gaussian import end_moments

MEAN, SPREAD = 0.2, 0.3


def gaussian_velocity(noisy: Tensor, time: Tensor) -> Tensor:
    """The exact velocity when clean samples are N(MEAN, SPREAD^2), from the posterior mean of the
    clean sample."""
    t = time[:, None, None]
    gain = (1.0 - t) * SPREAD**2 / ((1.0 - t) ** 2 * SPREAD**2 + t**2)
    return (noisy - MEAN - gain * (noisy - (1.0 - t) * MEAN)) / t


@pytest.mark.parametrize(("steps", "std"), [(4, 0.178), (10, 0.247), (200, 0.297)])
def test_the_ode_reaches_the_gaussian_with_more_steps_ever_closer(steps: int, std: float) -> None:
    assert end_moments(ode_grid(steps), gaussian_velocity) == pytest.approx((MEAN, std), abs=1e-3)


@pytest.mark.parametrize(("steps", "std"), [(4, 0.238), (10, 0.270), (200, 0.300)])
def test_the_flow_sde_reaches_it_too_and_sooner(steps: int, std: float) -> None:
    assert end_moments(sde_grid(steps, 0.5), gaussian_velocity) == pytest.approx(
        (MEAN, std), abs=1e-3
    )


def test_noise_without_its_correction_of_the_mean_misses_the_gaussian() -> None:
    class Uncorrected(FlowGrid):
        def transition(self, denoise, sample_BHA, step_B, active_B):
            mean_BHA, _ = super().transition(
                denoise, sample_BHA, step_B, torch.zeros_like(active_B)
            )
            return (
                super()
                .transition(denoise, sample_BHA, step_B, active_B)
                ._replace(mean_BHA=mean_BHA)
            )

    grid = sde_grid(200, 0.5)
    wrong = Uncorrected(grid.time_K, grid.next_time_K, grid.noise_K)
    assert end_moments(wrong, gaussian_velocity)[1] > 0.32


def test_sampled_chains_have_these_moments() -> None:
    noise = torch.randn(11, 40_000, 1, 1, generator=torch.Generator().manual_seed(0))
    clean = sample_chain(
        gaussian_velocity, noise[0], noise[1:], sde_grid(10, 0.5), ChainConfig()
    ).clean_BHA
    assert clean.mean().item() == pytest.approx(MEAN, abs=5e-3)
    assert clean.std().item() == pytest.approx(0.270, abs=4e-3)


def test_heuns_error_falls_with_the_square_of_the_steps() -> None:
    errors = [
        SPREAD - end_moments(ode_grid(steps, "heun"), gaussian_velocity)[1]
        for steps in (40, 80, 160)
    ]
    assert errors[0] / errors[1] == pytest.approx(4.0, rel=0.15)
    assert errors[1] / errors[2] == pytest.approx(4.0, rel=0.15)
    euler = [SPREAD - end_moments(ode_grid(steps), gaussian_velocity)[1] for steps in (80, 160)]
    assert euler[0] / euler[1] == pytest.approx(2.0, rel=0.15)


def test_noise_zero_is_the_ode() -> None:
    assert torch.equal(sde_grid(5, 0.0).noise_K, ode_grid(5).noise_K)


def test_the_diffusion_coefficient_takes_the_next_step_at_the_pole() -> None:
    # 0.5 * sqrt(t / (1 - t)) at 0.75, 0.5 and 0.25; at 1 the divisor is 1 - 0.75.
    expected = [0.5 * ratio**0.5 for ratio in (1.0 / 0.25, 3.0, 1.0, 1.0 / 3.0)]
    assert sde_grid(4, 0.5).noise_K.tolist() == pytest.approx(expected)
    assert sde_grid(1, 0.5).noise_K.tolist() == [0.5]


@pytest.mark.parametrize("solver", ["euler", "heun"])
def test_the_ode_equals_that_of_diffusers(solver: str) -> None:
    from diffusers import FlowMatchEulerDiscreteScheduler, FlowMatchHeunDiscreteScheduler

    noise = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    theirs = noise
    scheduler: Any = (
        FlowMatchEulerDiscreteScheduler() if solver == "euler" else FlowMatchHeunDiscreteScheduler()
    )
    if solver == "euler":
        grid = ode_grid(5)
        scheduler.set_timesteps(sigmas=grid.time_K.tolist())
    else:
        # This one has no choice of sigmas; ours follow its.
        scheduler.set_timesteps(5)
        sigma = scheduler.sigmas[[0, 1, 3, 5, 7, 9]]
        grid = FlowGrid(sigma[:-1], sigma[1:], torch.zeros(5), heun=True)
    for timestep in scheduler.timesteps:
        velocity = gaussian_velocity(theirs, timestep.expand(4) / 1000.0)
        theirs = scheduler.step(velocity, timestep, theirs, return_dict=False)[0]
    ours = sample(gaussian_velocity, noise, grid)
    assert (ours - theirs).abs().max() <= 1e-5
    assert (ours - noise).abs().max() > 0.1


def test_noisy_chunk_and_velocity_give_both_ends_back() -> None:
    clean, noise, time = torch.randn(6, 3, 2), torch.randn(6, 3, 2), torch.linspace(0.0, 1.0, 6)
    noisy, velocity = flow_example(clean, noise, time)
    assert torch.equal(noisy[0], clean[0])
    assert torch.equal(noisy[-1], noise[-1])
    t = time[:, None, None]
    assert torch.allclose(noisy - t * velocity, clean, atol=1e-6)
    assert torch.allclose(noisy + (1.0 - t) * velocity, noise, atol=1e-6)


def test_beta_times_have_pi0s_moments() -> None:
    # Beta(1.5, 1) has mean 1.5 / 2.5 and variance 1.5 / (2.5^2 * 3.5).
    time = training_time((torch.arange(100_000) + 0.5) / 100_000, "beta")
    assert time.mean().item() == pytest.approx(0.001 + 0.999 * 0.6, abs=1e-4)
    assert time.var().item() == pytest.approx(0.999**2 * 1.5 / (2.5**2 * 3.5), abs=1e-4)
    assert training_time(torch.tensor([0.0, 1.0]), "beta").tolist() == pytest.approx([0.001, 1.0])


def test_uniform_times_are_the_uniform_numbers() -> None:
    assert training_time(torch.tensor([0.0, 0.3]), "uniform").tolist() == pytest.approx([0.0, 0.3])


def test_impossible_samplers_are_refused() -> None:
    with pytest.raises(HandoffError, match="0 steps, expected at least 1"):
        ode_grid(0)
    with pytest.raises(HandoffError, match=r"noise is -0\.5, expected 0"):
        sde_grid(4, -0.5)
