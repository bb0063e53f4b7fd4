"""Networks of the reinforcement learners: passes by hand against autograd, Polyak averaging,
features."""

import itertools
from typing import Any

import pytest
import torch

from policies.rl.networks.config import MlpSizes
from policies.rl.networks.ensemble import EnsembleMlp, Features, batched_pass, move_towards
from policies.rl.networks.fused_mlp import activated_product
from policies.rl.replay.transitions import Sizes
from robots.errors import HandoffError

FORMS = list(itertools.product(("tanh", "relu"), (False, True), ((8, 12), ())))


def network(
    activation: str, layer_norm: bool, hidden: tuple[int, ...], members: int = 3, outputs: int = 2
) -> EnsembleMlp:
    torch.manual_seed(0)
    sizes = MlpSizes(hidden=hidden, activation=activation, layer_norm=layer_norm)  # type: ignore[arg-type]
    made = EnsembleMlp(members, 5, sizes, outputs)
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    return made


def passes_agree(
    made: EnsembleMlp, inputs: torch.Tensor, members: list[int] | None, head: bool, tolerance: float
) -> None:
    asked = None if members is None else torch.tensor(members)
    layers = made.layers()
    if not head:
        layers = layers._replace(weights=layers.weights[:-1], biases=layers.biases[:-1])
    own = made(inputs, asked) if head else made.hidden(inputs, asked)
    plain = batched_pass(made.sizes, layers, head, inputs, asked)
    torch.testing.assert_close(own, plain, rtol=tolerance, atol=tolerance)
    with torch.no_grad():
        torch.testing.assert_close(made(inputs, asked) if head else made.hidden(inputs, asked), own)
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
def test_passes_by_hand_equal_autograd(
    activation: str,
    layer_norm: bool,
    hidden: tuple[int, ...],
    members: list[int] | None,
    shared: bool,
) -> None:
    for outputs, head in ((1, True), (2, True), *(((2, False),) if hidden else ())):
        made = network(activation, layer_norm, hidden, outputs=outputs)
        shape = (6, 5) if shared else (3 if members is None else len(members), 6, 5)
        for dtype, tolerance in ((torch.float32, 1e-5), (torch.float64, 1e-12)):
            passes_agree(
                made.to(dtype),
                torch.randn(shape, dtype=dtype, requires_grad=True),
                members,
                head,
                tolerance,
            )


def test_one_member_is_passed_like_many() -> None:
    made = network("relu", True, (8,), members=1)
    passes_agree(made, torch.randn(6, 5, requires_grad=True), None, True, 1e-5)


def test_members_are_those_asked_for_in_their_order() -> None:
    made = network("tanh", True, (8,))
    shown = torch.randn(4, 5)
    torch.testing.assert_close(made(shown, torch.tensor([2, 0])), made(shown)[[2, 0]])


def test_a_frozen_network_passes_gradients_on_and_keeps_none() -> None:
    made, shown = network("relu", True, (8,)), torch.randn(4, 5, requires_grad=True)
    made(shown).sum().backward()
    wanted, shown.grad = shown.grad, None
    made.zero_grad()
    made.requires_grad_(False)(shown).sum().backward()
    assert wanted is not None
    assert shown.grad is not None
    assert torch.equal(shown.grad, wanted)
    assert all(parameter.grad is None for parameter in made.parameters())


def test_a_second_derivative_is_refused() -> None:
    shown = torch.randn(4, 5, requires_grad=True)
    with pytest.raises(HandoffError, match="differentiable once"):
        torch.autograd.grad(network("tanh", True, (8,))(shown).sum(), shown, create_graph=True)


def test_a_trace_holds_no_product_of_ours() -> None:
    made = network("tanh", True, (8,))
    traced: Any = torch.jit.trace(made, torch.randn(4, 5), check_trace=False)
    assert "mkldnn" not in str(traced.graph)
    shown = torch.randn(9, 5)
    torch.testing.assert_close(traced(shown), made(shown), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("activation", ["none", "relu", "tanh"])
def test_products_take_transposed_matrices_and_apply_bias_and_activation(activation: str) -> None:
    torch.manual_seed(1)
    left, right, bias = torch.randn(9, 6).t(), torch.randn(4, 9).t(), torch.randn(4)
    plain = left @ right + bias
    wanted = {"none": plain, "relu": plain.relu(), "tanh": plain.tanh()}[activation]
    torch.testing.assert_close(
        activated_product(left, right, bias, activation), wanted, rtol=1e-5, atol=1e-5
    )


def test_layer_norm_ignores_a_shift_and_a_scale_of_what_the_layer_gives() -> None:
    sizes = MlpSizes(hidden=(8,), activation="tanh", layer_norm=True)
    made, shown = EnsembleMlp(1, 5, sizes, 1), torch.randn(4, 5)
    before = made(shown)
    with torch.no_grad():
        made.weights[0].mul_(3.0)
        made.biases[0].add_(2.0)
    torch.testing.assert_close(made(shown), before, rtol=1e-4, atol=1e-5)


def test_initial_weights_are_orthogonal_and_the_last_layer_is_scaled() -> None:
    made = EnsembleMlp(2, 5, MlpSizes(hidden=(8,), activation="relu"), 3, final_scale=0.01)
    first, last = made.weights[0][1], made.weights[1][0]
    torch.testing.assert_close(first @ first.t(), 2.0 * torch.eye(5), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(last.t() @ last, 1e-4 * torch.eye(3), rtol=1e-5, atol=1e-8)
    assert not torch.equal(made.weights[0][0], first)


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
    wanted = 0.75 * target.weight.detach() + 0.25 * source.weight.detach()
    move_towards(target, source, 0.25)
    torch.testing.assert_close(target.weight.detach(), wanted)


def test_features_are_normalised_and_show_differences_in_physical_units() -> None:
    features = Features(Sizes(observation=3, action=1, differences=((0, 1, 2, 0.5),)))
    features.fit(torch.tensor([0.0, 2.0, -1.0]), torch.tensor([4.0, 2.0, 1.0]))
    shown = features(torch.tensor([[3.0, 2.5, 0.5]]))
    # (3 - 2) / 2, 2.5 - 2 as it does not vary, .5 / 1; then (3 - 2.5) / .5 and (2.5 - .5) / .5.
    assert shown.tolist() == [[0.5, 0.5, 0.5, 1.0, 4.0]]
    assert features.size == 5


def test_close_ups_bend_what_is_far_and_take_entries_alone_or_less_others() -> None:
    features = Features(Sizes(observation=3, action=1, close_ups=((0, -1, 1, 0.5), (1, 2, 1, 0.1))))
    shown = features(torch.tensor([[1.0, 0.25, 0.2], [-9.0, 5.0, 0.0]]))
    # tanh(1 / .5) and tanh((.25 - .2) / .1); far away -1 and 1.
    assert shown[:, 3:].tolist() == [pytest.approx([0.964028, 0.462117], abs=1e-5), [-1.0, 1.0]]
    assert features.size == 5
