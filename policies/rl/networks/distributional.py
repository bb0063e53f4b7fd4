"""Represents values and rewards as categorical distributions over fixed atoms: the projection of
C51, and two-hot encodings.

Shape suffixes: B batch (any leading dimensions for the plain functions), K atoms.
"""

from __future__ import annotations

import torch
from torch import Tensor

from robots.errors import HandoffError


def even_atoms(low: float, high: float, count: int) -> Tensor:
    """(K,) float32 evenly spaced atoms, including both bounds.

    Raises:
        HandoffError: there are fewer than two atoms, or `low` is not below `high`.
    """
    if count < 2 or not low < high:
        raise HandoffError(
            f"distributional value: {count} atoms from {low} to {high}, expected at least 2 and low < high."
        )
    return torch.linspace(low, high, count)


def project(
    probability_BK: Tensor, reward_B: Tensor, discount_B: Tensor, atoms_K: Tensor
) -> Tensor:
    """(B, K) distribution of r + d Z, projected on the atoms of Z (C51, Bellemare et al., arXiv
    1707.06887).

    Probability between two atoms is divided between them so that the mean is preserved; probability
    outside the range goes to the outermost atom.

    Args:
        probability_BK: value distribution of the next state.
        reward_B: rewards r.
        discount_B: discounts d, 0 after termination.
        atoms_K: evenly spaced, see `even_atoms`.
    """
    low = atoms_K[0]
    high = atoms_K[-1]
    count = len(atoms_K)
    shifted_BK = (reward_B[:, None] + discount_B[:, None] * atoms_K).clamp(low, high)
    position_BK = ((shifted_BK - low) * ((count - 1) / (high - low))).clamp(0.0, count - 1.0)
    lower_BK = position_BK.floor()
    fraction_BK = position_BK - lower_BK
    # A reward that is not a number has no atom. As an index it would abort a GPU, where rewards are
    # checked later; its probabilities are not numbers, either.
    lower = lower_BK.long().clamp(0, count - 1)
    # Exactly on an atom the upper neighbour gets 0, so clamping the index at the last atom loses
    # nothing.
    upper = (lower + 1).clamp(max=count - 1)
    projected_BK = torch.zeros_like(probability_BK)
    projected_BK.scatter_add_(1, lower, probability_BK * (1.0 - fraction_BK))
    return projected_BK.scatter_add_(1, upper, probability_BK * fraction_BK)


def mean_value(probability: Tensor, atoms_K: Tensor) -> Tensor:
    """(...) expectations of (..., K) distributions."""
    return probability @ atoms_K


def cross_entropy(logit: Tensor, target: Tensor) -> Tensor:
    """(...) cross-entropies of (..., K) logits to target distributions [nat]."""
    return -(target * torch.log_softmax(logit, dim=-1)).sum(dim=-1)


def symexp_atoms(low: float, high: float, count: int) -> Tensor:
    """(K,) float32 atoms that are evenly spaced in symlog(x) = sign(x) log(1 + |x|) and therefore
    dense at 0 (DreamerV3, arXiv 2301.04104).

    Args:
        low: symlog of the lowest atom.
        high: symlog of the highest atom.
        count: number of atoms K.

    Raises:
        HandoffError: see `even_atoms`.
    """
    symlog_K = even_atoms(low, high, count)
    return symlog_K.sign() * torch.expm1(symlog_K.abs())


def two_hot(value: Tensor, atoms_K: Tensor) -> Tensor:
    """(..., K) distributions on the two atoms around each value (...), whose mean is the value;
    values outside the range go to the outermost atom.

    Args:
        value: numbers of any shape.
        atoms_K: ascending atoms, whatever their spacing.
    """
    count = len(atoms_K)
    bounded = value.clamp(atoms_K[0], atoms_K[-1])
    upper = torch.searchsorted(atoms_K, bounded.contiguous(), right=True).clamp(1, count - 1)
    lower = upper - 1
    fraction = (bounded - atoms_K[lower]) / (atoms_K[upper] - atoms_K[lower])
    encoded = torch.zeros(*value.shape, count, dtype=atoms_K.dtype, device=value.device)
    encoded.scatter_(-1, lower[..., None], (1.0 - fraction)[..., None])
    return encoded.scatter_(-1, upper[..., None], fraction[..., None])
