"""Values as distributions over fixed atoms, and the projection of C51.

Shape suffixes: B batch (any leading dimensions for the plain functions), K atoms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robots.errors import HandoffError


def even_atoms(low: float, high: float, count: int) -> Tensor:
    """(K,) float32, the same distance apart, both bounds among them.

    Raises:
        HandoffError: fewer than two atoms, or no room between the bounds.
    """
    if count < 2 or not low < high:
        raise HandoffError(
            f"distributional value: {count} atoms from {low} to {high}, expected at least 2 and a lower bound first."
        )
    return torch.linspace(low, high, count)


def project(
    probability_BK: Tensor, reward_B: Tensor, discount_B: Tensor, atoms_K: Tensor
) -> Tensor:
    """(B, K) distribution of r + g^n m Z on the atoms of Z (C51, Bellemare et al., arXiv
    1707.06887).

    What lands between two atoms is shared by them so that the mean stays; what lands outside goes
    to the outermost.

    Args:
        probability_BK: of the next state.
        reward_B: r.
        discount_B: g^n, 0 where the task ended.
        atoms_K: evenly spaced, see `even_atoms`.
    """
    low, high, count = atoms_K[0], atoms_K[-1], len(atoms_K)
    landed_BK = (reward_B[:, None] + discount_B[:, None] * atoms_K).clamp(low, high)
    place_BK = ((landed_BK - low) * ((count - 1) / (high - low))).clamp(0.0, count - 1.0)
    lower_BK = place_BK.floor()
    share_BK = place_BK - lower_BK
    lower = lower_BK.long()
    # On an atom the upper neighbour's share is 0: nothing is lost, also on the last one, which has
    # no upper neighbour.
    upper = (lower + 1).clamp(max=count - 1)
    projected_BK = torch.zeros_like(probability_BK)
    projected_BK.scatter_add_(1, lower, probability_BK * (1.0 - share_BK))
    return projected_BK.scatter_add_(1, upper, probability_BK * share_BK)


def mean_value(probability: Tensor, atoms_K: Tensor) -> Tensor:
    """(...) expectation of (..., K) distributions."""
    return probability @ atoms_K


def cross_entropy(logit: Tensor, target: Tensor) -> Tensor:
    """(...) of (..., K) target distributions and logits [nat]."""
    return -(target * torch.log_softmax(logit, dim=-1)).sum(dim=-1)
