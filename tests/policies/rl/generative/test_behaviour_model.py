"""Behaviour models: schedule, masks, samplers, and what they learn."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from policies.rl.generative.behaviour_model import (
    GenerativeActor,
    executed_mask,
    repeated_noise,
    vp_grid,
    vp_schedule,
)
from policies.rl.generative.config import BehaviourConfig
from policies.rl.networks.config import MlpSizes
from policies.rl.replay.transitions import Observations, Transitions
from robots.errors import HandoffError

SMALL = MlpSizes(hidden=(32, 32), activation="relu", layer_norm=False)
FLOW = BehaviourConfig(kind="flow", network=SMALL, learning_rate=3e-3)
DIFFUSION = BehaviourConfig(kind="diffusion", network=SMALL, learning_rate=3e-3)


def drawn(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def silent(config: BehaviourConfig, horizon: int = 2, entries: int = 1) -> GenerativeActor:
    """An actor whose network answers 0."""
    actor = GenerativeActor(3, horizon, entries, config)
    for parameter in actor.parameters():
        parameter.data.zero_()
    return actor


def row(extra: dict[str, Tensor], rows: int = 2) -> Transitions:
    none = torch.zeros(rows)
    obs = Observations(torch.zeros(rows, 3))
    return Transitions(
        obs, torch.zeros(rows, 2), none, none, obs, none.bool(), none.bool(), none, extra
    )


def test_ten_levels_leave_almost_no_signal() -> None:
    alpha_K, sigma_K = vp_schedule(10, 0.1, 20.0)
    assert float(alpha_K[-1] ** 2) == pytest.approx(math.exp(-10.05), rel=1e-4)  # 4.3e-5
    torch.testing.assert_close(alpha_K**2 + sigma_K**2, torch.ones(10))


def test_every_level_multiplies_by_the_discretised_beta() -> None:
    alpha_K, _ = vp_schedule(10, 0.1, 20.0)
    kept = torch.tensor(
        [math.exp(-0.1 / 10 - 0.5 * 19.9 * (2 * k - 1) / 100) for k in range(1, 11)]
    )
    torch.testing.assert_close(alpha_K**2, kept.cumprod(0), rtol=1e-5, atol=1e-9)


def test_the_noise_of_a_step_is_that_of_the_posterior() -> None:
    abar_K = vp_schedule(10, 0.1, 20.0).alpha_K.double() ** 2
    std_K = vp_grid(10, 0.1, 20.0).std_K
    for step, level in enumerate(range(9, 0, -1)):
        beta = 1.0 - abar_K[level] / abar_K[level - 1]
        variance = beta * (1.0 - abar_K[level - 1]) / (1.0 - abar_K[level])
        assert float(std_K[step]) == pytest.approx(math.sqrt(float(variance)), rel=1e-3)
    assert std_K[-1] == 0.0
    assert (vp_grid(10, 0.1, 20.0, eta=0.0).std_K == 0.0).all()


def test_the_loss_of_the_flow_counts_only_executed_actions() -> None:
    chunk_BD = torch.tensor([[0.5, -0.5], [1.0, 0.0]])
    valid_BH = torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    loss = silent(FLOW).loss(torch.zeros(2, 3), chunk_BD, valid_BH, drawn())
    noise_BH = torch.randn(2, 2, 1, generator=drawn())[..., 0]
    errors = [(noise_BH[0, 0] - 0.5), (noise_BH[0, 1] + 0.5), (noise_BH[1, 0] - 1.0)]
    assert loss.item() == pytest.approx(sum(float(error) ** 2 for error in errors) / 4, rel=1e-5)


def test_the_diffusions_loss_is_the_distance_from_the_noise() -> None:
    loss = silent(DIFFUSION).loss(torch.zeros(2, 3), torch.ones(2, 2), torch.ones(2, 2), drawn())
    noise_BH = torch.randn(2, 2, 1, generator=drawn())
    assert loss.item() == pytest.approx(float(noise_BH.square().mean()), rel=1e-5)


def test_a_flow_without_velocity_returns_its_noise() -> None:
    noise = torch.tensor([0.3, -0.7, 1.5, 0.0]).view(1, 2, 2, 1)
    chunk_BD = silent(FLOW).sample(torch.zeros(2, 3), noise)
    torch.testing.assert_close(chunk_BD, torch.tensor([[0.3, -0.7], [1.0, 0.0]]))


def test_only_ddpm_adds_noise_at_every_step() -> None:
    for config, count in (
        (FLOW, 1),
        (DIFFUSION, 11),
        (BehaviourConfig(kind="diffusion", eta=0.0), 1),
    ):
        assert GenerativeActor(3, 2, 1, config).noise(5, drawn()).shape == (count, 5, 2, 1)


@pytest.mark.parametrize("config", [FLOW, DIFFUSION])
def test_both_kinds_learn_two_modes(config: BehaviourConfig) -> None:
    torch.manual_seed(0)
    wide = MlpSizes(hidden=(64, 64), activation="relu", layer_norm=False)
    actor = GenerativeActor(1, 2, 1, replace(config, network=wide))
    optimizer = torch.optim.Adam(actor.parameters(), config.learning_rate)
    generator = drawn()
    for _ in range(800):
        sign_B1 = torch.randint(2, (128, 1), generator=generator) * 2.0 - 1.0
        loss = actor.loss(
            torch.zeros(128, 1), 0.5 * sign_B1.expand(-1, 2), torch.ones(128, 2), generator
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    chunk_BD = actor.sample(torch.zeros(500, 1), actor.noise(500, generator))
    near_BD = (chunk_BD.abs() - 0.5).abs() < 0.25
    assert near_BD.float().mean() > 0.8
    # Both actions of a chunk go the same way, and both ways are taken.
    assert ((chunk_BD[:, 0] > 0) == (chunk_BD[:, 1] > 0)).float().mean() > 0.9
    assert 0.3 < float((chunk_BD[:, 0] > 0).float().mean()) < 0.7


def test_without_a_generator_every_row_has_the_same_noise() -> None:
    actor = GenerativeActor(3, 2, 1, DIFFUSION)
    noise_LBHA = repeated_noise(actor, 2, 4, None)
    torch.testing.assert_close(noise_LBHA[:, :4], noise_LBHA[:, 4:])
    torch.testing.assert_close(noise_LBHA, repeated_noise(actor, 2, 4, None))
    assert (noise_LBHA[:, 0] != noise_LBHA[:, 1]).all()


def test_single_actions_are_all_executed_and_chunks_need_a_mask() -> None:
    torch.testing.assert_close(executed_mask(row({}), 1), torch.ones(2, 1))
    valid_BH = torch.tensor([[True, True], [True, False]])
    torch.testing.assert_close(
        executed_mask(row({"valid_BH": valid_BH}), 2), torch.tensor([[1.0, 1.0], [1.0, 0.0]])
    )
    for extra, horizon in (({}, 2), ({"valid_BH": valid_BH}, 3), ({"valid_BH": valid_BH}, 1)):
        with pytest.raises(HandoffError, match="valid_BH"):
            executed_mask(row(extra), horizon)
