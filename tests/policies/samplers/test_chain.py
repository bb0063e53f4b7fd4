"""Chains of all samplers: log-probabilities, ratios, noise bounds and on-policy divergence."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from policies.samplers.chain import (
    Chain,
    ChainConfig,
    Gaussian,
    Grid,
    chain_log_prob,
    gaussian_log_prob,
    on_policy_kl,
    one_active_step,
    sample,
    sample_chain,
    step_log_prob,
)
from policies.samplers.ddim import ddim_grid
from policies.samplers.edm import edm_grid, exponential_sigmas
from policies.samplers.flow_matching import ode_grid, sde_grid
from robots.errors import HandoffError
from tests.policies.ddpm import ddpm_grid

B, H, A = 5, 3, 2
DPPO = ChainConfig(
    min_std=0.1,
    min_log_prob_std=0.1,
    noise_clip=3.0,
    log_prob_min=-5.0,
    log_prob_max=2.0,
    reduce="mean",
)
STOCHASTIC: dict[str, Grid] = {
    "ddpm": ddpm_grid(20, clip=1.0),
    "ddpm, epsilon": ddpm_grid(20, clip=1.0, prediction="epsilon"),
    "ddim, eta 0.5": ddim_grid(100, 10, 0.5, clip=1.0),
    "ddim, eta 1, sample": ddim_grid(100, 5, 1.0, clip=1.0, prediction="sample", renoise=True),
    "flow-SDE": sde_grid(4, 0.5),
    "EDM, ancestral": edm_grid(exponential_sigmas(4), 1.0),
}
DETERMINISTIC: dict[str, Grid] = {
    "ddim": ddim_grid(100, 10, 0.0, clip=1.0),
    "ODE": ode_grid(4),
    "Heun": ode_grid(4, "heun"),
    "EDM": edm_grid(exponential_sigmas(3), 0.0),
}


class Network(nn.Module):
    """A small denoiser with weights to change."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.layer = nn.Linear(H * A + 1, H * A)

    def forward(self, noisy_BHA: Tensor, level_B: Tensor) -> Tensor:
        features = torch.cat([noisy_BHA.flatten(1), level_B[:, None].to(noisy_BHA) / 100.0], 1)
        return self.layer(features).tanh().view_as(noisy_BHA)


