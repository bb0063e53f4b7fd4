"""What number a loss of V makes of a law of Q: invariants (g) 15 of the recipes."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from scipy import optimize
from torch import Tensor

from policies.rl.offline.config import (
    DualCriticsConfig,
    GumbelCriticsConfig,
    InSampleCriticsConfig,
    IqlConfig,
)
from policies.rl.offline.value_losses import (
    chi2_loss,
    expectile_loss,
    gumbel_loss,
    in_sample_value_loss,
    total_variation_loss,
)
from robots.errors import HandoffError

Loss = Callable[[Tensor], Tensor]

LEVELS = (torch.arange(4_000, dtype=torch.float64) + 0.5) / 4_000
NORMAL = math.sqrt(2.0) * torch.erfinv(2.0 * LEVELS - 1.0)
"""A standard normal law as 4,000 equally likely numbers."""
UNIFORM = LEVELS
THREE = torch.tensor([-1.0, 0.0, 4.0], dtype=torch.float64)
"""Three rewards, each as likely as the others."""


def scipy_minimiser(loss: Loss, law: Tensor) -> float:
    low, high = float(law.min()) - 5.0, float(law.max()) + 5.0
    found = optimize.minimize_scalar(
        lambda v: float(loss(law - v).mean()),
        bounds=(low, high),
        method="bounded",
        options={"xatol": 1e-9},
    )
    return float(found.x)  # pyright: ignore[reportAttributeAccessIssue]


def descended(loss: Loss, law: Tensor) -> float:
    """Where gradient descent with ever shorter steps brings V, as the learner does it."""
    v = law.mean().clone().requires_grad_()
    optimizer = torch.optim.Adam([v], lr=0.2)
    decay = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.98)
    for _ in range(500):
        optimizer.zero_grad()
        loss(law - v).mean().backward()
        optimizer.step()
        decay.step()
    return v.item()


def expectile_of(law: Tensor, level: float) -> float:
    """By bisection on its definition: level E(Q - v)+ = (1 - level) E(v - Q)+."""
    low, high = float(law.min()), float(law.max())
    for _ in range(60):
        v = (low + high) / 2.0
        above, below = (law - v).clamp(min=0.0).mean(), (v - law).clamp(min=0.0).mean()
        low, high = (v, high) if level * above > (1.0 - level) * below else (low, v)
    return low


@pytest.mark.parametrize("level", [0.5, 0.7, 0.9, 0.99])
@pytest.mark.parametrize("law", [NORMAL, UNIFORM, THREE], ids=["normal", "uniform", "three"])
def test_the_expectile_loss_is_least_at_the_expectile(law: Tensor, level: float):
    assert descended(partial(expectile_loss, expectile=level), law) == pytest.approx(
        expectile_of(law, level), abs=0.02
    )


def test_the_expectile_of_three_rewards_worked_by_hand():
    # .9 * (4 - v) = .1 * (v - 0 + v + 1) gives v = 3.5 / 1.1
    assert descended(partial(expectile_loss, expectile=0.9), THREE) == pytest.approx(
        3.5 / 1.1, abs=1e-3
    )


@pytest.mark.parametrize("level", [0.6, 0.75, 0.9])
@pytest.mark.parametrize("scale", [0.1, 1.0, 100.0])
def test_total_variation_is_least_at_its_quantile_whatever_the_scale(level: float, scale: float):
    law = scale * NORMAL
    quantile = float(torch.quantile(law, (2.0 * level - 1.0) / level))
    found = scipy_minimiser(partial(total_variation_loss, weight=level), law)
    assert found == pytest.approx(quantile, abs=1e-3 * scale)


@pytest.mark.parametrize(
    "loss",
    [partial(chi2_loss, weight=0.75), partial(total_variation_loss, weight=0.75), gumbel_loss],
    ids=["chi2", "tv", "gumbel"],
)
@pytest.mark.parametrize("law", [NORMAL, UNIFORM], ids=["normal", "uniform"])
def test_descent_ends_where_a_scalar_minimiser_does(loss: Loss, law: Tensor):
    assert descended(loss, law) == pytest.approx(scipy_minimiser(loss, law), abs=1e-3)


def test_the_gumbel_loss_is_least_at_the_log_of_the_mean_exponential():
    assert descended(gumbel_loss, NORMAL) == pytest.approx(0.5, abs=1e-3)


@pytest.mark.parametrize(
    ("scale", "released", "expected"), [(1, False, 1.55), (1, True, 0.65), (10, False, 13.15)]
)
def test_chi2_of_a_normal_law_has_the_minimiser_worked_by_hand(
    scale: float, released: bool, expected: float
):
    # The conjugate: E (Q - (v - 2))+ = 2/3, solved with the normal law's unit loss at z = -.45 and
    # 1.115.
    loss = partial(chi2_loss, weight=0.75, released=released)
    assert scipy_minimiser(loss, scale * NORMAL) == pytest.approx(expected, abs=0.02)


def test_the_released_chi2_does_not_grow_with_the_rewards():
    loss = partial(chi2_loss, weight=0.75, released=True)
    assert scipy_minimiser(loss, 10.0 * NORMAL) == pytest.approx(1.3, abs=0.05)


def test_the_released_chi2_rises_again_below_minus_four_and_the_conjugate_does_not():
    far = torch.tensor([-3.0, -4.0, -6.0])
    # f* times .5, minus .5 x: the floor is 0 at -3 and -4, and -6 + 9 = 3 below.
    assert chi2_loss(far, 0.5, released=True).tolist() == [1.5, 2.0, 4.5]
    assert chi2_loss(far, 0.5).tolist() == [1.0, 1.5, 2.5]


def test_the_conjugate_lies_above_a_value_that_does_not_vary():
    # E (1 + x/2) = (1 - l)/l at l = .75 gives x = -4/3.
    certain = torch.zeros(5, dtype=torch.float64)
    assert scipy_minimiser(partial(chi2_loss, weight=0.75), certain) == pytest.approx(
        4.0 / 3.0, abs=1e-3
    )
    config = DualCriticsConfig(divergence="chi2", weight=0.75, temperature=0.03)
    assert scipy_minimiser(partial(in_sample_value_loss, config=config), certain) == pytest.approx(
        0.04, abs=1e-3
    )


def test_beyond_its_clip_the_gumbel_loss_drives_v_away_from_q():
    advantage = torch.tensor([6.9, 7.1], requires_grad=True)
    (slope,) = torch.autograd.grad(gumbel_loss(advantage).sum(), advantage)
    assert slope[0].item() == pytest.approx(math.exp(6.9) - 1.0, rel=1e-5)
    assert slope[1].item() == -1.0


@pytest.mark.parametrize(
    "config",
    [
        DualCriticsConfig(divergence="chi2"),
        DualCriticsConfig(divergence="tv"),
        GumbelCriticsConfig(),
    ],
)
def test_all_losses_but_the_expectile_divide_the_advantage_by_the_temperature(config):
    advantage = torch.tensor([-1.0, 0.5, 2.0])
    wide = in_sample_value_loss(3.0 * advantage, replace(config, temperature=3.0))
    assert torch.allclose(wide, in_sample_value_loss(advantage, config))


def test_iql_has_the_expectile_loss_and_critics_without_a_loss_are_refused():
    advantage = torch.tensor([-1.0, 0.5, 2.0])
    assert torch.equal(
        in_sample_value_loss(advantage, IqlConfig(expectile=0.7)), expectile_loss(advantage, 0.7)
    )
    with pytest.raises(HandoffError, match="InSampleCriticsConfig have no loss of V"):
        in_sample_value_loss(advantage, InSampleCriticsConfig())
