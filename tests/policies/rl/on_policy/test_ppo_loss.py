"""The PPO loss against its formulas row by row, and its options at their neutral values."""

import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policies.rl.on_policy.config import PpoConfig
from policies.rl.on_policy.ppo_loss import (
    Lagrangian,
    adaptive_learning_rate,
    clipped_value_loss,
    standardised,
    step_clips,
    step_discounts,
    surrogate,
)
from robots.errors import HandoffError

ROWS = 64


def drawn(seed: int = 0, rows: int = ROWS) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Log-probabilities now, those under the proximal policy, and advantages."""
    draw = np.random.default_rng(seed)
    proximal = torch.from_numpy(draw.normal(-3.0, 1.0, rows))
    log_prob = proximal + torch.from_numpy(draw.normal(0.0, 0.3, rows))
    return log_prob.requires_grad_(), proximal, torch.from_numpy(draw.normal(0.0, 1.0, rows))


def by_hand(ratio: float, advantage: float, low: float, high: float, dual: float | None) -> float:
    gain = min(ratio * advantage, min(max(ratio, 1.0 - low), 1.0 + high) * advantage)
    return max(gain, dual * advantage) if dual is not None and advantage < 0.0 else gain


@pytest.mark.parametrize(
    "config",
    [
        PpoConfig(),
        PpoConfig(clip=0.1, clip_high=0.28),
        PpoConfig(dual_clip=1.2),
        PpoConfig(clip=0.01),
    ],
)
def test_the_loss_is_the_formula_row_by_row(config):
    log_prob, proximal, advantage = drawn()
    found = surrogate(config, log_prob, proximal, advantage)
    ratios = np.exp((log_prob - proximal).detach().numpy())
    high = config.clip_high or config.clip
    gains = [
        by_hand(ratio, float(a), config.clip, high, config.dual_clip)
        for ratio, a in zip(ratios, advantage, strict=True)
    ]
    assert found.loss.item() == pytest.approx(-np.mean(gains), rel=1e-12)
    assert float(found.clipped) == np.mean((ratios < 1.0 - config.clip) | (ratios > 1.0 + high))
    assert float(found.kl) == pytest.approx(np.mean(ratios - 1.0 - np.log(ratios)), rel=1e-9)
    assert float(found.ratio) == ratios.max()


def test_at_the_policy_that_acted_the_gradient_is_that_of_the_policy():
    """Invariant 12: ratio 1, nothing clipped, the gradient that of REINFORCE with these
    advantages."""
    log_prob, _, advantage = drawn()
    found = surrogate(PpoConfig(), log_prob, log_prob.detach().clone(), advantage)
    assert (float(found.clipped), float(found.kl), float(found.ratio)) == (0.0, 0.0, 1.0)
    (gradient,) = torch.autograd.grad(found.loss, log_prob)
    (expected,) = torch.autograd.grad(-(log_prob * advantage).mean(), log_prob)
    torch.testing.assert_close(gradient, expected, rtol=1e-12, atol=0.0)


def test_a_row_beyond_its_clip_has_no_gradient_where_more_would_gain():
    log_prob = torch.tensor([0.5, 0.5, -0.5, -0.5], requires_grad=True)
    advantage = torch.tensor([1.0, -1.0, 1.0, -1.0])
    found = surrogate(PpoConfig(), log_prob, torch.zeros(4), advantage)
    (gradient,) = torch.autograd.grad(found.loss, log_prob)
    assert (gradient != 0.0).tolist() == [False, True, True, False]


def test_every_row_can_have_a_clip_of_its_own():
    log_prob, proximal, advantage = drawn()
    clips = torch.linspace(0.001, 0.5, ROWS, dtype=torch.float64)
    whole = surrogate(PpoConfig(), log_prob, proximal, advantage, clip=clips)
    rows = [
        surrogate(
            PpoConfig(clip=float(clip)),
            log_prob[i : i + 1],
            proximal[i : i + 1],
            advantage[i : i + 1],
        ).loss
        for i, clip in enumerate(clips)
    ]
    assert whole.loss.item() == pytest.approx(torch.stack(rows).mean().item(), rel=1e-9)


def test_a_proximal_policy_that_acted_is_plain_ppo():
    """Invariant 13, AReaL: equal proximal and behaviour policies leave PPO, bit for bit."""
    log_prob, proximal, advantage = drawn()
    plain = surrogate(PpoConfig(), log_prob, proximal, advantage)
    decoupled = surrogate(
        PpoConfig(behaviour_cap=5.0), log_prob, proximal, advantage, behaviour=proximal
    )
    assert torch.equal(plain.loss, decoupled.loss)


def test_old_data_weigh_as_much_as_the_proximal_policy_would_have_made_them():
    log_prob, proximal, advantage = drawn()
    behaviour = proximal + torch.linspace(-3.0, 3.0, ROWS, dtype=torch.float64)
    found = surrogate(
        PpoConfig(behaviour_cap=5.0), log_prob, proximal, advantage, behaviour=behaviour
    )
    rows = [
        surrogate(
            PpoConfig(), log_prob[i : i + 1], proximal[i : i + 1], advantage[i : i + 1]
        ).loss.item()
        * min(math.exp(float(proximal[i] - behaviour[i])), 5.0)
        for i in range(ROWS)
    ]
    assert found.loss.item() == pytest.approx(np.mean(rows), rel=1e-9)


def test_rows_that_do_not_count_change_nothing():
    log_prob, proximal, advantage = drawn()
    valid = torch.arange(ROWS) < 40
    advantage = torch.where(valid, advantage, torch.tensor(float("nan"), dtype=torch.float64))
    found = surrogate(PpoConfig(), log_prob, proximal, advantage, valid=valid)
    alone = surrogate(PpoConfig(), log_prob[:40], proximal[:40], advantage[:40])
    assert found.loss.item() == pytest.approx(alone.loss.item(), rel=1e-12)
    assert float(found.kl) == pytest.approx(float(alone.kl), rel=1e-12)


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_the_gradient_does_not_depend_on_who_has_which_rows(workers):
    log_prob, proximal, advantage = drawn()
    valid = torch.arange(ROWS) % 3 != 0
    values, targets = drawn(1)[0].detach(), drawn(2)[0].detach()
    rows = float(valid.sum())
    parts = torch.arange(ROWS).chunk(workers)

    def loss(take: torch.Tensor, count: float | None) -> torch.Tensor:
        policy = surrogate(
            PpoConfig(),
            log_prob[take],
            proximal[take],
            advantage[take],
            valid=valid[take],
            rows=count,
        )
        config = PpoConfig(value_clip=0.2)
        return policy.loss + clipped_value_loss(
            config, log_prob[take], targets[take], values[take], valid=valid[take], rows=count
        )

    (whole,) = torch.autograd.grad(loss(torch.arange(ROWS), None), log_prob)
    shared = sum(torch.autograd.grad(loss(part, rows), log_prob)[0] for part in parts)
    torch.testing.assert_close(shared, whole, rtol=1e-12, atol=1e-15)


def test_values_are_pulled_no_further_than_the_clip():
    value = torch.tensor([0.0, 0.5, -0.5], requires_grad=True)
    before, target = torch.zeros(3), torch.ones(3)
    plain = clipped_value_loss(PpoConfig(), value, target, before)
    assert plain.item() == pytest.approx(0.5 * np.mean([1.0, 0.25, 2.25]))
    clipped = clipped_value_loss(PpoConfig(value_clip=0.2), value, target, before)
    assert clipped.item() == pytest.approx(0.5 * np.mean([1.0, 0.64, 2.25]))
    (gradient,) = torch.autograd.grad(clipped, value)
    assert gradient[1] == 0.0


def test_errors_of_values_beyond_hubers_bound_count_linearly():
    value, target = torch.tensor([0.5, 3.0], requires_grad=True), torch.zeros(2)
    loss = clipped_value_loss(PpoConfig(value_huber=1.0), value, target, value.detach())
    # Half the square within, |error| - half the bound beyond.
    assert loss.item() == pytest.approx((0.125 + 2.5) / 2)
    (gradient,) = torch.autograd.grad(loss, value)
    assert gradient.tolist() == pytest.approx([0.25, 0.5])
    near = clipped_value_loss(PpoConfig(value_huber=10.0), value, target, value.detach())
    assert near.item() == pytest.approx(
        clipped_value_loss(PpoConfig(), value, target, value.detach()).item()
    )


def _reported(sums: Iterator[torch.Tensor], part: torch.Tensor) -> torch.Tensor:
    """The next of sums that all workers have."""
    return next(sums)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(-1e3, 1e3), min_size=2, max_size=40), st.integers(1, 4), st.randoms())
def test_advantages_are_normalised_over_all_workers(numbers, workers, chance):
    advantage = torch.tensor(numbers)
    valid = torch.tensor([chance.random() < 0.8 for _ in numbers])
    whole = standardised(advantage, valid)
    parts = list(torch.arange(len(numbers)).tensor_split(workers))
    # All workers at once: what each would sum is summed here.
    counted = [valid[part] for part in parts]
    total = torch.stack(
        [valid.sum().double(), torch.where(valid, advantage, torch.zeros(())).double().sum()]
    )
    mean = total[1] / max(1.0, float(total[0]))
    squares = (
        torch.where(valid, advantage.double() - mean, torch.zeros((), dtype=torch.float64))
        .square()
        .sum()
    )
    sums = [[total, squares] for _ in parts]
    shared = torch.cat(
        [
            standardised(advantage[part], mask, partial(_reported, iter(mine)))
            for part, mask, mine in zip(parts, counted, sums, strict=True)
        ]
    )
    torch.testing.assert_close(shared, whole, rtol=1e-6, atol=1e-6)
    assert (whole[~valid] == 0.0).all()


def test_normalised_advantages_have_mean_0_and_deviation_1():
    advantage = drawn()[2] * 7.0 + 3.0
    found = standardised(advantage)
    assert float(found.mean()) == pytest.approx(0.0, abs=1e-12)
    assert float(found.std(correction=0)) == pytest.approx(1.0, abs=1e-6)


def test_advantages_that_are_all_the_same_tell_nothing():
    """Invariant 13, GRPO: equal rewards give no gradient; rounding must not be blown up."""
    assert not standardised(torch.full((8,), 0.1)).any()
    assert not standardised(torch.zeros(8)).any()


def test_clips_of_denoising_steps_are_those_of_dppo():
    expected = [0.001, 0.0012, 0.0015, 0.0018, 0.0023, 0.0030, 0.0040, 0.0054, 0.0073, 0.01]
    np.testing.assert_allclose(step_clips(10, 0.01, 0.001), expected, atol=6e-5)
    assert step_clips(1, 0.01, 0.001).tolist() == pytest.approx([0.01])
    for wrong in ((0, 0.1, 0.01), (5, 0.01, 0.1), (5, 0.1, 0.0)):
        with pytest.raises(HandoffError, match="denoising steps with clip_min"):
            step_clips(*wrong)


def test_the_noisiest_step_is_discounted_most():
    np.testing.assert_allclose(step_discounts(3, 0.9), [0.81, 0.9, 1.0])


def test_a_cost_without_a_limit_is_plain_ppo_bit_for_bit():
    multiplier = Lagrangian(limit=math.inf)
    multiplier.update(1e9)
    advantage = drawn()[2]
    assert torch.equal(multiplier.combine(advantage, torch.full_like(advantage, 1e9)), advantage)


def test_a_gain_answers_the_cost_of_now_beside_the_integral():
    multiplier = Lagrangian(limit=10.0, rate=0.1, gain=0.5, integral=0.0)
    multiplier.update(14.0)
    assert (multiplier.integral, multiplier.multiplier) == (
        pytest.approx(0.4),
        pytest.approx(0.4 + 2.0),
    )
    multiplier.update(9.0)
    assert (multiplier.integral, multiplier.multiplier) == (pytest.approx(0.3), 0.0)


def test_the_multiplier_rises_above_the_limit_and_falls_to_0_below_it():
    multiplier = Lagrangian(limit=10.0, rate=0.1, integral=0.0)
    multiplier.update(15.0)
    assert multiplier.multiplier == pytest.approx(0.5)
    combined = multiplier.combine(torch.tensor([3.0]), torch.tensor([2.0]))
    assert float(combined) == pytest.approx((3.0 - 1.0) / 1.5)
    for _ in range(3):
        multiplier.update(5.0)
    assert multiplier.multiplier == 0.0


def test_the_rate_follows_the_divergence_between_its_bounds():
    assert adaptive_learning_rate(1e-4, 0.05, 0.02) == pytest.approx(1e-4 / 1.5)
    assert adaptive_learning_rate(1e-4, 0.005, 0.02) == pytest.approx(1.5e-4)
    assert adaptive_learning_rate(1e-4, 0.02, 0.02) == 1e-4
    assert adaptive_learning_rate(1.2e-6, 1.0, 0.02) == 1e-6
    assert adaptive_learning_rate(9e-3, 0.0, 0.02) == 1e-2


@pytest.mark.parametrize(
    "wrong", [{"clip": 0.0}, {"clip": 1.0}, {"clip_high": 0.1}, {"dual_clip": 1.0}]
)
def test_clips_that_make_no_sense_are_refused(wrong):
    with pytest.raises(HandoffError, match="ppo: "):
        PpoConfig(**wrong)


def test_spos_penalty_holds_rows_with_a_negative_advantage_where_the_clip_ends():
    """Of rows with a positive advantage it changes nothing."""
    config = PpoConfig(clip=0.1, negative="quadratic")
    log_prob, proximal, advantage = drawn()
    ratio = (log_prob - proximal).detach().exp()
    penalised = ratio * advantage - advantage.abs() * (ratio - 1.0) ** 2 / (2.0 * 0.1)
    clipped = torch.minimum(ratio * advantage, ratio.clamp(0.9, 1.1) * advantage)
    gains = torch.where(advantage < 0.0, penalised, clipped)
    found = surrogate(config, log_prob, proximal, advantage)
    assert found.loss.item() == pytest.approx(-gains.mean().item(), rel=1e-12)
    # The gradient changes its sign at 1 - clip, where PPO's ends.
    ends = torch.tensor([0.85, 0.9, 0.95], dtype=torch.float64).log().requires_grad_()
    one = torch.ones(3, dtype=torch.float64)
    surrogate(config, ends, 0.0 * one, -one).loss.backward()
    assert ends.grad is not None
    assert ends.grad[0] < -1e-3
    assert ends.grad[1].item() == pytest.approx(0.0, abs=1e-12)
    assert ends.grad[2] > 1e-3


def test_the_logarithm_of_a_ratio_is_bounded():
    config = PpoConfig(log_ratio_limit=0.5)
    log_prob = torch.tensor([-2.0, 0.2, 9.0], dtype=torch.float64, requires_grad=True)
    found = surrogate(
        config, log_prob, torch.zeros(3, dtype=torch.float64), -torch.ones(3, dtype=torch.float64)
    )
    assert float(found.ratio) == pytest.approx(math.exp(0.5))
    found.loss.backward()
    assert log_prob.grad is not None
    assert log_prob.grad[0] == log_prob.grad[2] == 0.0
    assert log_prob.grad[1] > 0.0


def test_two_bounds_of_rows_with_a_negative_advantage_are_refused():
    with pytest.raises(HandoffError, match="Set one of the two"):
        PpoConfig(dual_clip=3.0, negative="quadratic")
