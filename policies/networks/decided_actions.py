"""Gives a denoiser the actions that are decided before its chunk is predicted.

While a policy infers, the arm executes actions of the chunk before. A chunk that does not know them
may begin somewhere else, and where the two are joined the arm jumps. Here a random number of a
chunk's first actions is shown without noise in training, and the loss leaves them out, as in
training-time action conditioning (Black et al. 2025, arXiv 2512.05964), so inference costs no more
than without. There every action has a noise level of its own; here all have one, and which of them
are decided is an input beside the observation.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, P most decided
actions, E A + 1.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad


class DecidedActions(NamedTuple):
    """Actions of a chunk that are decided, normalised."""

    action_BHA: Tensor
    """The decided actions; zeros elsewhere."""
    mask_BH1: Tensor
    """1 where an action is decided, else 0."""

    def repeated(self, draws: int) -> DecidedActions:
        """The same, `draws` times per row."""
        return DecidedActions(*(part.repeat_interleave(draws, dim=0) for part in self))

    def imposed(self, chunk_BHA: Tensor) -> Tensor:
        """A chunk (B, H, A) with the decided actions in their places."""
        return torch.where(self.mask_BH1 > 0.0, self.action_BHA, chunk_BHA)

    def beside(self, condition_BTO: Tensor, places: slice) -> Tensor:
        """An encoded observation, every step of it followed by P decided actions and their masks:
        (B, T, O + P * E).

        Args:
            condition_BTO: the encoded observation.
            places: indices of a chunk that can be decided.
        """
        entries_BPE = torch.cat([self.action_BHA, self.mask_BH1], dim=-1)[:, places]
        features_B1X = entries_BPE.flatten(1)[:, None]
        steps = condition_BTO.shape[1]
        return torch.cat([condition_BTO, features_B1X.expand(-1, steps, -1)], dim=-1)


def decided_places(first: int, most: int) -> slice:
    """Indices of a chunk whose actions can be decided.

    Args:
        first: index of the newest observed step's action.
        most: P.
    """
    return slice(first, first + most)


def draw_decided(
    chunk_BHA: Tensor, places: slice, generator: np.random.Generator
) -> DecidedActions:
    """The first 0 to P actions of every chunk, each number with the same probability.

    Args:
        chunk_BHA: normalised actions.
        places: see `decided_places`.
        generator: source of the numbers.
    """
    most = places.stop - places.start
    number_B = torch.from_numpy(generator.integers(0, most + 1, len(chunk_BHA)))
    return first_decided(chunk_BHA, places, number_B)


def first_decided(chunk_BHA: Tensor, places: slice, number_B: Tensor) -> DecidedActions:
    """The first `number_B` of the actions at `places` of every chunk."""
    index_H = torch.arange(chunk_BHA.shape[1])
    last_B1 = places.start + number_B[:, None]
    mask_BH1 = ((index_H >= places.start) & (index_H < last_B1)).to(chunk_BHA)[..., None]
    return DecidedActions(chunk_BHA * mask_BH1, mask_BH1)


def undecided_error(predicted_BHA: Tensor, target_BHA: Tensor, decided: DecidedActions) -> Tensor:
    """Mean squared error over the actions that are not decided."""
    open_BH1 = 1.0 - decided.mask_BH1
    square_BHA = (predicted_BHA - target_BHA) ** 2 * open_BH1
    return square_BHA.sum() / (open_BH1.sum() * target_BHA.shape[-1])


def place_decided(prefix_BPE: Tensor, places: slice, horizon: int) -> DecidedActions:
    """Decided actions at their places of a chunk, in the units of `prefix_BPE`.

    Args:
        prefix_BPE: actions, each followed by 1; rows of zeros where none is decided.
        places: see `decided_places`.
        horizon: H.
    """
    placed_BHE = pad(prefix_BPE, (0, 0, places.start, horizon - places.stop))
    return DecidedActions(placed_BHE[..., :-1], placed_BHE[..., -1:])


def none_decided(like_BHA: Tensor) -> DecidedActions:
    """No decided action, for chunks of a given size."""
    return DecidedActions(torch.zeros_like(like_BHA), torch.zeros_like(like_BHA[..., :1]))
