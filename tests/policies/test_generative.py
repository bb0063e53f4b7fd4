import pytest
import torch

from policies.generative import cosine_schedule, ddim_sample, ddim_steps, ddpm_sample
from robots.errors import HandoffError


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
        100, beta_schedule="squaredcos_cap_v2", prediction_type="v_prediction", timestep_spacing="trailing"
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
    assert [step.timestep for step in ddim_steps(100, 10)] == [99, 89, 79, 69, 59, 49, 39, 29, 19, 9]
    assert ddim_steps(100, 1)[0].timestep == 99


def test_steps_that_do_not_divide_the_schedule_are_refused():
    with pytest.raises(HandoffError, match="7 steps, expected a divisor of the schedule's 100"):
        ddim_steps(100, 7)


def gaussian_velocity(mean: float, spread: float):
    """The exact velocity when clean samples are N(mean, spread^2), from the posterior mean of the clean sample."""
    schedule = cosine_schedule(100)

    def denoise(noisy: torch.Tensor, timestep: torch.Tensor) -> torch.Tensor:
        alpha, sigma = schedule.alpha_K[timestep, None, None], schedule.sigma_K[timestep, None, None]
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


def test_ddpm_reaches_the_same_gaussian():
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(20_000, 1, 1, generator=generator)
    sample = ddpm_sample(gaussian_velocity(0.2, 0.5), noise, 100, clip=10.0, generator=generator)
    assert sample.mean().item() == pytest.approx(0.2, abs=0.01)
    assert sample.std().item() == pytest.approx(0.5, abs=0.02)


def test_clean_samples_stay_within_the_clip():
    noise = torch.full((1, 2, 2), 50.0)
    sample = ddim_sample(lambda noisy, timestep: torch.zeros_like(noisy), noise, ddim_steps(100, 10), clip=1.0)
    assert sample.abs().max() <= 1.0
