import numpy as np
import pytest
import torch

from policies.families.action_tokens import (
    QuantileNormalizer,
    draw_tokens,
    to_tokens,
    to_values,
    token_entropy,
    token_log_prob,
    vocabulary_ids,
)
from robots.errors import HandoffError

PROBABILITY = (0.2, 0.5, 0.3)
LOGITS = torch.tensor(PROBABILITY).log() + 7.0


def drawn(logits: torch.Tensor, noise: list[float], temperature: float = 1.0) -> list[int]:
    return draw_tokens(logits.expand(len(noise), -1), torch.tensor(noise), temperature).tolist()


def test_four_bins_are_each_half_a_unit_wide():
    value = torch.tensor([-1.0, -0.51, -0.5, -0.01, 0.0, 0.49, 0.5, 1.0])
    assert to_tokens(value, 4).tolist() == [0, 0, 1, 1, 2, 2, 3, 3]


def test_a_token_stands_for_the_centre_of_its_bin():
    assert to_values(torch.arange(4), 4).tolist() == [-0.75, -0.25, 0.25, 0.75]


def test_values_outside_fall_into_the_outermost_bins():
    assert to_tokens(torch.tensor([-3.0, 1.001, 50.0]), 256).tolist() == [0, 255, 255]


def test_every_token_comes_back_from_its_value():
    tokens = torch.arange(256)
    assert torch.equal(to_tokens(to_values(tokens, 256), 256), tokens)


def test_a_value_comes_back_to_within_half_a_bin_and_no_closer():
    value = torch.linspace(-1.0, 1.0, 100_001, dtype=torch.float64)
    error = (to_values(to_tokens(value, 256), 256) - value).abs().max().item()
    assert 0.99 / 256 < error <= 1 / 256 + 1e-7


@pytest.mark.parametrize(("quantile", "half_range"), [(0.01, 49.0), (0.0, 50.0)])
def test_bins_lie_between_the_quantiles(quantile: float, half_range: float):
    # Of 0, 1 .. 100 the first percentile is 1 and the last 99.
    normalizer = QuantileNormalizer((1,), quantile)
    normalizer.fit(np.arange(101.0)[:, None])
    assert normalizer.centre.tolist() == [pytest.approx(50.0)]
    assert normalizer.scale.tolist() == [pytest.approx(half_range)]
    value = torch.tensor([[50.0 - half_range], [50.0 + half_range]])
    assert torch.allclose(normalizer(value), torch.tensor([[-1.0], [1.0]]))
    assert torch.allclose(normalizer.inverse(normalizer(value)), value)


def test_every_entry_of_every_step_has_quantiles_of_its_own():
    values = np.arange(101.0)[:, None, None] * np.array([[1.0, 2.0], [3.0, 4.0]])
    normalizer = QuantileNormalizer((2, 2), 0.01)
    normalizer.fit(values)
    assert torch.allclose(normalizer.scale, torch.tensor([[49.0, 98.0], [147.0, 196.0]]))


def test_a_gripper_that_seldom_closes_is_binned_between_its_extremes():
    # Closed in 5 of 1000 steps: both percentiles are 0.
    normalizer = QuantileNormalizer((1,), 0.01)
    normalizer.fit((np.arange(1000) < 5).astype(np.float32)[:, None])
    assert (normalizer.centre.item(), normalizer.scale.item()) == (0.5, 0.5)


def test_a_constant_entry_is_only_centred():
    normalizer = QuantileNormalizer((1,), 0.01)
    normalizer.fit(np.full((10, 1), 3.0))
    assert (normalizer.centre.item(), normalizer.scale.item()) == (3.0, 1.0)


def test_noise_draws_the_token_at_its_cumulative_probability():
    # Phi is 0.10, 0.21, 0.69 and 0.73; the first token ends at 0.2, the second at 0.7.
    assert drawn(LOGITS, [-1.2816, -0.8064, 0.5, 0.6]) == [0, 1, 1, 2]


def test_a_token_without_probability_is_never_drawn_even_by_the_most_extreme_noise():
    logits = torch.tensor([-1e4, 0.0, 0.0, -1e4])
    assert drawn(logits, [-40.0, -8.0, 8.0, 40.0]) == [1, 1, 2, 2]


def test_ten_thousand_noises_draw_tokens_as_often_as_the_softmax_says():
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(10_000))
    tokens = draw_tokens(LOGITS.expand(10_000, -1), noise, 1.0)
    share = torch.bincount(tokens, minlength=3) / 10_000
    assert torch.allclose(
        share, torch.tensor(PROBABILITY), atol=0.02
    )  # four deviations of a share of one half


def test_temperature_two_draws_from_the_square_roots_of_the_probabilities():
    # The roots 0.4472, 0.7071 and 0.5477 sum to 1.7020: tokens end at 0.2628 and 0.6782; Phi is
    # 0.2611 and 0.6808.
    assert drawn(LOGITS, [-0.64, 0.47], temperature=2.0) == [0, 2]
    assert drawn(LOGITS, [-0.64, 0.47], temperature=1.0) == [1, 1]


def test_at_temperature_zero_the_likeliest_token_is_taken_whatever_the_noise():
    assert drawn(LOGITS, [-3.0, 0.0, 3.0], temperature=0.0) == [1, 1, 1]


def test_log_probability_is_that_of_the_softmax():
    log_prob = token_log_prob(LOGITS.expand(3, -1), torch.arange(3), 1.0)
    assert torch.allclose(log_prob.exp(), torch.tensor(PROBABILITY))


def test_log_probability_at_temperature_two():
    log_prob = token_log_prob(LOGITS, torch.tensor(1), 2.0)
    assert log_prob.exp().item() == pytest.approx(0.41546, abs=1e-4)


def test_entropy_of_a_worked_softmax():
    # 0.2 ln 5 + 0.5 ln 2 + 0.3 ln(10/3) = 0.32189 + 0.34657 + 0.36119.
    assert token_entropy(LOGITS, 1.0).item() == pytest.approx(1.02965, abs=1e-4)


def test_entropy_of_equal_logits_is_the_logarithm_of_their_number():
    assert token_entropy(torch.zeros(256), 0.3).item() == pytest.approx(np.log(256), abs=1e-5)


@pytest.mark.parametrize("temperature", [0.0, -1.0, float("nan")])
def test_the_likeliest_tokens_have_no_log_probability(temperature: float):
    with pytest.raises(HandoffError, match="expected more than 0"):
        token_log_prob(LOGITS, torch.tensor(1), temperature)
    with pytest.raises(HandoffError, match="expected more than 0"):
        token_entropy(LOGITS, temperature)


def test_bins_use_the_last_entries_of_the_vocabulary_backwards():
    assert vocabulary_ids(10, 3).tolist() == [9, 8, 7]


def test_a_vocabulary_smaller_than_the_bins_is_refused():
    with pytest.raises(HandoffError, match="vocabulary of 200 entries is smaller than the 256"):
        vocabulary_ids(200, 256)


@pytest.mark.parametrize("quantile", [-0.1, 0.5])
def test_quantiles_that_leave_no_values_between_them_are_refused(quantile: float):
    with pytest.raises(HandoffError, match=r"expected one in \[0, 0.5\)"):
        QuantileNormalizer((1,), quantile)


@pytest.mark.parametrize("values", [np.zeros((0, 1)), np.array([[np.nan]])])
def test_quantiles_of_nothing_or_of_nan_are_refused(values: np.ndarray):
    with pytest.raises(HandoffError, match="expected at least one and all of them finite"):
        QuantileNormalizer((1,), 0.01).fit(values)
