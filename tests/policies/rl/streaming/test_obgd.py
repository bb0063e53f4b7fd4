"""ObGD: steps worked by hand, and the bound on overshooting."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from policies.rl.streaming.networks import TracedMlp
from policies.rl.streaming.obgd import ObGd

DISCOUNT = 0.99


def test_steps_worked_by_hand() -> None:
    network = TracedMlp(2, (), 1, 0.0, seed=0)
    network.values_P.zero_()
    optimizer = ObGd(network, learning_rate=0.5, kappa=2.0)
    # Traces of length 1.5: .5 * 2 * max(|d|, 1) * 1.5 = 1.5 for |d| <= 1, and 6 for d = -4.
    network.traces_P.copy_(torch.tensor([1.0, -0.25, 0.25]))
    assert optimizer.step(0.2) == pytest.approx(0.5 / 1.5)
    assert network.values_P.tolist() == pytest.approx([0.2 / 3, -0.05 / 3, 0.05 / 3])
    network.values_P.zero_()
    assert optimizer.step(-4.0) == pytest.approx(0.5 / 6.0)
    assert network.values_P.tolist() == pytest.approx([-1 / 3, 1 / 12, -1 / 12])
    # Short traces: the bound does not shorten the step.
    network.traces_P.copy_(torch.tensor([0.1, 0.0, 0.0]))
    assert optimizer.step(1.0) == 0.5


def overshoots(kappa: float, trace_lambda: float, steps: int) -> int:
    """Number of random steps after which the TD error of a linear value has another sign."""
    rng = np.random.default_rng(0)
    network = TracedMlp(8, (), 1, 0.0, seed=0)
    optimizer = ObGd(network, learning_rate=1.0, kappa=kappa)
    vectors = torch.from_numpy(rng.uniform(-1.0, 1.0, (steps + 1, 8)).astype(np.float32))
    # Half of the features are at their bounds, as in the worst case.
    vectors[::2] = vectors[::2].sign()
    rewards = rng.standard_cauchy(steps)
    count = 0
    for step in range(steps):
        vector, following = vectors[step], vectors[step + 1]

        def error(now: torch.Tensor, then: torch.Tensor, reward: float) -> float:
            value, next_value = float(network(now)[0]), float(network(then)[0])
            return reward + DISCOUNT * next_value - value

        before = error(vector, following, rewards[step])
        network.accumulate(network(vector)[1], torch.ones(1), DISCOUNT * trace_lambda)
        optimizer.step(before)
        after = error(vector, following, rewards[step])
        # Rounding in float32 may turn an error that is next to 0.
        count += after * before < 0.0 and abs(after) > 1e-4 * max(1.0, abs(before))
        if rng.random() < 0.01:
            network.reset_traces()
    return count


@pytest.mark.parametrize("trace_lambda", [0.0, 0.8])
def test_with_kappa_of_two_the_td_error_of_a_linear_value_keeps_its_sign(
    trace_lambda: float,
) -> None:
    assert overshoots(2.0, trace_lambda, 10_000) == 0


def test_without_the_bound_it_does_not() -> None:
    """Negative control: a divisor near 0 takes the whole learning rate."""
    assert overshoots(1e-6, 0.0, 2_000) > 100
    assert overshoots(0.5, 0.0, 2_000) > 0
