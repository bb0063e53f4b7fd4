"""Networks with traces: initial zeros, and gradients against autograd."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from policies.rl.streaming.networks import TracedMlp


def autograd_output(network: TracedMlp, parameters: Tensor, vector: Tensor) -> Tensor:
    """The same function of one vector of parameters, in differentiable operations."""
    sizes = [size for pair in pairwise(network.widths) for size in (pair[0] * pair[1], pair[1])]
    parts = parameters.split(sizes)
    last = len(network.widths) - 2
    for layer, (weight, bias) in enumerate(zip(parts[::2], parts[1::2], strict=True)):
        vector = functional.linear(vector, weight.view(len(bias), -1), bias)
        if layer < last:
            vector = functional.layer_norm(vector, vector.shape, eps=1e-6)
            vector = functional.leaky_relu(vector)
    return vector


@pytest.mark.parametrize("hidden", [(), (7,), (16, 12)])
def test_traces_are_the_discounted_sum_of_autograds_gradients(hidden: tuple[int, ...]) -> None:
    network, expected = TracedMlp(5, hidden, 3, 0.5, seed=1), torch.zeros(0)
    generator = torch.Generator().manual_seed(2)
    network.values_P += 0.1 * torch.randn(network.values_P.shape, generator=generator)
    for _ in range(4):
        vector = torch.randn(5, generator=generator)
        direction = torch.randn(3, generator=generator)
        parameters = network.values_P.clone().requires_grad_()
        reference = autograd_output(network, parameters, vector)
        (gradient,) = torch.autograd.grad(reference @ direction, parameters)
        expected = gradient + 0.7 * expected if len(expected) else gradient
        output, tape = network(vector)
        torch.testing.assert_close(output, reference.detach(), rtol=1e-5, atol=1e-5)
        network.accumulate(tape, direction, 0.7)
        torch.testing.assert_close(network.traces_P, expected, rtol=1e-4, atol=1e-4)
    network.reset_traces()
    assert not network.traces_P.any()


@pytest.mark.parametrize(
    ("inputs", "sparsity", "zeros"),
    # The share of the inputs rounded up, but never all of them.
    [(20, 0.9, 18), (128, 0.9, 116), (25, 0.5, 13), (3, 0.9, 2), (1, 0.9, 0), (10, 0.0, 0)],
)
def test_every_unit_begins_with_a_share_of_zeros(inputs: int, sparsity: float, zeros: int) -> None:
    network = TracedMlp(inputs, (64,), 2, sparsity, seed=0)
    first = network.weights[0]
    assert ((first == 0.0).sum(dim=1) == zeros).all()
    assert not network.biases[0].any()
    # The others are uniform within 1 / sqrt(inputs), which some of them come near.
    assert float(first.abs().max()) <= inputs**-0.5
    assert float(first.abs().max()) >= 0.9 * inputs**-0.5
    # Which inputs are left differs from unit to unit.
    if zeros > 0:
        assert len({tuple(row) for row in (first != 0.0).tolist()}) > 1


def test_layer_norm_makes_the_output_independent_of_the_inputs_scale() -> None:
    network = TracedMlp(6, (32, 32), 1, 0.5, seed=3)
    vector = torch.randn(6, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(network(vector)[0], network(1000.0 * vector)[0], rtol=1e-3, atol=0.0)
    linear = TracedMlp(6, (), 1, 0.5, seed=3)
    assert float(linear(1000.0 * vector)[0]) == pytest.approx(1000.0 * float(linear(vector)[0]))


def test_a_restored_network_has_the_same_values_and_traces_in_its_layers() -> None:
    one, other = TracedMlp(4, (8,), 2, 0.5, seed=0), TracedMlp(4, (8,), 2, 0.5, seed=1)
    vector = torch.ones(4)
    assert not torch.equal(one(vector)[0], other(vector)[0])
    one.accumulate(one(vector)[1], torch.ones(2), 0.0)
    other.load_state_dict(one.state_dict())
    assert torch.equal(one(vector)[0], other(vector)[0])
    for network in (one, other):
        network.accumulate(network(vector)[1], torch.ones(2), 0.5)
    assert torch.equal(one.traces_P, other.traces_P)
    assert one.traces_P.any()
