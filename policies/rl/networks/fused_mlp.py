"""Passes through ensembles of plain networks, forward and backward by hand, made for one processor
core.

Autograd would spend as long beside the matrix products as in them: a node per operation, gradients
nobody asked for, copies of transposed matrices. Here a network is one node, whatever its depth and
number of members. Its products are oneDNN's, whose kernels use what the processor has (on AMD they
run at twice the rate of those behind `torch.mm`) and which apply an activation while the result is
still in a register. Members are passed one after another: one member's activations fit the core's
own cache, those of ten do not.

`torch.compile` does not make up for it: an update of SAC with the same losses in torch's own
operations, compiled forward and backward, takes 37 % more processor time in the plain form, 14 % in
the default one and 12 % with ten critics (medians of 15 to 25 rounds; per-member products and the
C++ wrapper change little). It needs a C++ compiler, and 19 to 33 s of processor time before the
first update, or 3.5 s where the results are still in its cache. Measured on one core of an AMD EPYC
with torch 2.13; `compile_speedup` of `tests.benchmarks.rl` measures it again.

Everything is computed in the dtype of the weights; results equal autograd's up to rounding.

Shape suffixes: B batch, E members, I inputs, K inner size of a product, N its outputs, U outputs of
a network.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import linear

from robots.errors import HandoffError

Activation = Literal["tanh", "relu"]

NORM_EPSILON = 1e-6
"""Added to the variance by LayerNorm (flax's default, which RLPD and HIL-SERL use [C])."""

_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(
    torch.ops.mkldnn, "_linear_pointwise"
)
_KERNEL = torch.ops.mkldnn._linear_pointwise.default if _HAS_ONEDNN else None
_RELU_BACKWARD = torch.ops.aten.threshold_backward.grad_input
_TANH_BACKWARD = torch.ops.aten.tanh_backward.grad_input
_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward


class Form(NamedTuple):
    """What a pass has to know beside the weights."""

    activation: Activation
    layer_norm: bool
    members: tuple[int, ...]
    """Indices of the members to be asked, all different, in the order of the answers."""
    head: bool = True
    """Whether the last layer is passed as well, which has no activation."""


class Layers(NamedTuple):
    """Parameters of an ensemble, one tensor per layer, members first; without the head one layer
    fewer."""

    weights: Sequence[Tensor]
    """(E, I, N) each."""
    biases: Sequence[Tensor]
    """(E, 1, N) each."""
    gains: Sequence[Tensor]
    """(E, 1, N) each, of the LayerNorms; empty without them."""
    shifts: Sequence[Tensor]


class Member(NamedTuple):
    """One member's own parameters, or their gradients: views, one per layer."""

    weights: Sequence[Tensor]
    """(I, N) each."""
    transposed: Sequence[Tensor]
    """The same as (N, I)."""
    biases: Sequence[Tensor]
    """(N,) each."""
    gains: Sequence[Tensor]
    shifts: Sequence[Tensor]


class Passed(NamedTuple):
    """What the backward pass of one layer needs."""

    inputs: Tensor
    linear: Tensor | None = None
    """Before LayerNorm."""
    mean: Tensor | None = None
    deviation: Tensor | None = None
    """Its inverse."""
    output: Tensor | None = None
    """After the activation; the head has none."""


def activated_product(
    left_BK: Tensor, right_KN: Tensor, bias_N: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """(B, N): left times right, plus the bias, through `none`, `tanh` or `relu`."""
    return _multiplication(left_BK)(left_BK, right_KN.t(), bias_N, activation, [], "")


def _multiplication(like: Tensor) -> Any:
    """The function for products of such tensors, with the arguments of oneDNN's: the right matrix
    is transposed."""
    return _KERNEL if _KERNEL is not None and like.dtype == torch.float32 else _plain


def _plain(
    left_BK: Tensor,
    right_NK: Tensor,
    bias_N: Tensor | None,
    activation: str,
    scalars: list[float],
    algorithm: str,
) -> Tensor:
    out_BN = linear(left_BK, right_NK, bias_N)
    return out_BN if activation == "none" else activate_(out_BN, activation)


def activate_(hidden: Tensor, activation: str) -> Tensor:
    """The activation, in place. tanh(u) is 2 sigmoid(2u) - 1, which torch computes five times as
    fast."""
    return (
        torch.relu_(hidden)
        if activation == "relu"
        else hidden.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)
    )


def ensemble_pass(form: Form, layers: Layers, inputs: Tensor) -> Tensor:
    """(E, B, U): answers of the members that `form` names; differentiable once.

    Args:
        form: see there.
        layers: of all members.
        inputs: (B, I), the same for all, or (E, B, I) of the members asked.
    """
    if torch.is_grad_enabled():
        parameters = (*layers.weights, *layers.biases, *layers.gains, *layers.shifts)
        return _Pass.apply(form, len(layers.weights), inputs, *parameters)  # type: ignore[no-any-return]
    return _forward_all(form, layers, inputs, None)


def keep_freed_memory() -> None:
    """Lets the process keep what it frees, up to 64 MiB, instead of handing every activation back
    to the system.

    glibc raises the size above which it does so to twice that of the largest block it has mapped
    and unmapped, of at most 32 MiB; one such block, never touched, is enough. Without it a third of
    an update can be page faults.
    """
    torch.empty(32_000_000, dtype=torch.uint8)


def refuse_second_derivative() -> None:
    """To be called first in a backward pass by hand, whose own graph autograd does not see.

    Raises:
        HandoffError: the graph of a gradient is wanted.
    """
    if torch.is_grad_enabled():
        raise HandoffError(
            "passes: create_graph = True, but passes by hand are differentiable once. For a penalty on gradients "
            "ask `policies.rl.networks.ensemble.batched_pass`."
        )


def members_of(layers: Layers) -> list[Member]:
    """Views of every member's own."""
    weights = [one.unbind(0) for one in layers.weights]
    transposed = [one.transpose(1, 2).unbind(0) for one in layers.weights]
    vectors = [[one.squeeze(1).unbind(0) for one in kind] for kind in layers[1:]]
    kinds = (weights, transposed, *vectors)
    return [
        Member(*([one[e] for one in kind] for kind in kinds)) for e in range(len(layers.weights[0]))
    ]


def _forward_all(
    form: Form, layers: Layers, inputs: Tensor, tapes: list[list[Passed]] | None
) -> Tensor:
    """(E, B, U); what `backward` needs is appended to `tapes`, member by member."""
    own, shared = members_of(layers), inputs.ndim == 2
    answers = []
    for i, member in enumerate(form.members):
        tape: list[Passed] | None = None
        if tapes is not None:
            tape = []
            tapes.append(tape)
        answers.append(forward(form, own[member], inputs if shared else inputs[i], tape))
    return answers[0].unsqueeze(0) if len(answers) == 1 else torch.stack(answers)


def forward(form: Form, member: Member, hidden: Tensor, tape: list[Passed] | None = None) -> Tensor:
    """One member's answer (B, U).

    Args:
        form: of the pass; its `members` have no say.
        member: parameters.
        hidden: (B, I) inputs.
        tape: what `backward` needs is appended to it.
    """
    multiply = _multiplication(hidden)
    fused = "none" if form.layer_norm else form.activation
    for layer in range(len(member.weights) - form.head):
        before = hidden
        linear_BN = hidden = multiply(
            before, member.transposed[layer], member.biases[layer], fused, [], ""
        )
        mean = deviation = None
        if form.layer_norm:
            gain, shift = member.gains[layer], member.shifts[layer]
            hidden, mean, deviation = torch.native_layer_norm(
                linear_BN, gain.shape, gain, shift, NORM_EPSILON
            )
            activate_(hidden, form.activation)
        if tape is not None:
            tape.append(
                Passed(before, None if mean is None else linear_BN, mean, deviation, hidden)
            )
    if form.head:
        if tape is not None:
            tape.append(Passed(hidden))
        weight, bias = member.weights[-1], member.biases[-1]
        # One output: a product of a matrix and a vector, for which torch's is the faster.
        single = weight.shape[1] == 1
        if single:
            return torch.addmm(bias, hidden, weight)
        hidden = multiply(hidden, member.transposed[-1], bias, "none", [], "")
    return hidden


def backward(
    form: Form,
    member: Member,
    tape: list[Passed],
    gradient: Tensor,
    into: Member | None,
    inputs_from: int | None,
) -> Tensor | None:
    """One member's backward pass; the gradients of its inputs (B, I) are returned where wanted.

    Args:
        form: of the pass; its `members` have no say.
        member: parameters.
        tape: that of `forward`.
        gradient: (B, U) of the member's answer; without a head it is overwritten.
        into: where the parameters' gradients are written; None where none learns.
        inputs_from: the first entry of the inputs whose gradient is wanted; None where none is.
    """
    multiply, learns = _multiplication(gradient), into is not None
    for layer in range(len(tape) - 1, -1, -1):
        at, weight = tape[layer], member.weights[layer]
        if at.output is not None:
            if form.activation == "relu":
                _RELU_BACKWARD(gradient, at.output, 0.0, grad_input=gradient)
            else:
                _TANH_BACKWARD(gradient, at.output, grad_input=gradient)
        if at.linear is not None:
            gain, shift = member.gains[layer], member.shifts[layer]
            gradient, of_gain, of_shift = _NORM_BACKWARD(
                gradient,
                at.linear,
                gain.shape,
                at.mean,
                at.deviation,
                gain,
                shift,
                [True, learns, learns],
            )
            if into is not None:
                into.gains[layer].copy_(of_gain)
                into.shifts[layer].copy_(of_shift)
        single = weight.shape[1] == 1
        if into is not None:
            if single:
                torch.mm(at.inputs.t(), gradient, out=into.weights[layer])
            else:
                into.weights[layer].copy_(
                    multiply(at.inputs.t(), gradient.t(), None, "none", [], "")
                )
            torch.sum(gradient, 0, out=into.biases[layer])
        if layer == 0:
            if inputs_from is None:
                return None
            weight = weight[inputs_from:]
        # One output: an outer product is faster entry by entry.
        gradient = (
            gradient * weight.t() if single else multiply(gradient, weight, None, "none", [], "")
        )
    return gradient


class _Pass(torch.autograd.Function):
    """`ensemble_pass` as one node of autograd's graph."""

    @staticmethod
    def forward(ctx: Any, form: Form, count: int, inputs: Tensor, *parameters: Tensor) -> Tensor:
        ctx.form = form
        ctx.count = count
        ctx.tapes = []
        ctx.shared = inputs.ndim == 2
        ctx.save_for_backward(*parameters)
        return _forward_all(form, _split(count, parameters), inputs, ctx.tapes)

    @staticmethod
    def backward(ctx: Any, gradient_EBU: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        refuse_second_derivative()
        form: Form = ctx.form
        parameters = ctx.saved_tensors
        to_inputs, learns = ctx.needs_input_grad[2], any(ctx.needs_input_grad[3:])
        own = members_of(_split(ctx.count, parameters))
        # Those of members that were not asked stay zero.
        make = torch.empty_like if form.members == tuple(range(len(own))) else torch.zeros_like
        made = [make(one) for one in parameters] if learns else [None] * len(parameters)
        into = members_of(_split(ctx.count, made)) if learns else None  # type: ignore[arg-type]
        # Without a head the upstream gradient would be overwritten, which belongs to autograd.
        upstream_EBU = gradient_EBU if form.head else gradient_EBU.clone()
        parts = []
        for i, member in enumerate(form.members):
            place = None if into is None else into[member]
            parts.append(
                backward(
                    form,
                    own[member],
                    ctx.tapes[i],
                    upstream_EBU[i],
                    place,
                    0 if to_inputs else None,
                )
            )
        if not to_inputs:
            return (None, None, None, *made)
        of_inputs_EBI = torch.stack(parts)  # type: ignore[arg-type]
        return (None, None, of_inputs_EBI.sum(0) if ctx.shared else of_inputs_EBI, *made)


def _split(count: int, parameters: Sequence[Tensor]) -> Layers:
    norms = (len(parameters) - 2 * count) // 2
    ends = (count, 2 * count, 2 * count + norms)
    weights, biases = parameters[: ends[0]], parameters[ends[0] : ends[1]]
    return Layers(weights, biases, parameters[ends[1] : ends[2]], parameters[ends[2] :])
