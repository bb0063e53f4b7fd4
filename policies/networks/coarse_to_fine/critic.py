"""Defines the critic of CQN-AS, and the search for the actions of highest value.

Shape suffixes: B batch, F features, K steps of a sequence, A action, L levels,
M some of the levels, C bins, Z atoms.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from policies.networks.coarse_to_fine.bins import refine, width_of
from policies.networks.coarse_to_fine.config import CoarseToFineConfig

Choice = Callable[[Tensor], Tensor]
"""(B, K, A) indices of bins, from their values (B, K, A, C)."""


class SequenceStream(nn.Module):
    """One stream of the dueling critic: features of the observation, two layers per step of the
    sequence, a recurrent layer over the steps, and a head that begins at 0.

    Args:
        config: sizes.
        inputs: entries F of the network's input.
        horizon: steps K.
        actions: entries A of an action.
        outputs: outputs per action entry.
    """

    def __init__(
        self, config: CoarseToFineConfig, inputs: int, horizon: int, actions: int, outputs: int
    ) -> None:
        super().__init__()
        self.horizon = horizon
        self.levels = config.levels
        self.encoder = nn.Sequential(
            nn.Linear(inputs, config.features, bias=False),
            nn.LayerNorm(config.features),
            nn.Tanh(),
        )
        width = config.features + actions + horizon + config.levels
        self.body = nn.Sequential(
            nn.Linear(width, config.units, bias=False),
            nn.LayerNorm(config.units),
            nn.SiLU(),
            nn.Linear(config.units, config.units, bias=False),
            nn.LayerNorm(config.units),
            nn.SiLU(),
        )
        self.recurrent = nn.GRU(config.units, config.units, batch_first=True)
        self.head = nn.Linear(config.units, actions * outputs)
        self.output_shape = (actions, outputs)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.orthogonal_(module.weight)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, feature_BF: Tensor, centre_BMKA: Tensor, level_M: Tensor) -> Tensor:
        """(B, M, K, A, outputs) of M levels.

        Args:
            feature_BF: what `encoder` makes of the observation.
            centre_BMKA: centres of the intervals that the levels divide.
            level_M: indices of the levels.
        """
        rows, count = centre_BMKA.shape[:2]
        step_KK = torch.eye(self.horizon, device=feature_BF.device)
        level_ML = torch.eye(self.levels, device=feature_BF.device)[level_M]
        inputs_BMKI = torch.cat(
            [
                feature_BF[:, None, None].expand(-1, count, self.horizon, -1),
                centre_BMKA,
                step_KK.expand(rows, count, -1, -1),
                level_ML[:, None].expand(rows, -1, self.horizon, -1),
            ],
            dim=-1,
        )
        hidden = self.recurrent(self.body(inputs_BMKI).flatten(0, 1))[0]
        return self.head(hidden).unflatten(-1, self.output_shape).unflatten(0, (rows, count))


class CoarseToFineCritic(nn.Module):
    """Value distributions of the bins of sequences of actions (Seo et al., arXiv 2407.07787 and
    2411.12155), as the sum of a value and of advantages in logits.

    Args:
        config: sizes, levels, bins and atoms.
        inputs: entries F of the network's input.
        horizon: steps K of a sequence.
        actions: entries A of an action.
    """

    atoms_Z: Tensor

    def __init__(self, config: CoarseToFineConfig, inputs: int, horizon: int, actions: int) -> None:
        super().__init__()
        self.config = config
        self.sequence_shape = (horizon, actions)
        self.register_buffer("atoms_Z", torch.linspace(config.low, config.high, config.atoms))
        self.value = SequenceStream(config, inputs, horizon, actions, config.atoms)
        self.advantage = SequenceStream(
            config, inputs, horizon, actions, config.bins * config.atoms
        )

    def encode(self, input_BF: Tensor) -> tuple[Tensor, Tensor]:
        """Features of both streams, which all levels share."""
        return self.value.encoder(input_BF), self.advantage.encoder(input_BF)

    def logits(
        self, features: tuple[Tensor, Tensor], centre_BKAM: Tensor, level_M: Tensor
    ) -> Tensor:
        """(B, K, A, M, C, Z) logits of the value distributions of the bins of M levels."""
        centre_BMKA = centre_BKAM.movedim(-1, 1)
        value = self.value(features[0], centre_BMKA, level_M)[..., None, :]
        advantage = self.advantage(features[1], centre_BMKA, level_M).unflatten(
            -1, (self.config.bins, self.config.atoms)
        )
        return (value + advantage - advantage.mean(-2, keepdim=True)).movedim(1, 3)

    def forward(self, input_BF: Tensor, centre_BKAL: Tensor) -> Tensor:
        """(B, K, A, L, C, Z) logits of all levels, given the centres of their intervals."""
        level_L = torch.arange(self.config.levels, device=input_BF.device)
        return self.logits(self.encode(input_BF), centre_BKAL, level_L)

    def values(self, logits: Tensor) -> Tensor:
        """(...) means of value distributions, from logits (..., Z)."""
        return functional.softmax(logits, dim=-1) @ self.atoms_Z

    def best(self, input_BF: Tensor, choose: Choice) -> Tensor:
        """(B, K, A, L) indices of the bins that `choose` takes, level by level."""
        config = self.config
        features = self.encode(input_BF)
        low_BKA = input_BF.new_full((input_BF.shape[0], *self.sequence_shape), -1.0)
        chosen = []
        for level in range(config.levels):
            centre_BKA = low_BKA + 0.5 * config.bins * width_of(level, config.bins)
            level_M = torch.tensor([level], device=input_BF.device)
            logits = self.logits(features, centre_BKA[..., None], level_M)
            index_BKA = choose(self.values(logits)[..., 0, :])
            chosen.append(index_BKA)
            low_BKA = refine(low_BKA, index_BKA, level, config.bins)
        return torch.stack(chosen, dim=-1)


def highest(value_BKAC: Tensor) -> Tensor:
    """(B, K, A) indices of the bins of highest value, the first of equal ones."""
    return value_BKAC.argmax(dim=-1)
