"""Defines the minibatches of transitions that off-policy and offline learners train on.

Shape suffixes: B batch, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

from robots.config import Finite, Index, Whole, config


@config
class Sizes:
    """Sizes and features of the observations and actions in the data."""

    observation: Whole
    """Entries O of the observation vector."""
    action: Whole
    """Entries A of an action, including the gripper; for chunks, entries of all actions of a
    chunk."""
    relative_features: tuple[tuple[Whole, Index, Whole, Finite], ...] = ()
    """Additional linear network inputs (begin, other, count, scale): entries `begin..begin+count`
    minus entries `other..other+count` (nothing is subtracted if `other` is -1), divided by `scale`.
    They give the networks relative positions, such as the gripper's to the cube."""
    scaled_features: tuple[tuple[Whole, Index, Whole, Finite], ...] = ()
    """Additional network inputs (begin, other, count, scale), computed like `relative_features` and
    passed through tanh. They magnify small differences, such as half a millimetre at a peg hole,
    and stay bounded for large ones."""
    pictures: tuple[tuple[str, Whole, Whole], ...] = ()
    """(name, height, width) of every camera whose pictures the learner encodes."""
    maps: tuple[tuple[str, Whole, Whole, Whole], ...] = ()
    """(name, channels, rows, columns) of the feature map of every camera whose pictures a frozen
    trunk has encoded before."""


class Observations(NamedTuple):
    """Observations of B rows at one step."""

    vector_BO: Tensor
    """Observation vectors in physical units; learners normalise them."""
    pictures: Mapping[str, Tensor] = {}
    """Images per camera, (B, height, width, 3) uint8 RGB, or feature maps of a frozen trunk,
    (B, channels, rows, columns) float16."""


class Transitions(NamedTuple):
    """Minibatch of B transitions. The replay computes n-step returns and chunks, so learners do not
    depend on them."""

    obs: Observations
    action_BA: Tensor
    """Executed actions in [-1, 1]. A chunk of h actions is one row with h times as many entries,
    zero for actions that were not executed. With a separate gripper critic the last entry is -1, 0
    or
    1."""
    reward_B: Tensor
    """Discounted sum of rewards over the n executed steps, sum of g^i r_i."""
    discount_B: Tensor
    """Factor of the value of `next_obs`: g^n, or 0 if the task terminated within the n steps."""
    next_obs: Observations
    """Observation after those steps, before any reset."""
    demo_B: Tensor
    """Whether a row comes from the demonstration buffer, which includes corrections; bool."""
    intervention_B: Tensor
    """Whether a person acted; bool."""
    toggles_B: Tensor
    """Number of commands that reversed the gripper, discounted like `reward_B`."""
    extra: Mapping[str, Tensor] = {}
    """Additional values per row, such as `mc_return`."""

    @property
    def rows(self) -> int:
        """Number of rows B."""
        return len(self.reward_B)


def without_person(
    obs: Observations,
    action_BA: Tensor,
    reward_B: Tensor,
    discount_B: Tensor,
    next_obs: Observations,
    demo_B: Tensor | None = None,
    extra: Mapping[str, Tensor] | None = None,
) -> Transitions:
    """Transitions in which no person acted and no command reversed the gripper; the arguments are
    those of `Transitions`. Without `demo_B` none of them is a demonstration."""
    none_B = torch.zeros_like(reward_B, dtype=torch.bool)
    return Transitions(
        obs=obs,
        action_BA=action_BA,
        reward_B=reward_B,
        discount_B=discount_B,
        next_obs=next_obs,
        demo_B=none_B if demo_B is None else demo_B,
        intervention_B=none_B,
        toggles_B=torch.zeros_like(reward_B),
        extra=extra or {},
    )


def concatenated(parts: list[Transitions]) -> Transitions:
    """Concatenates minibatches; `extra` keeps the entries that all of them have."""

    def joined(field: str) -> Observations:
        observations = [getattr(part, field) for part in parts]
        pictures = {
            name: torch.cat([obs.pictures[name] for obs in observations])
            for name in observations[0].pictures
        }
        return Observations(torch.cat([obs.vector_BO for obs in observations]), pictures)

    plain = ("action_BA", "reward_B", "discount_B", "demo_B", "intervention_B", "toggles_B")
    columns = {name: torch.cat([getattr(part, name) for part in parts]) for name in plain}
    shared = set.intersection(*(set(part.extra) for part in parts))
    extra = {name: torch.cat([part.extra[name] for part in parts]) for name in sorted(shared)}
    return Transitions(obs=joined("obs"), next_obs=joined("next_obs"), extra=extra, **columns)
