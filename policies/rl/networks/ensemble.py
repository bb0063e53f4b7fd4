"""Defines ensembles of MLPs with stacked weights, and the features that RL learners feed to them.

Shape suffixes: B batch, E members, F features, I inputs, O observation.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.rl.networks.config import MlpSizes
from policies.rl.networks.fused_mlp import (
    NORM_EPSILON,
    EnsembleOptions,
    EnsembleParameters,
    fused_forward,
    keep_freed_memory,
)
from policies.rl.replay.transitions import Sizes


class Features(nn.Module):
    """Network inputs: the normalised observation vector, with the relative and scaled features of
    `Sizes`.

    Args:
        sizes: sizes of the observations.
    """

    centre: Tensor
    half_range: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(sizes.observation))
        self.register_buffer("half_range", torch.ones(sizes.observation))
        self.relative_features = sizes.relative_features
        self.scaled_features = sizes.scaled_features
        self.size = sizes.observation + sum(
            count for _, _, count, _ in (*sizes.relative_features, *sizes.scaled_features)
        )

    def fit(self, low: Tensor, high: Tensor) -> None:
        """Sets the normalisation that maps `low` (O,) to -1 and `high` (O,) to 1; constant entries
        are only centred."""
        spread = high - low
        self.centre.copy_((low + high) / 2)
        self.half_range.copy_(torch.where(spread > 1e-9, spread / 2, torch.ones_like(spread)))

    def forward(self, vector_BO: Tensor) -> Tensor:
        """Maps observations (B, O) in physical units to features (B, F)."""
        normalised_BO = (vector_BO - self.centre) / self.half_range
        return network_features(
            vector_BO, normalised_BO, self.relative_features, self.scaled_features
        )


FeatureSpecs = tuple[tuple[int, int, int, float], ...]
"""Feature definitions; see `Sizes.relative_features` and `Sizes.scaled_features`."""


def network_features(
    vector_BO: Tensor,
    normalised_BO: Tensor,
    relative_features: FeatureSpecs,
    scaled_features: FeatureSpecs,
) -> Tensor:
    """(B, F): the normalised vector, then the relative and the scaled features of the vector in
    physical units."""
    features = [normalised_BO]
    features += [_scaled_difference(vector_BO, *spec) for spec in relative_features]
    features += [torch.tanh(_scaled_difference(vector_BO, *spec)) for spec in scaled_features]
    return features[0] if len(features) == 1 else torch.cat(features, dim=1)


def _scaled_difference(
    vector_BO: Tensor, begin: int, other: int, count: int, scale: float
) -> Tensor:
    part_BC = vector_BO[:, begin : begin + count]
    return (part_BC if other < 0 else part_BC - vector_BO[:, other : other + count]) / scale


class EnsembleMlp(nn.Module):
    """Ensemble of E MLPs with the same layers and stacked weights.

    Initial weights are orthogonal, in the last layer scaled by `final_scale`; biases are zero.

    Args:
        members: number of members E.
        inputs: input entries I.
        sizes: hidden layers, activation and LayerNorm.
        outputs: output entries.
        final_scale: factor on the initial weights of the last layer.
    """

    def __init__(
        self, members: int, inputs: int, sizes: MlpSizes, outputs: int, final_scale: float = 1.0
    ) -> None:
        super().__init__()
        keep_freed_memory()
        self.members = members
        self.sizes = sizes
        widths = (inputs, *sizes.hidden, outputs)
        self.weights = nn.ParameterList()
        self.biases = nn.ParameterList()
        self.gains = nn.ParameterList()
        self.shifts = nn.ParameterList()
        for layer, (size_in, size_out) in enumerate(pairwise(widths)):
            last = layer == len(widths) - 2
            scale = final_scale if last else math.sqrt(2.0) if sizes.activation == "relu" else 1.0
            weight = torch.stack(
                [
                    scale * nn.init.orthogonal_(torch.empty(size_in, size_out))
                    for _ in range(members)
                ]
            )
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, size_out)))
            if sizes.layer_norm and not last:
                self.gains.append(nn.Parameter(torch.ones(members, 1, size_out)))
                self.shifts.append(nn.Parameter(torch.zeros(members, 1, size_out)))

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """(E, B, outputs) outputs of the members.

        Args:
            inputs: (B, I), shared by all members, or (E, B, I).
            members: distinct indices of the members to evaluate; None evaluates all.
        """
        return self._evaluate(inputs, members, head=True)

    def hidden(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """(E, B, units) activations of the last hidden layer."""
        return self._evaluate(inputs, members, head=False)

    def layers(self) -> EnsembleParameters:
        """All parameters, one tensor per layer."""
        # Iterating over a ParameterList takes as long as a small matrix product.
        kinds = (self.weights, self.biases, self.gains, self.shifts)
        return EnsembleParameters(
            *(tuple(p for p in kind._parameters.values() if p is not None) for kind in kinds)
        )

    def requires_grad_(self, requires_grad: bool = True) -> EnsembleMlp:
        """Sets `requires_grad` of all parameters, without the walk over submodules of `nn.Module`,
        which every actor step would need twice."""
        for kind in self.layers():
            for parameter in kind:
                parameter.requires_grad = requires_grad
        return self

    def _evaluate(self, inputs: Tensor, members: Tensor | None, head: bool) -> Tensor:
        layers = self.layers()
        if not head:
            layers = layers._replace(weights=layers.weights[:-1], biases=layers.biases[:-1])
        if inputs.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return batched_forward(self.sizes, layers, head, inputs, members)
        selected = tuple(range(self.members)) if members is None else tuple(members.tolist())
        return fused_forward(
            EnsembleOptions(self.sizes.activation, self.sizes.layer_norm, selected, head),
            layers,
            inputs,
        )


def batched_forward(
    sizes: MlpSizes, layers: EnsembleParameters, head: bool, inputs: Tensor, members: Tensor | None
) -> Tensor:
    """Computes the same as `fused_forward` with one batched product per layer and autograd, for
    GPUs, compilation and export."""
    weights, biases, gains, shifts = (
        [stacked if members is None else stacked[members] for stacked in kind] for kind in layers
    )
    hidden = inputs.expand(weights[0].shape[0], *inputs.shape) if inputs.ndim == 2 else inputs
    for layer in range(len(weights) - head):
        hidden = torch.baddbmm(biases[layer], hidden, weights[layer])
        if sizes.layer_norm:
            hidden = functional.layer_norm(hidden, hidden.shape[-1:], eps=NORM_EPSILON)
            hidden = torch.addcmul(shifts[layer], hidden, gains[layer])
        hidden = torch.tanh(hidden) if sizes.activation == "tanh" else torch.relu(hidden)
    return torch.baddbmm(biases[-1], hidden, weights[-1]) if head else hidden


@torch.no_grad()
def move_towards(target: nn.Module, source: nn.Module, tau: float) -> None:
    """Polyak averaging in place: target <- (1 - tau) target + tau source."""
    torch._foreach_lerp_(_parameters(target), _parameters(source), tau)


def _parameters(module: nn.Module) -> list[Tensor]:
    if isinstance(module, EnsembleMlp):
        return [parameter for kind in module.layers() for parameter in kind]
    return list(module.parameters())
