"""Defines the networks of stream AC(lambda) with their eligibility traces: sparsely initialised
layers, LayerNorm without parameters, leaky ReLU.

A network sees one vector at a time. Its backward pass writes each layer's gradient into the
decayed trace by one rank-1 update, without autograd, whose overheads would take most of the time.

Two choices differ from the released code. At least one input of every unit keeps its weight: the
code rounds the number of zeros up, so with fewer than ten inputs the whole first layer would begin
at 0. LayerNorm adds 1e-6 to the variance as everywhere in Handoff, so that the exported network is
the same; the code adds 1e-5.

Shape suffixes: I inputs of a layer, N its outputs, U outputs of the network, P parameters.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from policies.rl.networks.fused_mlp import NORM_EPSILON

SLOPE = 0.01
"""Slope of the leaky ReLU below 0 [C]."""
_LEAKY_BACKWARD = torch.ops.aten.leaky_relu_backward
_NORM_BACKWARD = torch.ops.aten.native_layer_norm_backward


class LayerTape(NamedTuple):
    """Activations of one hidden layer that its backward pass needs."""

    linear_N: Tensor
    """Output of the linear layer."""
    mean: Tensor
    """Mean of `linear_N`."""
    inverse_std: Tensor
    """Inverse standard deviation of `linear_N`."""
    normalised_N: Tensor
    """Output of LayerNorm."""


class Tape(NamedTuple):
    """Activations of a forward pass."""

    inputs: list[Tensor]
    """Inputs (I,) of every linear layer."""
    hidden: list[LayerTape]
    """Activations of the hidden layers."""


class TracedMlp:
    """Multi-layer perceptron with an eligibility trace for every parameter.

    Args:
        inputs: entries of the input.
        hidden: units of each hidden layer; none make a linear function.
        outputs: U, entries of the output.
        sparsity: share of zeros, see `sparse_weight`.
        seed: seed of the initial weights.
    """

    def __init__(
        self, inputs: int, hidden: Sequence[int], outputs: int, sparsity: float, seed: int
    ) -> None:
        self.widths = (inputs, *hidden, outputs)
        generator = torch.Generator().manual_seed(seed)
        layers: list[Tensor] = []
        for size_in, size_out in pairwise(self.widths):
            layers.append(sparse_weight(size_in, size_out, sparsity, generator))
            layers.append(torch.zeros(size_out))
        self.values_P = torch.cat([one.flatten() for one in layers])
        """All parameters: of each layer weights, then biases."""
        self.traces_P = torch.zeros_like(self.values_P)
        """Traces of all parameters."""
        sizes = [one.numel() for one in layers]
        rows = zip(layers, self.values_P.split(sizes), self.traces_P.split(sizes), strict=True)
        views = [(values.view_as(one), traces.view_as(one)) for one, values, traces in rows]
        self.weights = [values for values, _ in views[::2]]
        """Weights (N, I) of each layer, views of `values_P`."""
        self.biases = [values for values, _ in views[1::2]]
        """Biases (N,) of each layer, views of `values_P`."""
        self._weight_traces = [traces for _, traces in views[::2]]
        self._bias_traces = [traces for _, traces in views[1::2]]

    def __call__(self, vector_I: Tensor) -> tuple[Tensor, Tape]:
        """Output (U,) for one vector, and what `accumulate` needs."""
        tape = Tape([], [])
        for weight_NI, bias_N in zip(self.weights[:-1], self.biases[:-1], strict=True):
            tape.inputs.append(vector_I)
            linear_N = torch.addmv(bias_N, weight_NI, vector_I)
            normalised_N, mean, inverse_std = torch.native_layer_norm(
                linear_N, linear_N.shape, None, None, NORM_EPSILON
            )
            tape.hidden.append(LayerTape(linear_N, mean, inverse_std, normalised_N))
            vector_I = torch.nn.functional.leaky_relu(normalised_N, SLOPE)
        tape.inputs.append(vector_I)
        return torch.addmv(self.biases[-1], self.weights[-1], vector_I), tape

    def accumulate(self, tape: Tape, gradient_U: Tensor, decay: float) -> None:
        """Multiplies the traces by `decay` and adds the gradient of the parameters.

        Args:
            tape: activations of the forward pass, with the weights as they were then.
            gradient_U: gradient of what the traces follow, with respect to the outputs.
            decay: discount times lambda.
        """
        gradient_N = gradient_U
        for layer in range(len(self.weights) - 1, -1, -1):
            self._weight_traces[layer].addr_(gradient_N, tape.inputs[layer], beta=decay)
            self._bias_traces[layer].mul_(decay).add_(gradient_N)
            if layer == 0:
                return
            at = tape.hidden[layer - 1]
            gradient_N = torch.mv(self.weights[layer].t(), gradient_N)
            gradient_N = _LEAKY_BACKWARD(gradient_N, at.normalised_N, SLOPE, False)
            gradient_N = _NORM_BACKWARD(
                gradient_N,
                at.linear_N,
                at.linear_N.shape,
                at.mean,
                at.inverse_std,
                None,
                None,
                [True, False, False],
            )[0]

    def reset_traces(self) -> None:
        """Sets the traces to 0, at the end of an episode."""
        self.traces_P.zero_()

    def state_dict(self) -> dict[str, Any]:
        """Parameters and traces; tensors are not copied."""
        return {"values": self.values_P, "traces": self.traces_P}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.values_P.copy_(state["values"])
        self.traces_P.copy_(state["traces"])


def sparse_weight(inputs: int, outputs: int, sparsity: float, generator: torch.Generator) -> Tensor:
    """Initial weights (N, I): uniform within 1 / sqrt(I), but 0 in a share `sparsity` of the inputs
    of every unit, rounded up, of which at least one is left."""
    zeros = min(math.ceil(sparsity * inputs), inputs - 1)
    bound = 1.0 / math.sqrt(inputs)
    weight_NI = torch.empty(outputs, inputs).uniform_(-bound, bound, generator=generator)
    for weight_I in weight_NI:
        weight_I[torch.randperm(inputs, generator=generator)[:zeros]] = 0.0
    return weight_NI