def draw(steps: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    noise_LBHA = torch.randn(steps + 1, B, H, A, generator=torch.Generator().manual_seed(seed))
    return noise_LBHA[0], noise_LBHA[1:]


def walk(
    grid: Grid, options: ChainConfig, denoise: Network, active_KB: Tensor | None = None
) -> Chain:
    with torch.no_grad():
        return sample_chain(denoise, *draw(len(grid)), grid, options, active_KB)


@pytest.mark.parametrize(
    "options", [ChainConfig(), ChainConfig(reduce="none"), DPPO], ids=["sum", "none", "DPPO"]
)
@pytest.mark.parametrize("name", STOCHASTIC)
def test_log_probs_of_a_stored_chain_are_the_samplers(name: str, options: ChainConfig) -> None:
    grid, network = STOCHASTIC[name], Network(0)
    chain = walk(grid, options, network)
    again = chain_log_prob(network, chain, grid, options)
    assert again.shape == ((len(grid), B, H, A) if options.reduce == "none" else (len(grid), B))
    assert (again - chain.log_prob).abs().max() <= 1e-5
    assert chain.log_prob[0].abs().min() > 0.0


@pytest.mark.parametrize("name", STOCHASTIC)
def test_other_weights_give_another_log_prob_and_a_gradient(name: str) -> None:
    grid, options, other = STOCHASTIC[name], ChainConfig(), Network(1)
    chain = walk(grid, options, Network(0))
    log_prob = chain_log_prob(other, chain, grid, options)
    assert (log_prob - chain.log_prob).sum(0).abs().min() > 1e-2
    log_prob.sum().backward()
    assert other.layer.weight.grad is not None
    assert other.layer.weight.grad.abs().max() > 1e-3


def log_density(value, mean, std):
    """Log-density of the normal distribution, from its formula."""
    return -0.5 * ((value - mean) / std) ** 2 - np.log(std) - 0.5 * np.log(2.0 * np.pi)


def test_another_std_gives_another_log_prob() -> None:
    grid, options, network = sde_grid(4, 0.5), ChainConfig(), Network(0)
    chain = walk(grid, options, network)
    wrong = chain_log_prob(network, chain._replace(std_KB=chain.std_KB * 1.1), grid, options)
    assert (wrong - chain.log_prob).abs().min() > 1e-3


def test_one_step_of_the_flow_sde_has_the_worked_density() -> None:
    # From 1 to 0.5 with sigma = 0.5 * sqrt(1 / 0.5), so sigma^2 = 0.5: the velocity 0.4 at x = 2
    # puts the clean chunk at 1.6 and the noise at 2; mean 0.5 * 1.6 + (0.5 - 0.5 * 0.5 / 2) * 2 =
    # 1.55, std sqrt(0.5 * 0.5) = 0.5.
    grid = sde_grid(2, 0.5).part(0, 1)
    noise = torch.full((1, H, A), 2.0)
    chain = sample_chain(
        lambda noisy, time: torch.full_like(noisy, 0.4),
        noise,
        torch.ones(1, 1, H, A),
        grid,
        ChainConfig(),
    )
    assert chain.mean_KBHA.numpy() == pytest.approx(1.55, abs=1e-6)
    assert chain.std_KB.item() == pytest.approx(0.5, abs=1e-6)
    assert chain.clean_BHA.numpy() == pytest.approx(2.05, abs=1e-6)
    assert chain.log_prob.item() == pytest.approx(H * A * log_density(2.05, 1.55, 0.5), abs=1e-5)


@pytest.mark.parametrize("name", ["ddpm", "flow-SDE"])
def test_log_prob_of_the_whole_chain_is_that_of_its_steps(name: str) -> None:
    grid, options = STOCHASTIC[name], ChainConfig(min_std=0.1)
    chain = walk(grid, options, Network(0))
    std = chain.std_KB[:, :, None, None].expand_as(chain.mean_KBHA).numpy()
    density = log_density(chain.sample_LBHA[1:].numpy(), chain.mean_KBHA.numpy(), std)
    assert chain.log_prob.sum(0).numpy() == pytest.approx(density.sum((0, 2, 3)), rel=1e-4)


def test_rows_at_steps_of_their_own_have_the_chains_log_probs() -> None:
    grid, options, network = ddpm_grid(20, clip=1.0), ChainConfig(), Network(0)
    chain = walk(grid, options, network)
    step_B, row_B = torch.tensor([3, 0, 17, 9]), torch.tensor([4, 1, 1, 0])
    log_prob = step_log_prob(
        network,
        chain.sample_LBHA[step_B, row_B],
        chain.sample_LBHA[step_B + 1, row_B],
        chain.std_KB[step_B, row_B],
        step_B,
        grid,
        options,
    )
    assert (log_prob - chain.log_prob[step_B, row_B]).abs().max() <= 1e-5
    assert (log_prob - chain.log_prob[step_B, row_B.flip(0)]).abs().max() > 1e-3


@pytest.mark.parametrize("name", DETERMINISTIC)
def test_steps_without_noise_have_log_prob_zero_and_no_nan_gradient(name: str) -> None:
    grid, network = DETERMINISTIC[name], Network(0)
    chain = walk(grid, ChainConfig(), network)
    log_prob = chain_log_prob(network, chain, grid, ChainConfig())
    assert (log_prob == 0.0).all()
    log_prob.sum().backward()
    assert network.layer.weight.grad is not None
    assert network.layer.weight.grad.isfinite().all()
    assert torch.equal(chain.sample_LBHA[1:], chain.mean_KBHA)


@pytest.mark.parametrize("name", [*STOCHASTIC, *DETERMINISTIC])
def test_the_plain_sampler_ends_where_a_chain_without_noise_ends(name: str) -> None:
    grid, network = {**STOCHASTIC, **DETERMINISTIC}[name], Network(0)
    chain = walk(grid, DPPO, network, torch.zeros(len(grid), B, dtype=torch.bool))
    with torch.no_grad():
        assert torch.equal(sample(network, draw(len(grid))[0], grid), chain.clean_BHA)


def test_a_walk_in_two_parts_is_the_whole_walk() -> None:
    grid, network, options = ddpm_grid(20, clip=1.0), Network(0), ChainConfig()
    noise, step_noise = draw(20)
    with torch.no_grad():
        frozen = sample_chain(network, noise, step_noise[:12], grid.part(0, 12), options)
        tuned = sample_chain(network, frozen.clean_BHA, step_noise[12:], grid.part(12), options)
    whole = walk(grid, options, network)
    assert torch.equal(tuned.clean_BHA, whole.clean_BHA)
    assert torch.equal(torch.cat([frozen.log_prob, tuned.log_prob]), whole.log_prob)


def test_one_random_step_is_noisy_and_the_others_follow_the_ode() -> None:
    grid, network, options = sde_grid(4, 0.5), Network(0), ChainConfig()
    active_KB = one_active_step(4, B, torch.Generator().manual_seed(0))
    chain = walk(grid, options, network, active_KB)
    assert torch.equal(active_KB.sum(0), torch.ones(B, dtype=torch.long))
    assert torch.equal(chain.std_KB > 0, active_KB)
    assert torch.equal(chain.log_prob != 0, active_KB)
    with torch.no_grad():
        euler = (
            ode_grid(4)
            .transition(network, chain.sample_LBHA[2], torch.full((B,), 2), torch.ones(B))
            .mean_BHA
        )
    assert torch.equal((chain.mean_KBHA[2] == euler).all(2).all(1), ~active_KB[2])
    assert (chain_log_prob(network, chain, grid, options) - chain.log_prob).abs().max() <= 1e-5


def test_random_steps_are_drawn_uniformly() -> None:
    share = one_active_step(4, 40_000, torch.Generator().manual_seed(0)).float().mean(1)
    assert share.numpy() == pytest.approx(0.25, abs=0.01)


def test_the_floor_gives_noise_to_a_step_that_had_none_and_the_cap_takes_some() -> None:
    network = Network(0)
    grid = ddpm_grid(20, clip=1.0)
    assert walk(grid, ChainConfig(), network).std_KB[-1].max() == 0.0
    floored = walk(grid, ChainConfig(min_std=0.1), network)
    assert floored.std_KB.min().item() == pytest.approx(0.1)
    assert walk(grid, ChainConfig(max_std=0.2), network).std_KB.max().item() == pytest.approx(0.2)
    last = (floored.sample_LBHA[-1] - floored.mean_KBHA[-1]) / 0.1
    assert last.numpy() == pytest.approx(draw(20)[1][-1].numpy(), abs=1e-5)


def test_draws_beyond_the_clip_are_cut() -> None:
    grid, steps = sde_grid(2, 0.5), torch.full((2, B, H, A), 7.0)
    chain = sample_chain(Network(0), draw(2)[0], steps, grid, ChainConfig(noise_clip=3.0))
    drawn = (chain.sample_LBHA[1:] - chain.mean_KBHA) / chain.std_KB[:, :, None, None]
    assert drawn.detach().numpy() == pytest.approx(3.0, abs=1e-4)


def test_entries_are_bounded_before_they_are_reduced() -> None:
    gaussian = Gaussian(torch.zeros(1, 1, 3), torch.tensor([0.01]))
    value = torch.tensor([[[0.0, 0.02, 1.0]]])
    peak = -math.log(0.01) - 0.5 * math.log(2.0 * math.pi)
    wide = ChainConfig(min_log_prob_std=0.1, reduce="none")
    assert gaussian_log_prob(
        value, gaussian, ChainConfig(reduce="none")
    ).flatten().tolist() == pytest.approx([peak, peak - 2.0, peak - 5000.0], abs=1e-2)
    assert gaussian_log_prob(value, gaussian, wide).flatten().tolist() == pytest.approx(
        [peak - math.log(10.0) - 0.5 * (number / 0.1) ** 2 for number in (0.0, 0.02, 1.0)], abs=1e-4
    )
    bounded = replace(DPPO, min_log_prob_std=0.0)
    assert gaussian_log_prob(value, gaussian, bounded).item() == pytest.approx(
        (2.0 + (peak - 2.0) - 5.0) / 3.0
    )
    assert gaussian_log_prob(
        value, gaussian, replace(bounded, reduce="sum")
    ).item() == pytest.approx(peak - 5.0)


def test_the_divergence_of_a_student_from_itself_is_zero() -> None:
    for grid in (*STOCHASTIC.values(), *DETERMINISTIC.values()):
        chain = walk(grid, ChainConfig(min_std=0.05), Network(0))
        assert (on_policy_kl(Network(0), Network(0), chain, grid) == 0.0).all()


@pytest.mark.parametrize("name", ["ddpm", "flow-SDE"])
def test_the_divergence_is_the_expected_log_ratio_and_teaches_the_student_only(name: str) -> None:
    grid, student, teacher = STOCHASTIC[name], Network(0), Network(1)
    chain, options = walk(grid, ChainConfig(), student), ChainConfig()
    kl = on_policy_kl(student, teacher, chain, grid)
    number, draws = len(grid) // 2, 4000
    own = Gaussian(chain.mean_KBHA[number].repeat(draws, 1, 1), chain.std_KB[number].repeat(draws))
    with torch.no_grad():
        step_B = torch.full((B,), number)
        wanted = grid.transition(teacher, chain.sample_LBHA[number], step_B, torch.ones(B))
        wanted = Gaussian(wanted.mean_BHA.repeat(draws, 1, 1), wanted.std_B.repeat(draws))
    noise = torch.randn(draws * B, H, A, generator=torch.Generator().manual_seed(0))
    value = own.mean_BHA + own.std_B[:, None, None] * noise
    ratio = gaussian_log_prob(value, own, options) - gaussian_log_prob(value, wanted, options)
    error = (2.0 * kl[number] / draws).sqrt()
    assert ((ratio.view(draws, B).mean(0) - kl[number]).abs() < 4.0 * error).all()
    assert (kl[number] > 8.0 * error).all()
    kl.sum().backward()
    assert student.layer.weight.grad is not None
    assert teacher.layer.weight.grad is None


def test_without_noise_the_divergence_is_half_the_squared_distance() -> None:
    grid = ode_grid(2)
    chain = sample_chain(lambda x, t: torch.zeros_like(x), *draw(2), grid, ChainConfig())
    kl = on_policy_kl(
        lambda x, t: torch.ones_like(x), lambda x, t: torch.full_like(x, 3.0), chain, grid
    )
    assert kl.numpy() == pytest.approx(0.5 * H * A * (0.5 * 2.0) ** 2)


def test_steps_without_noise_of_a_noisy_sampler_match_the_means_of_the_ode() -> None:
    # Velocities 2 apart: the ODE's means after a quarter are 0.5 apart. From 0.5 the SDE, with
    # sigma^2 = 0.25 there, adds 0.25 * 0.25 / (2 * 0.5) * 0.5 * 2 = 0.0625 and has variance 0.25 *
    # 0.25.
    grid, active = sde_grid(4, 0.5), torch.zeros(4, B, dtype=torch.bool)
    active[2, 0] = True
    chain = sample_chain(lambda x, t: torch.zeros_like(x), *draw(4), grid, ChainConfig(), active)
    kl = on_policy_kl(
        lambda x, t: torch.ones_like(x), lambda x, t: torch.full_like(x, 3.0), chain, grid
    )
    assert kl[~active].numpy() == pytest.approx(0.5 * H * A * 0.5**2)
    assert kl[2, 0].item() == pytest.approx(0.5 * H * A * 0.5625**2 / 0.0625)


def test_a_chain_is_a_function_of_its_noise_alone() -> None:
    first, second = (walk(sde_grid(4, 0.5), ChainConfig(), Network(0)) for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_step_noise_for_another_number_of_steps_is_refused() -> None:
    with pytest.raises(
        HandoffError, match=r"step noise has shape \(3, 5, 3, 2\), expected \(4, 5, 3, 2\)"
    ):
        sample_chain(Network(0), *draw(3), sde_grid(4, 0.5), ChainConfig())


def test_a_floor_above_the_cap_is_refused() -> None:
    with pytest.raises(HandoffError, match=r"min_std is 0\.5, expected 0 to max_std, 0\.1"):
        ChainConfig(min_std=0.5, max_std=0.1)
    with pytest.raises(HandoffError, match=r"min_std is -0\.1"):
        ChainConfig(min_std=-0.1)
