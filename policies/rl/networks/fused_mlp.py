"""Computes MLP ensembles with fused forward and backward passes, optimised for a single CPU core.

With autograd, overheads take as long as the matrix products: one node per operation, unused
gradients, copies of transposed matrices. Here an ensemble is a single autograd node, regardless of
its depth and number of members. Matrix products use oneDNN kernels, which adapt to the CPU (on AMD
they run at twice the rate of those behind `torch.mm`) and apply the activation while the result is
in a register. Members are evaluated one after another, because the activations of one member fit
the cache of a core and those of ten do not.

`torch.compile` is slower: an update of SAC with the same losses in torch operations, compiled
forward and backward, takes 37 % more CPU time in the plain configuration (see
`tests.benchmarks.rl`), 14 % in the default one and 12 % with ten critics (medians of 15 to 25
rounds; per-member products and the C++ wrapper change little). It needs a C++ compiler and 19 to
33 s of CPU time before the first update, or 3.5 s with a warm cache. Measured on one core of an AMD
EPYC with torch 2.13; `compile_speedup` of `tests.benchmarks.rl` measures it again.

All values have the dtype of the weights; results equal those of autograd up to rounding.

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


class EnsembleOptions(NamedTuple):
    """Structure of an ensemble and the members to evaluate."""

    activation: Activation
    layer_norm: bool
    members: tuple[int, ...]
    """Distinct indices of the members to evaluate, in the order of the outputs."""
    head: bool = True
    """Whether the output layer, which has no activation, is included."""


class EnsembleParameters(NamedTuple):
    """Parameters of an ensemble, one tensor per layer with members first; without the output layer,
    one layer fewer."""

    weights: Sequence[Tensor]
    """Weights, (E, I, N) each."""
    biases: Sequence[Tensor]
    """Biases, (E, 1, N) each."""
    gains: Sequence[Tensor]
    """Scales of the LayerNorms, (E, 1, N) each; empty without LayerNorm."""
    shifts: Sequence[Tensor]
    """Offsets of the LayerNorms, (E, 1, N) each; empty without LayerNorm."""


class MemberParameters(NamedTuple):
    """Parameters of one member, or their gradients, as one view per layer."""

    weights: Sequence[Tensor]
    """Weights, (I, N) each."""
    transposed: Sequence[Tensor]
    """Transposed weights, (N, I) each."""
    biases: Sequence[Tensor]
    """Biases, (N,) each."""
    gains: Sequence[Tensor]
    """Scales of the LayerNorms, (N,) each; empty without LayerNorm."""
    shifts: Sequence[Tensor]
    """Offsets of the LayerNorms, (N,) each; empty without LayerNorm."""


class LayerActivations(NamedTuple):
    """Activations of one layer that its backward pass needs."""

    inputs: Tensor
    """Inputs of the layer, (B, I)."""
    linear: Tensor | None = None
    """Output of the linear layer before LayerNorm, (B, N); None without LayerNorm."""
    mean: Tensor | None = None
    """Mean computed by LayerNorm."""
    inverse_std: Tensor | None = None
    """Inverse standard deviation computed by LayerNorm."""
    output: Tensor | None = None
    """Output of the activation, (B, N); None for the output layer."""


def fused_linear(
    left_BK: Tensor, right_KN: Tensor, bias_N: Tensor | None = None, activation: str = "none"
) -> Tensor:
    """(B, N) product plus bias, with the activation `none`, `tanh` or `relu`."""
    return _linear_kernel(left_BK)(left_BK, right_KN.t(), bias_N, activation, [], "")


def _linear_kernel(like: Tensor) -> Any:
    """Linear kernel for the dtype of `like`, with the signature of oneDNN's: the right matrix is
    transposed."""
    return _KERNEL if _KERNEL is not None and like.dtype == torch.float32 else _torch_linear


def _torch_linear(
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
    """Applies the activation in place; tanh(u) is computed as 2 sigmoid(2u) - 1, which is five
    times as fast in torch."""
    return (
        torch.relu_(hidden)
        if activation == "relu"
        else hidden.mul_(2.0).sigmoid_().mul_(2.0).sub_(1.0)
    )


def fused_forward(options: EnsembleOptions, layers: EnsembleParameters, inputs: Tensor) -> Tensor:
    """(E, B, U) outputs of the members selected by `options`; differentiable once.

    Args:
        options: structure and members to evaluate.
        layers: parameters of all members.
        inputs: (B, I), shared by all members, or (E, B, I) for the selected members.
    """
    if torch.is_grad_enabled():
        parameters = (*layers.weights, *layers.biases, *layers.gains, *layers.shifts)
        return _FusedMlp.apply(options, len(layers.weights), inputs, *parameters)  # type: ignore[no-any-return]
    return _forward_all(options, layers, inputs, None)


def keep_freed_memory() -> None:
    """Makes glibc keep up to 64 MiB of freed memory instead of returning it to the system.

    glibc sets its threshold for returning memory to twice the size of the largest block that was
    mapped and freed, up to 32 MiB, so allocating one untouched block is enough. Without this, page
    faults can take a third of the time of an update.
    """
    torch.empty(32_000_000, dtype=torch.uint8)


def refuse_second_derivative() -> None:
    """Rejects second derivatives; fused backward passes call it first, as autograd does not track
    them.

    Raises:
        HandoffError: the backward pass runs with create_graph = True.
    """
    if torch.is_grad_enabled():
        raise HandoffError(
            "fused_mlp: create_graph = True, but fused passes are differentiable only once. For a gradient penalty, "
            "use `policies.rl.networks.ensemble.batched_forward`."
        )


def member_views(layers: EnsembleParameters) -> list[MemberParameters]:
    """Splits the parameters of an ensemble into views of each member."""
    weights = [weight.unbind(0) for weight in layers.weights]
    transposed = [weight.transpose(1, 2).unbind(0) for weight in layers.weights]
    vectors = [[vector.squeeze(1).unbind(0) for vector in kind] for kind in layers[1:]]
    kinds = (weights, transposed, *vectors)
    return [
        MemberParameters(*([views[e] for views in kind] for kind in kinds))
        for e in range(len(layers.weights[0]))
    ]


def _forward_all(
    options: EnsembleOptions,
    layers: EnsembleParameters,
    inputs: Tensor,
    tapes: list[list[LayerActivations]] | None,
) -> Tensor:
    """(E, B, U) outputs; the activations that `backward` needs are appended to `tapes`, one list
    per member."""
    views, shared = member_views(layers), inputs.ndim == 2
    outputs = []
    for i, member in enumerate(options.members):
        tape: list[LayerActivations] | None = None
        if tapes is not None:
            tape = []
            tapes.append(tape)
        outputs.append(forward(options, views[member], inputs if shared else inputs[i], tape))
    return outputs[0].unsqueeze(0) if len(outputs) == 1 else torch.stack(outputs)


def forward(
    options: EnsembleOptions,
    member: MemberParameters,
    hidden: Tensor,
    tape: list[LayerActivations] | None = None,
) -> Tensor:
    """(B, U) output of one member.

    Args:
        options: structure of the ensemble; its `members` are not used.
        member: parameters of the member.
        hidden: (B, I) inputs.
        tape: list to which the activations for `backward` are appended; None appends nothing.
    """
    multiply = _linear_kernel(hidden)
    fused = "none" if options.layer_norm else options.activation
    # Hidden layers: linear, LayerNorm, activation.
    for layer in range(len(member.weights) - options.head):
        layer_inputs = hidden
        linear_BN = hidden = multiply(
            layer_inputs, member.transposed[layer], member.biases[layer], fused, [], ""
        )
        mean = inverse_std = None
        if options.layer_norm:
            gain, shift = member.gains[layer], member.shifts[layer]
            hidden, mean, inverse_std = torch.native_layer_norm(
                linear_BN, gain.shape, gain, shift, NORM_EPSILON
            )
            activate_(hidden, options.activation)
        if tape is not None:
            tape.append(
                LayerActivations(
                    layer_inputs, None if mean is None else linear_BN, mean, inverse_std, hidden
                )
            )
    # Output layer.
    if options.head:
        if tape is not None:
            tape.append(LayerActivations(hidden))
        weight, bias = member.weights[-1], member.biases[-1]
        # With one output this is a matrix-vector product, for which torch is faster.
        single = weight.shape[1] == 1
        if single:
            return torch.addmm(bias, hidden, weight)
        hidden = multiply(hidden, member.transposed[-1], bias, "none", [], "")
    return hidden


def backward(
    options: EnsembleOptions,
    member: MemberParameters,
    tape: list[LayerActivations],
    gradient: Tensor,
    into: MemberParameters | None,
    inputs_from: int | None,
) -> Tensor | None:
    """Backward pass of one member; returns the gradient of its inputs if requested.

    Args:
        options: structure of the ensemble; its `members` are not used.
        member: parameters of the member.
        tape: activations recorded by `forward`.
        gradient: (B, U) gradient of the output; overwritten if there is no output layer.
        into: views to which parameter gradients are written; None computes none.
        inputs_from: first input entry whose gradient is returned; None returns no gradient.
    """
    multiply, learns = _linear_kernel(gradient), into is not None
    for layer in range(len(tape) - 1, -1, -1):
        # Activation and LayerNorm.
        at, weight = tape[layer], member.weights[layer]
        if at.output is not None:
            if options.activation == "relu":
                _RELU_BACKWARD(gradient, at.output, 0.0, grad_input=gradient)
            else:
                _TANH_BACKWARD(gradient, at.output, grad_input=gradient)
        if at.linear is not None:
            gain, shift = member.gains[layer], member.shifts[layer]
            gradient, gain_gradient, shift_gradient = _NORM_BACKWARD(
                gradient,
                at.linear,
                gain.shape,
                at.mean,
                at.inverse_std,
                gain,
                shift,
                [True, learns, learns],
            )
            if into is not None:
                into.gains[layer].copy_(gain_gradient)
                into.shifts[layer].copy_(shift_gradient)
        # Gradients of weights and bias.
        single = weight.shape[1] == 1
        if into is not None:
            if single:
                torch.mm(at.inputs.t(), gradient, out=into.weights[layer])
            else:
                into.weights[layer].copy_(
                    multiply(at.inputs.t(), gradient.t(), None, "none", [], "")
                )
            torch.sum(gradient, 0, out=into.biases[layer])
        # Gradient of the inputs.
        if layer == 0:
            if inputs_from is None:
                return None
            weight = weight[inputs_from:]
        # With one output this is an outer product, which is faster by broadcasting.
        gradient = (
            gradient * weight.t() if single else multiply(gradient, weight, None, "none", [], "")
        )
    return gradient


class _FusedMlp(torch.autograd.Function):
    """Autograd node of `fused_forward`."""

    @staticmethod
    def forward(
        ctx: Any, options: EnsembleOptions, count: int, inputs: Tensor, *parameters: Tensor
    ) -> Tensor:
        ctx.options = options
        ctx.count = count
        ctx.tapes = []
        ctx.shared = inputs.ndim == 2
        ctx.save_for_backward(*parameters)
        return _forward_all(options, _as_parameters(count, parameters), inputs, ctx.tapes)

    @staticmethod
    def backward(ctx: Any, gradient_EBU: Tensor) -> tuple[Any, ...]:  # type: ignore[override]
        refuse_second_derivative()
        options: EnsembleOptions = ctx.options
        parameters = ctx.saved_tensors
        inputs_need_gradient, learns = ctx.needs_input_grad[2], any(ctx.needs_input_grad[3:])
        views = member_views(_as_parameters(ctx.count, parameters))
        # Gradients of members that were not evaluated are zero.
        allocate = (
            torch.empty_like if options.members == tuple(range(len(views))) else torch.zeros_like
        )
        gradients = [allocate(p) for p in parameters] if learns else [None] * len(parameters)
        into = member_views(_as_parameters(ctx.count, gradients)) if learns else None  # type: ignore[arg-type]
        # Without an output layer, `backward` overwrites the upstream gradient, which belongs to
        # autograd.
        upstream_EBU = gradient_EBU if options.head else gradient_EBU.clone()
        input_gradients = []
        for i, member in enumerate(options.members):
            member_into = None if into is None else into[member]
            input_gradients.append(
                backward(
                    options,
                    views[member],
                    ctx.tapes[i],
                    upstream_EBU[i],
                    member_into,
                    0 if inputs_need_gradient else None,
                )
            )
        if not inputs_need_gradient:
            return (None, None, None, *gradients)
        inputs_EBI = torch.stack(input_gradients)  # type: ignore[arg-type]
        return (None, None, inputs_EBI.sum(0) if ctx.shared else inputs_EBI, *gradients)


def _as_parameters(count: int, parameters: Sequence[Tensor]) -> EnsembleParameters:
    norms = (len(parameters) - 2 * count) // 2
    ends = (count, 2 * count, 2 * count + norms)
    weights, biases = parameters[: ends[0]], parameters[ends[0] : ends[1]]
    return EnsembleParameters(weights, biases, parameters[ends[1] : ends[2]], parameters[ends[2] :])
