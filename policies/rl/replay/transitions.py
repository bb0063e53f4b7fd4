"""Defines the minibatches that reinforcement learners learn from.

Shape suffixes: B batch, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from torch import Tensor

from robots.config import config


@config
class Sizes:
    """What the data give a learner."""

    observation: int
    """O, entries of the observation vector."""
    action: int
    """A, entries of an action, the hand's among them; for chunks entries of all actions of a
    chunk."""
    differences: tuple[tuple[int, int, int, float], ...] = ()
    """(begin, other, count, scale): entries `begin..begin+count` minus `other..other+count`, or the
    entries alone where `other` is -1, divided by `scale`, are shown to the networks beside the
    vector: where the hand is, seen from the cube, must not have to be learned."""
    close_ups: tuple[tuple[int, int, int, float], ...] = ()
    """(begin, other, count, scale): likewise, but through tanh: half a millimetre beside a peg's
    hole is shown large, and what is far stays bounded."""
    pictures: tuple[tuple[str, int, int], ...] = ()
    """(name, height, width) of every camera."""


class Observations(NamedTuple):
    """What is observed at one step of B rows."""

    vector_BO: Tensor
    """In physical units; learners normalise."""
    pictures: Mapping[str, Tensor] = {}
    """Per camera (B, height, width, 3) uint8 RGB."""


class Transitions(NamedTuple):
    """B rows. n-step returns and chunks are worked out by the replay, so that no learner knows of
    them."""

    seen: Observations
    action_BA: Tensor
    """Executed, in [-1, 1]; a chunk of h actions is one row of h times as many entries, unexecuted
    ones zero. Where a hand has a critic of its own the last entry is -1, 0 or 1."""
    reward_B: Tensor
    """Sum over the n steps that were executed of g^i r_i."""
    discount_B: Tensor
    """g^n, and 0 where the task ended within them: all that stands before the value of
    `next_seen`."""
    next_seen: Observations
    """The true observation after those steps."""
    demo_B: Tensor
    """bool: from the demonstration buffer, which holds corrections too."""
    intervention_B: Tensor
    """bool: a person acted."""
    toggles_B: Tensor
    """Times that the hand was told to turn round, discounted like `reward_B`."""
    extra: Mapping[str, Tensor] = {}
    """Further numbers per row, such as `mc_return`."""

    @property
    def rows(self) -> int:
        """Their number."""
        return len(self.reward_B)


def concatenated(parts: list[Transitions]) -> Transitions:
    """The rows of all parts, one after another; only `extra` that all of them have is kept."""
    import torch

    def seen(which: str) -> Observations:
        several = [getattr(part, which) for part in parts]
        pictures = {
            name: torch.cat([one.pictures[name] for one in several]) for name in several[0].pictures
        }
        return Observations(torch.cat([one.vector_BO for one in several]), pictures)

    plain = ("action_BA", "reward_B", "discount_B", "demo_B", "intervention_B", "toggles_B")
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in plain}
    shared = set.intersection(*(set(part.extra) for part in parts))
    extra = {name: torch.cat([part.extra[name] for part in parts]) for name in sorted(shared)}
    return Transitions(seen=seen("seen"), next_seen=seen("next_seen"), extra=extra, **columns)
