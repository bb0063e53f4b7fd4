"""Networks of the reinforcement learners: plain ones and ensembles of them in one matrix product
per layer.

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
    Form,
    Layers,
    ensemble_pass,
    keep_freed_memory,
)
from policies.rl.replay.transitions import Sizes


class Features(nn.Module):
    """Observation vector, normalised entry by entry, and differences and close-ups of some of its
    entries.

    Args:
        sizes: of the data.
    """

    centre: Tensor
    half_range: Tensor

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.register_buffer("centre", torch.zeros(sizes.observation))
        self.register_buffer("half_range", torch.ones(sizes.observation))
        self.differences, self.close_ups = sizes.differences, sizes.close_ups
        self.size = sizes.observation + sum(
            count for _, _, count, _ in (*sizes.differences, *sizes.close_ups)
        )

    def fit(self, low: Tensor, high: Tensor) -> None:
        """Maps `low` (O,) to -1 and `high` (O,) to 1; entries that do not vary are centred only."""
        spread = high - low
        self.centre.copy_((low + high) / 2)
        self.half_range.copy_(torch.where(spread > 1e-9, spread / 2, torch.ones_like(spread)))

    def forward(self, vector_BO: Tensor) -> Tensor:
        """(B, O) in physical units to (B, F)."""
        normalised_BO = (vector_BO - self.centre) / self.half_range
        return shown_features(vector_BO, normalised_BO, self.differences, self.close_ups)


Taken = tuple[tuple[int, int, int, float], ...]
"""See `Sizes.differences` and `Sizes.close_ups`."""


def shown_features(
    vector_BO: Tensor, normalised_BO: Tensor, differences: Taken, close_ups: Taken
) -> Tensor:
    """(B, F): the normalised vector, then differences and close-ups of the vector in physical
    units."""
    parts = [normalised_BO]
    parts += [_scaled(vector_BO, *difference) for difference in differences]
    parts += [torch.tanh(_scaled(vector_BO, *close_up)) for close_up in close_ups]
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


def _scaled(vector_BO: Tensor, begin: int, other: int, count: int, scale: float) -> Tensor:
    part_BC = vector_BO[:, begin : begin + count]
    return (part_BC if other < 0 else part_BC - vector_BO[:, other : other + count]) / scale


class EnsembleMlp(nn.Module):
    """E networks of one form, as one: weights are stacked, a layer is one batched matrix product.

    Initial weights are orthogonal, the last layer's scaled by `final_scale`; biases are zero.

    Args:
        members: E.
        inputs: I.
        sizes: of the hidden layers.
        outputs: entries of the answer.
        final_scale: factor on the last layer's initial weights.
    """

    def __init__(
        self, members: int, inputs: int, sizes: MlpSizes, outputs: int, final_scale: float = 1.0
    ) -> None:
        super().__init__()
        keep_freed_memory()
        self.members, self.sizes = members, sizes
        widths = (inputs, *sizes.hidden, outputs)
        self.weights, self.biases = nn.ParameterList(), nn.ParameterList()
        self.gains, self.shifts = nn.ParameterList(), nn.ParameterList()
        for layer, (before, after) in enumerate(pairwise(widths)):
            last = layer == len(widths) - 2
            scale = final_scale if last else math.sqrt(2.0) if sizes.activation == "relu" else 1.0
            weight = torch.stack(
                [scale * nn.init.orthogonal_(torch.empty(before, after)) for _ in range(members)]
            )
            self.weights.append(nn.Parameter(weight))
            self.biases.append(nn.Parameter(torch.zeros(members, 1, after)))
            if sizes.layer_norm and not last:
                self.gains.append(nn.Parameter(torch.ones(members, 1, after)))
                self.shifts.append(nn.Parameter(torch.zeros(members, 1, after)))

    def forward(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """(B, I), the same for all, or (E, B, I), to (E, B, outputs).

        Args:
            inputs: see above.
            members: indices of those to be asked, all different; None asks all.
        """
        return self._answers(inputs, members, head=True)

    def hidden(self, inputs: Tensor, members: Tensor | None = None) -> Tensor:
        """(E, B, units): what the last layer is shown."""
        return self._answers(inputs, members, head=False)

    def layers(self) -> Layers:
        """All parameters."""
        # ParameterList's own iteration takes as long as a small product.
        kinds = (self.weights, self.biases, self.gains, self.shifts)
        return Layers(
            *(tuple(one for one in kind._parameters.values() if one is not None) for kind in kinds)
        )

    def requires_grad_(self, requires_grad: bool = True) -> EnsembleMlp:
        """Whether the parameters learn; a walk over submodules, which every actor step would make
        twice, is saved."""
        for kind in self.layers():
            for parameter in kind:
                parameter.requires_grad = requires_grad
        return self

    def _answers(self, inputs: Tensor, members: Tensor | None, head: bool) -> Tensor:
        layers = self.layers()
        if not head:
            layers = layers._replace(weights=layers.weights[:-1], biases=layers.biases[:-1])
        if inputs.device.type != "cpu" or torch.compiler.is_compiling() or torch.jit.is_tracing():
            return batched_pass(self.sizes, layers, head, inputs, members)
        asked = tuple(range(self.members)) if members is None else tuple(members.tolist())
        return ensemble_pass(
            Form(self.sizes.activation, self.sizes.layer_norm, asked, head), layers, inputs
        )


def batched_pass(
    sizes: MlpSizes, layers: Layers, head: bool, inputs: Tensor, members: Tensor | None
) -> Tensor:
    """What `ensemble_pass` computes, as one batched product per layer by autograd: for GPUs and
    exports."""
    weights, biases, gains, shifts = (
        [part if members is None else part[members] for part in kind] for kind in layers
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
    """Polyak averaging: `target` moves by the share `tau` towards `source`, in place."""
    torch._foreach_lerp_(_parameters(target), _parameters(source), tau)


def _parameters(module: nn.Module) -> list[Tensor]:
    if isinstance(module, EnsembleMlp):
        return [parameter for kind in module.layers() for parameter in kind]
    return list(module.parameters())
