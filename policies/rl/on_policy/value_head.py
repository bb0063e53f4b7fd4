"""Options of this package."""

from __future__ import annotations

import copy
from collections.abc import Sequence

from torch import Tensor, nn

from policies.rl.on_policy.config import Trunk


class ValueHead(nn.Module):
    """From what is read of an observation to values.

    Args:
        policy: of which the trunk is a copy, if there is to be one of its own.
        width: of a hidden state.
        hidden: units of the layers.
        outputs: V.
        trunk: see `VlaPracticeConfig.critic_trunk`.
    """

    def __init__(
        self, policy: nn.Module, width: int, hidden: Sequence[int], outputs: int, trunk: Trunk
    ) -> None:
        super().__init__()
        self.layers = value_head(width, hidden, outputs)
        self.trunk = copy.deepcopy(policy).requires_grad_() if trunk == "own" else None
        """Learns at the critic's rate, as what it is a copy of does not."""
        self._detached = trunk == "detached"

    def forward(self, hidden_BW: Tensor) -> Tensor:
        """(B, V) of (B, W)."""
        return self.layers(hidden_BW.detach() if self._detached else hidden_BW)


def value_head(width: int, hidden: Sequence[int], outputs: int) -> nn.Module:
    """From a hidden state (B, width) to values; GELU between. The last begins near 0 and, as in
    RLinf, has no bias."""
    layers: list[nn.Module] = []
    for before, after in zip((width, *hidden), hidden, strict=False):
        layers += [nn.Linear(before, after), nn.GELU()]
    last = nn.Linear((width, *hidden)[-1], outputs, bias=False)
    nn.init.normal_(last.weight, std=0.01)
    return nn.Sequential(*layers, last)
