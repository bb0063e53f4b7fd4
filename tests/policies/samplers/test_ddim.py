from typing import Any

import pytest
import torch

from policies.samplers.chain import ChainConfig, sample, sample_chain
from policies.samplers.ddim import (
    Prediction,
    clean_and_noise,
    cosine_schedule,
    ddim_grid,
    ddim_sample,
    ddim_steps,
    guide,
)
from robots.errors import HandoffError
from tests.policies.ddpm import ddpm_grid
from tests.policies.gaussian import end_moments


def test_the_schedule_has_the_published_values():
    alpha_bar = cosine_schedule(100).alpha_K ** 2
    assert alpha_bar[0].item() == pytest.approx(0.99937, abs=1e-5)
    assert alpha_bar[49].item() == pytest.approx(0.4938, abs=1e-4)
    assert alpha_bar[99].item() == pytest.approx(2.4e-7, rel=0.02)


def test_signal_and_noise_shares_square_to_one():
    alpha, sigma = cosine_schedule(100)
    assert torch.allclose(alpha**2 + sigma**2, torch.ones(100), atol=1e-6)


def test_noisy_chunk_and_velocity_give_the_clean_chunk_back():
    schedule = cosine_schedule(100)
    clean, noise = torch.randn(100, 3, 2), torch.randn(100, 3, 2)
    level = torch.arange(100)
    noisy, velocity = schedule.diffuse(clean, noise, level)
    alpha, sigma = schedule.alpha_K[:, None, None], schedule.sigma_K[:, None, None]
    assert torch.allclose(alpha * noisy - sigma * velocity, clean, atol=1e-5)
    assert torch.allclose(sigma * noisy + alpha * velocity, noise, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 5, 10, 100])
def test_every_step_equals_that_of_diffusers(steps: int):
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(
        100,
        beta_schedule="squaredcos_cap_v2",
        prediction_type="v_prediction",
        timestep_spacing="trailing",
    )
    scheduler.set_timesteps(steps)
    generator = torch.Generator().manual_seed(0)
    ours = ddim_steps(100, steps)
    assert [step.timestep for step in ours] == scheduler.timesteps.tolist()
    for step in ours:
        sample, velocity = torch.randn(2, 4, 16, 2, generator=generator)
        theirs = scheduler.step(velocity, step.timestep, sample, return_dict=False)[0]
        assert (step.apply(sample, velocity, clip=1.0) - theirs).abs().max() <= 1e-6


def test_sampling_starts_at_the_noisiest_level():
    assert [step.timestep for step in ddim_steps(100, 10)] == [
        99,
        89,
        79,
        69,
        59,
        49,
        39,
        29,
        19,
        9,
    ]
    assert ddim_steps(100, 1)[0].timestep == 99


def test_steps_that_do_not_divide_the_schedule_are_refused():
    with pytest.raises(HandoffError, match="7 steps, expected a divisor of the schedule's 100"):
        ddim_steps(100, 7)


