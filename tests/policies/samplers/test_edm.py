"""EDM's preconditioning and BESO's sampler and noise levels."""

import math

import pytest
import torch
from torch import Tensor

from policies.samplers.chain import ChainConfig, sample, sample_chain
from policies.samplers.edm import (
    coefficients,
    edm_example,
    edm_grid,
    exponential_sigmas,
    preconditioned,
    training_sigma,
)
from robots.errors import HandoffError
from tests.policies.gaussian import end_moments

MEAN, SPREAD = 0.2, 0.3


def gaussian_denoise(noisy: Tensor, sigma: Tensor) -> Tensor:
    """The posterior mean of the clean sample when clean samples are N(MEAN, SPREAD^2)."""
    return MEAN + SPREAD**2 / (SPREAD**2 + sigma[:, None, None] ** 2) * (noisy - MEAN)


@pytest.mark.parametrize(
    ("sigma", "skip", "out", "inner"),
    [(0.1, 0.9615, 0.0981, 1.9612), (0.5, 0.5, 0.3536, 1.4142), (1.0, 0.2, 0.4472, 0.8944)],
)
def test_the_coefficients_have_the_published_form(
    sigma: float, skip: float, out: float, inner: float
) -> None:
    found = [value.item() for value in coefficients(torch.tensor(sigma))]
    assert found == pytest.approx([skip, out, inner, math.log(sigma) / 4.0], abs=5e-5)


def test_input_and_target_of_the_network_have_unit_variance() -> None:
    generator = torch.Generator().manual_seed(0)
    clean, noise = torch.randn(2, 100_000, 1, 1, generator=generator)
    example = edm_example(0.5 * clean, noise, torch.full((100_000,), 0.3))
    assert example.input_BHA.std().item() == pytest.approx(1.0, abs=0.01)
    assert example.target_BHA.std().item() == pytest.approx(1.0, abs=0.01)


def test_a_network_that_hits_the_target_denoises() -> None:
    clean, noise = torch.randn(2, 6, 3, 2, generator=torch.Generator().manual_seed(0))
    sigma = exponential_sigmas(6).float()
    example = edm_example(clean, noise, sigma)

    def network(scaled: Tensor, level: Tensor) -> Tensor:
        assert torch.equal(scaled, example.input_BHA)
        assert torch.equal(level, example.noise_B)
        return example.target_BHA

    assert torch.allclose(
        preconditioned(network)(clean + sigma[:, None, None] * noise, sigma), clean, atol=1e-5
    )


def test_the_loss_is_edms_weighted_error_of_the_denoiser() -> None:
    clean, noise = torch.randn(2, 6, 3, 2, generator=torch.Generator().manual_seed(0))
    sigma = exponential_sigmas(6).float()
    example = edm_example(clean, noise, sigma)
    wrong = preconditioned(lambda scaled, level: torch.zeros_like(scaled))(
        clean + sigma[:, None, None] * noise, sigma
    )
    error = ((wrong - clean) / coefficients(sigma).out[:, None, None]) ** 2
    assert torch.allclose(error, example.target_BHA**2, rtol=1e-3)


def test_three_exponential_sigmas_are_besos() -> None:
    assert exponential_sigmas(3).tolist() == pytest.approx([1.0, 0.0707107, 0.005])


def test_three_steps_end_at_the_denoised_chunk() -> None:
    grid = edm_grid(exponential_sigmas(3), 0.0)
    assert grid.start == 1.0
    assert grid.next_sigma_K.tolist() == pytest.approx([0.0707107, 0.005, 0.0])
    noise = torch.full((1, 1, 1), 0.8)
    # 0.8 * 0.0707 + 0.0283 * 0.9293 = 0.08286; * 0.0707 + 0.3 * 0.9293 = 0.28464; then the last
    # answer, 0.5.
    answers = iter([0.0283, 0.3, 0.5])
    assert sample(
        lambda x, sigma: torch.full_like(x, next(answers)), noise, grid
    ).item() == pytest.approx(0.5)
    answers = iter([0.0283, 0.3])
    part = sample(lambda x, sigma: torch.full_like(x, next(answers)), noise, grid.part(0, 2))
    assert part.item() == pytest.approx(0.28464, abs=1e-4)


def test_the_ode_follows_the_exact_flow_with_more_steps_ever_closer() -> None:
    # Along the exact flow x - MEAN scales with sqrt(SPREAD^2 + sigma^2).
    slope = SPREAD / math.sqrt(SPREAD**2 + 1.0)
    found = [
        end_moments(edm_grid(exponential_sigmas(steps), 0.0), gaussian_denoise)
        for steps in (3, 10, 50, 400)
    ]
    stds = [std for _, std in found]
    assert stds[0] < stds[1] < stds[2] < stds[3] < slope
    assert found[3] == pytest.approx((MEAN * (1.0 - slope), slope), abs=5e-3)


