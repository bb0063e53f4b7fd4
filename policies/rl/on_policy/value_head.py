"""Defines value heads on a policy's hidden states."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from policies.rl.on_policy.config import Trunk


class ValueHead(nn.Module):
    """Maps hidden states to values.

    Args:
        policy: policy that is copied as the trunk, for `trunk` own.
        width: width of a hidden state.
        hidden: units of the hidden layers.
        outputs: V, number of values.
        trunk: see `VlaFinetuneConfig.critic_trunk`.
    """

    def __init__(
        self, policy: nn.Module, width: int, hidden: Sequence[int], outputs: int, trunk: Trunk
    ) -> None:
        super().__init__()
        self.layers = value_head(width, hidden, outputs)
        self.trunk = copy.deepcopy(policy).requires_grad_() if trunk == "own" else None
        """Copy of the policy that is trained with the critic's learning rate; None without one."""
        self._detached = trunk == "detached"

    def forward(self, hidden_BW: Tensor) -> Tensor:
        """(B, V) of (B, W)."""
        return self.layers(hidden_BW.detach() if self._detached else hidden_BW)


def value_head(width: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    """An MLP with GELU from hidden states (B, width) to values (B, outputs). The last layer is
    initialised near 0 and has no bias, as in RLinf."""
    layers: list[nn.Module] = []
    for inputs, units in zip((width, *hidden), hidden, strict=False):
        layers += [nn.Linear(inputs, units), nn.GELU()]
    last = nn.Linear((width, *hidden)[-1], outputs, bias=False)
    nn.init.normal_(last.weight, std=0.01)
    return nn.Sequential(*layers, last)