def gaussian_velocity(mean: float, spread: float, timesteps: int = 100):
    """The exact velocity when clean samples are N(mean, spread^2), from the posterior mean of the
    clean sample."""
    schedule = cosine_schedule(timesteps)

    def denoise(noisy: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        alpha, sigma = (
            schedule.alpha_K[timestep, None, None],
            schedule.sigma_K[timestep, None, None],
        )
        gain = alpha * spread**2 / (alpha**2 * spread**2 + sigma**2)
        clean = mean + gain * (noisy - alpha * mean)
        return (alpha * noisy - clean) / sigma

    return denoise


def ddim_spread(steps: int) -> float:
    noise = torch.randn(20_000, 1, 1, generator=torch.Generator().manual_seed(0))
    sample = ddim_sample(gaussian_velocity(0.2, 0.5), noise, ddim_steps(100, steps), clip=10.0)
    assert sample.mean().item() == pytest.approx(0.2, abs=0.01)
    return sample.std().item()


def test_ddim_reaches_a_gaussian_with_more_steps_ever_closer():
    assert ddim_spread(4) < ddim_spread(10) < ddim_spread(100) < 0.5
    assert ddim_spread(100) == pytest.approx(0.5, abs=0.01)


def test_one_step_from_noise_alone_gives_the_mean():
    assert ddim_spread(1) == pytest.approx(0.0, abs=1e-3)


def test_clean_samples_stay_within_the_clip():
    noise = torch.full((1, 2, 2), 50.0)
    sample = ddim_sample(
        lambda noisy, timestep: torch.zeros_like(noisy), noise, ddim_steps(100, 10), clip=1.0
    )
    assert sample.abs().max() <= 1.0


@pytest.mark.parametrize("prediction", ["v", "epsilon", "sample"])
def test_the_target_of_every_prediction_gives_clean_chunk_and_noise_back(prediction):
    clean, noise = torch.randn(2, 1, 3, 2, generator=torch.Generator().manual_seed(0))
    alpha, sigma = torch.tensor(0.6), torch.tensor(0.8)
    targets = {"v": alpha * noise - sigma * clean, "epsilon": noise, "sample": clean}
    found = clean_and_noise(
        prediction, targets[prediction], alpha * clean + sigma * noise, alpha, sigma
    )
    assert torch.allclose(found[0], clean, atol=1e-6)
    assert torch.allclose(found[1], noise, atol=1e-6)


def test_a_grid_with_eta_zero_is_the_plain_sampler():
    noise, denoise = torch.randn(8, 3, 2), gaussian_velocity(0.2, 0.5)
    plain = ddim_sample(denoise, noise, ddim_steps(100, 10), clip=1.0)
    assert (sample(denoise, noise, ddim_grid(100, 10, 0.0, clip=1.0)) - plain).abs().max() <= 1e-6


NAMES: dict[Prediction, Any] = {"v": "v_prediction", "epsilon": "epsilon", "sample": "sample"}


@pytest.mark.parametrize("prediction", NAMES)
@pytest.mark.parametrize(
    ("steps", "eta", "renoise"), [(10, 0.5, False), (5, 1.0, True), (100, 0.3, False)]
)
def test_every_noisy_ddim_step_equals_that_of_diffusers(prediction, steps, eta, renoise):
    from diffusers import DDIMScheduler

    scheduler = DDIMScheduler(
        100,
        beta_schedule="squaredcos_cap_v2",
        prediction_type=NAMES[prediction],
        timestep_spacing="trailing",
        clip_sample_range=2.0,
    )
    scheduler.set_timesteps(steps)
    grid, generator = (
        ddim_grid(100, steps, eta, 2.0, prediction, renoise),
        torch.Generator().manual_seed(0),
    )
    for number, timestep in enumerate(scheduler.timesteps.tolist()):
        noisy, answer, drawn = torch.randn(3, 4, 16, 2, generator=generator)
        theirs = scheduler.step(
            answer, timestep, noisy, eta, renoise, variance_noise=drawn, return_dict=False
        )[0]
        chain = sample_chain(
            lambda x, level, answer=answer: answer,
            noisy,
            drawn[None],
            grid.part(number, number + 1),
            ChainConfig(),
        )
        # With eta 1 the noise kept at the first step is a small difference of numbers near 1, which
        # float32 rounds.
        assert (chain.clean_BHA - theirs).abs().max() <= 1e-4


@pytest.mark.parametrize("prediction", NAMES)
def test_every_ddpm_step_equals_that_of_diffusers(prediction):
    from diffusers import DDPMScheduler

    scheduler = DDPMScheduler(
        20,
        beta_schedule="squaredcos_cap_v2",
        prediction_type=NAMES[prediction],
        clip_sample_range=2.0,
    )
    grid, generator = ddpm_grid(20, 2.0, prediction), torch.Generator().manual_seed(0)
    for number in range(20):
        noisy, answer = torch.randn(2, 4, 16, 2, generator=generator)
        theirs = scheduler.step(
            answer, 19 - number, noisy, torch.Generator().manual_seed(number), return_dict=False
        )[0]
        drawn = torch.randn(1, 4, 16, 2, generator=torch.Generator().manual_seed(number))
        chain = sample_chain(
            lambda x, level, answer=answer: answer,
            noisy,
            drawn,
            grid.part(number, number + 1),
            ChainConfig(),
        )
        assert (chain.clean_BHA - theirs).abs().max() <= 1e-5


def test_moments_of_ddim_and_ddpm_approach_the_gaussians():
    denoise = gaussian_velocity(0.2, 0.5, 1000)
    found = [
        end_moments(ddim_grid(1000, steps, 0.0, 10.0), denoise) for steps in (5, 20, 100, 1000)
    ]
    stds = [std for _, std in found]
    assert stds[0] < stds[1] < stds[2] < stds[3] < 0.5
    assert found[3] == pytest.approx((0.2, 0.5), abs=2e-3)
    assert end_moments(ddim_grid(1000, 1000, 1.0, 10.0), denoise) == pytest.approx(
        (0.2, 0.5), abs=4e-3
    )
    assert end_moments(ddpm_grid(100, 10.0), gaussian_velocity(0.2, 0.5)) == pytest.approx(
        (0.2, 0.482), abs=1e-3
    )


def constant(value):
    return lambda noisy, level: torch.full_like(noisy, value)


def test_guidance_runs_from_the_unconditional_through_the_conditional_answer():
    noisy, level = torch.randn(2, 3, 2), torch.zeros(2)
    wild, goal = torch.randn(2, 2, 3, 2)
    for scale, expected in [
        (1.0, goal),
        (0.0, wild),
        (1.5, wild + 1.5 * (goal - wild)),
        (0.5, (wild + goal) / 2.0),
    ]:
        guided = guide(lambda x, level: goal, lambda x, level: wild, scale)(noisy, level)
        assert torch.allclose(guided, expected, atol=1e-6)
    assert guide(constant(3.0), constant(1.0), 1.5)(noisy, level).unique().tolist() == [4.0]


@pytest.mark.parametrize("eta", [-0.1, 1.1])
def test_eta_outside_its_range_is_refused(eta):
    with pytest.raises(HandoffError, match="expected 0 \\(DDIM\\) to 1 \\(DDPM\\)"):
        ddim_grid(100, 10, eta, 1.0)