def test_the_ancestral_sampler_reaches_the_gaussian() -> None:
    mean, std = end_moments(edm_grid(exponential_sigmas(400), 1.0), gaussian_denoise)
    assert (mean, std) == pytest.approx(
        (MEAN * (1.0 - SPREAD**2 / (SPREAD**2 + 1.0)), SPREAD), abs=6e-3
    )
    assert (
        end_moments(edm_grid(exponential_sigmas(400), 1.0), gaussian_denoise, noisy=0.0)[1] < 0.29
    )


def test_ancestral_noise_and_kept_noise_make_up_the_next_level() -> None:
    grid = edm_grid(exponential_sigmas(4), 1.0)
    zero = torch.zeros(4, 1, 1)
    kept = grid.transition(
        lambda x, sigma: zero, torch.ones(4, 1, 1), torch.arange(4), torch.ones(4)
    )
    down = kept.mean_BHA.flatten() * grid.sigma_K
    assert (down**2 + kept.std_B**2).tolist() == pytest.approx(
        (grid.next_sigma_K**2).tolist(), abs=1e-7
    )


def test_exponential_sigmas_preconditioning_and_steps_equal_those_of_diffusers() -> None:
    from diffusers import EDMEulerScheduler

    scheduler = EDMEulerScheduler(
        sigma_min=0.005, sigma_max=1.0, sigma_data=0.5, sigma_schedule="exponential"
    )
    scheduler.set_timesteps(5)
    grid = edm_grid(exponential_sigmas(5), 0.0)
    assert torch.allclose(grid.sigma_K, scheduler.sigmas[:-1], rtol=1e-5)
    assert torch.allclose(grid.next_sigma_K, scheduler.sigmas[1:], rtol=1e-5)

    def network(scaled: Tensor, level: Tensor) -> Tensor:
        return torch.sin(3.0 * scaled) + level[:, None, None]

    theirs = ours = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))
    for timestep in scheduler.timesteps:
        scaled = scheduler.scale_model_input(theirs, timestep)
        theirs = scheduler.step(
            network(scaled, timestep.expand(4)), timestep, theirs, return_dict=False
        )[0]
    assert (sample(preconditioned(network), ours, grid) - theirs).abs().max() <= 1e-5


def test_ancestral_steps_equal_those_of_diffusers() -> None:
    from diffusers import EulerAncestralDiscreteScheduler

    scheduler = EulerAncestralDiscreteScheduler(100)
    scheduler.set_timesteps(5)
    grid = edm_grid(scheduler.sigmas[:-1].double(), 1.0)
    noise = torch.randn(6, 4, 3, 2, generator=torch.Generator().manual_seed(0))
    theirs = grid.start * noise[0]
    generator = torch.Generator().manual_seed(7)
    for timestep in scheduler.timesteps:
        answer = torch.tanh(scheduler.scale_model_input(theirs, timestep))
        theirs = scheduler.step(answer, timestep, theirs, generator, return_dict=False)[0]

    def denoise(noisy: Tensor, sigma: Tensor) -> Tensor:
        level = sigma[:, None, None]
        return noisy - level * torch.tanh(noisy / (level**2 + 1.0).sqrt())

    generator.manual_seed(7)
    drawn = torch.stack([torch.randn(4, 3, 2, generator=generator) for _ in range(5)])
    ours = sample_chain(denoise, grid.start * noise[0], drawn, grid, ChainConfig()).clean_BHA
    assert (ours - theirs).abs().max() <= 1e-5


def test_training_sigmas_are_log_logistic_between_the_bounds() -> None:
    share = (torch.arange(100_001, dtype=torch.float64)) / 100_000
    sigma = training_sigma(share)
    assert sigma[0].item() == pytest.approx(0.005)
    assert sigma[-1].item() == pytest.approx(1.0)
    # F(s) = 1 / (1 + (0.5 / s)^2); between F(0.005) = 1 / 10001 and F(1) = 0.8 the median has F =
    # 0.40005.
    assert sigma[50_000].item() == pytest.approx(0.5 / math.sqrt(1.0 / 0.40005 - 1.0), rel=1e-4)


def test_impossible_noise_levels_are_refused() -> None:
    with pytest.raises(HandoffError, match=r"0 levels from 1\.0 down to 0\.005"):
        exponential_sigmas(0)
    with pytest.raises(HandoffError, match="decreasing sigmas"):
        edm_grid(torch.tensor([0.1, 1.0]), 0.0)
    with pytest.raises(HandoffError, match=r"eta 1\.5"):
        edm_grid(exponential_sigmas(3), 1.5)
