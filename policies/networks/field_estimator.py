"""Estimates vectors that are recorded, but not observed, from what is observed.

A position that only a simulator knows tells an image encoder far more than an action does, which
has the same limit at any distance and concerns one object of several: auxiliary targets of this
kind train the policies of Levine et al. (JMLR 2016, arXiv 1504.00702) and James et al. (CoRL 2017,
arXiv 1707.02267). Here the estimate is a feature as well, so that a policy's network need not find
it a second time. At inference nothing but the observation is needed.

Shape suffixes: B batch, T observed steps, F features, G estimated entries.
"""

from __future__ import annotations

from torch import Tensor, nn

from policies.normalize import MinMaxNormalizer

WIDTH = 256
"""Units of both hidden layers."""


class FieldEstimator(nn.Module):
    """Estimates G entries, each mapped to [-1, 1] by its range in the demonstrations.

    Args:
        inputs: F, entries of the observation vector and features of one step.
        entries: G.
    """

    def __init__(self, inputs: int, entries: int) -> None:
        super().__init__()
        self.normalize = MinMaxNormalizer(entries)
        self.body = nn.Sequential(
            nn.Linear(inputs, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, entries),
        )

    def forward(self, encoded_BTF: Tensor) -> Tensor:
        """The normalised estimate (B, T, G)."""
        return self.body(encoded_BTF)
