"""Tests MLP ensembles of the RL learners: fused passes against autograd, Polyak averaging,
features."""

import itertools
from typing import Any

import pytest
import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.networks.ensemble import EnsembleMlp, Features, batched_forward, move_towards
from policies.rl.networks.fused_mlp import fused_linear
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError

FORMS = list(itertools.product(("tanh", "relu"), (False, True), ((8, 12), ())))


def network(
    activation: str, layer_norm: bool, hidden: tuple[int, ...], members: int = 3, outputs: int = 2
) -> EnsembleMlp:
    torch.manual_seed(0)
    sizes = MlpSizes(hidden=hidden, activation=activation, layer_norm=layer_norm)  # type: ignore[arg-type]
    mlp = EnsembleMlp(members, 5, sizes, outputs)
    for parameter in mlp.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return mlp


def passes_agree(
    mlp: EnsembleMlp, inputs: torch.Tensor, members: list[int] | None, head: bool, tolerance: float
) -> None:
    selected = None if members is None else torch.tensor(members)
    layers = mlp.layers()
    if not head:
        layers = layers._replace(weights=layers.weights[:-1], biases=layers.biases[:-1])
    own = mlp(inputs, selected) if head else mlp.hidden(inputs, selected)
    plain = batched_forward(mlp.sizes, layers, head, inputs, selected)
    torch.testing.assert_close(own, plain, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        torch.testing.assert_close(
            mlp(inputs, selected) if head else mlp.hidden(inputs, selected), own
        )
    upstream = torch.randn_like(own)
    leaves = [inputs, *(parameter for kind in layers for parameter in kind)]
    gradients, references = (
        torch.autograd.grad(answer, leaves, upstream) for answer in (own, plain)
    )
    for gradient, reference in zip(gradients, references, strict=True):
        torch.testing.assert_close(gradient, reference, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize(("activation", "layer_norm", "hidden"), FORMS)
@pytest.mark.parametrize("members", [None, [2, 0], [1]])
@pytest.mark.parametrize("shared", [True, False])
def test_fused_passes_equal_autograd(
    activation: str,
    layer_norm: bool,
    hidden: tuple[int, ...],
    members: list[int] | None,
    shared: bool,
) -> None:
    for outputs, head in ((1, True), (2, True), *(((2, False),) if hidden else ())):
        mlp = network(activation, layer_norm, hidden, outputs=outputs)
        shape = (6, 5) if shared else (3 if members is None else len(members), 6, 5)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
            passes_agree(
                mlp.to(dtype),
                torch.randn(shape, dtype=dtype, requires_grad=True),
                members,
                head,
                tolerance,
            )


def test_a_single_member_is_evaluated_like_many() -> None:
    mlp = network("relu", True, (8,), members=1)
    passes_agree(mlp, torch.randn(6, 5, requires_grad=True), None, True, 1e-5)


def test_selected_members_are_evaluated_in_the_given_order() -> None:
    mlp = network("tanh", True, (8,))
    inputs = torch.randn(4, 5)
    torch.testing.assert_close(mlp(inputs, torch.tensor([2, 0])), mlp(inputs)[[2, 0]])


def test_a_frozen_network_passes_gradients_on_and_keeps_none() -> None:
    mlp, inputs = network("relu", True, (8,)), torch.randn(4, 5, requires_grad=True)
    mlp(inputs).sum().backward()
    expected, inputs.grad = inputs.grad, None
    mlp.zero_grad()
    mlp.requires_grad_(False)(inputs).sum().backward()
    assert expected is not None
    assert inputs.grad is not None
    assert torch.equal(inputs.grad, expected)
    assert all(parameter.grad is None for parameter in mlp.parameters())


def test_a_second_derivative_is_refused() -> None:
    inputs = torch.randn(4, 5, requires_grad=True)
    with pytest.raises(HandoffError, match="differentiable only once"):
        torch.autograd.grad(network("tanh", True, (8,))(inputs).sum(), inputs, create_graph=True)


def test_a_jit_trace_contains_no_custom_kernel() -> None:
    mlp = network("tanh", True, (8,))
    traced: Any = torch.jit.trace(mlp, torch.randn(4, 5), check_trace=False)
    assert "mkldnn" not in str(traced.graph)
    inputs = torch.randn(9, 5)
    torch.testing.assert_close(traced(inputs), mlp(inputs), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["none", "relu", "tanh"])
def test_products_take_transposed_matrices_and_apply_bias_and_activation(activation: str) -> None:
    torch.manual_seed(1)
    left, right, bias = torch.randn(9, 6).t(), torch.randn(4, 9).t(), torch.randn(4)
    plain = left @ right + bias
    expected = {"none": plain, "relu": plain.relu(), "tanh": plain.tanh()}[activation]
    torch.testing.assert_close(
        fused_linear(left, right, bias, activation), expected, rtol=1e-5, atol=1e-5
    )


def test_layer_norm_ignores_a_shift_and_a_scale_of_what_the_layer_gives() -> None:
    sizes = MlpSizes(hidden=(8,), activation="tanh", layer_norm=True)
    mlp, inputs = EnsembleMlp(1, 5, sizes, 1), torch.randn(4, 5)
    before = mlp(inputs)
    with torch.no_grad():
        mlp.weights[0].mul_(3.0)
        mlp.biases[0].add_(2.0)
    torch.testing.assert_close(mlp(inputs), before, rtol=1e-4, atol=1e-5)


def test_initial_weights_are_orthogonal_and_the_last_layer_is_scaled() -> None:
    mlp = EnsembleMlp(2, 5, MlpSizes(hidden=(8,), activation="relu"), 3, final_scale=0.01)
    first, last = mlp.weights[0][1], mlp.weights[1][0]
    torch.testing.assert_close(first @ first.t(), 2.0 * torch.eye(5), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last.t() @ last, 1e-4 * torch.eye(3), rtol=1e-5, atol=1e-8)
    assert not torch.equal(mlp.weights[0][0], first)


def test_polyak_averaging_has_moved_by_one_minus_its_power_after_n_steps() -> None:
    target, source = (EnsembleMlp(2, 3, MlpSizes(hidden=(4,)), 1) for _ in range(2))
    begin = [parameter.clone() for parameter in target.parameters()]
    for _ in range(7):
        move_towards(target, source, 0.1)
    share = 1.0 - 0.9**7
    for old, now, goal in zip(begin, target.parameters(), source.parameters(), strict=True):
        torch.testing.assert_close(now, old + share * (goal - old), rtol=1e-5, atol=1e-6)


def test_polyak_averaging_takes_other_modules_too() -> None:
    target, source = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    expected = 0.75 * target.weight.detach() + 0.25 * source.weight.detach()
    move_towards(target, source, 0.25)
    torch.testing.assert_close(target.weight.detach(), expected)


def test_features_are_normalised_and_relative_features_use_physical_units() -> None:
    features = Features(Sizes(observation=3, action=1, relative_features=((0, 1, 2, 0.5),)))
    features.fit(torch.tensor([0.0, 2.0, -1.0]), torch.tensor([4.0, 2.0, 1.0]))
    inputs = features(torch.tensor([[3.0, 2.5, 0.5]]))
    # (3 - 2) / 2, 2.5 - 2 as it does not vary, .5 / 1; then (3 - 2.5) / .5 and (2.5 - .5) / .5.
    assert inputs.tolist() == [[0.5, 0.5, 0.5, 1.0, 4.0]]
    assert features.size == 5


def test_scaled_features_saturate_and_use_entries_with_or_without_a_difference() -> None:
    features = Features(
        Sizes(observation=3, action=1, scaled_features=((0, -1, 1, 0.5), (1, 2, 1, 0.1)))
    )
    inputs = features(torch.tensor([[1.0, 0.25, 0.2], [-9.0, 5.0, 0.0]]))
    # tanh(1 / .5) and tanh((.25 - .2) / .1); far away -1 and 1.
    assert inputs[:, 3:].tolist() == [pytest.approx([0.964028, 0.462117], abs=1e-5), [-1.0, 1.0]]
    assert features.size == 5
