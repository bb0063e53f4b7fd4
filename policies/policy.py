"""What all policies over action chunks have in common: physical units outside, normalised ones
inside, one loss.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from policies.card import Shapes
from policies.normalize import MinMaxNormalizer, StandardNormalizer
from policies.policy_config import PolicyConfig

if TYPE_CHECKING:
    from policies.policy import Words


class Observed(NamedTuple):
    """What a policy sees."""

    vector_BTO: Tensor
    """Newest step last."""
    sensors: Mapping[str, Tensor] = {}
    """Per camera (B, T, height, width, 3) uint8 RGB, per point cloud (B, T, points, entries) [m];
    as recorded."""
    instructions: tuple[str, ...] = ()
    """B sentences; empty where there are none."""
    goal_BO: Tensor | None = None
    """Observation vector of the state to be reached, where the policy is told one apart from its
    observation."""
    words: Words | None = None
    """The sentences as the policy's own backbone reads them, where that has been done before."""


class Batch(NamedTuple):
    """Rows to learn from, normalised."""

    observed: Observed
    chunk_BHA: Tensor
    padded_BH: Tensor
    """True for actions outside their episode, which repeat its first or last."""


class ChunkPolicy(nn.Module, ABC):
    """A chunk as a pure function of observation, noise and weights, and the loss by which the
    weights learn.

    A family fills in `sample` and `loss`.

    Args:
        config: of the family.
        shapes: sizes that the data give.
    """

    def __init__(self, config: PolicyConfig, shapes: Shapes) -> None:
        super().__init__()
        self.shapes = shapes
        self.anchor = shapes.anchor
        self.observation_shape = (config.n_obs_steps, shapes.observation)
        self.chunk_shape = (config.horizon, shapes.action)
        self.normalize_observation = MinMaxNormalizer(shapes.observation)
        self.normalize_action = StandardNormalizer(self.chunk_shape)

    @property
    def sampler(self) -> str:
        """Name of the sampler and its steps, such as `ddim-10`; `one-step` without steps."""
        return "one-step"

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.normalize_action.centre.device

    def forward(
        self,
        observation_BTO: Tensor,
        noise_BHA: Tensor,
        sensors: Mapping[str, Tensor] | None = None,
        instructions: tuple[str, ...] = (),
        goal_BO: Tensor | None = None,
    ) -> Tensor:
        """Actions (B, H, A) in physical units.

        Args:
            observation_BTO: physical units, newest step last.
            noise_BHA: standard normal.
            sensors: see `Observed`.
            instructions: see `Observed`.
            goal_BO: physical units; see `Observed`.
        """
        goal = None if goal_BO is None else self.normalize_observation(goal_BO)
        observed = Observed(
            self.normalize_observation(observation_BTO), sensors or {}, instructions, goal
        )
        chunk_BHA = self.normalize_action.inverse(self.sample(observed, noise_BHA))
        if self.anchor is None:
            return chunk_BHA
        return chunk_BHA + observation_BTO[:, -1:, self.anchor : self.anchor + self.chunk_shape[1]]

    @abstractmethod
    def sample(self, observed: Observed, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A)."""

    @abstractmethod
    def loss(self, batch: Batch, draw: np.random.Generator) -> Tensor:
        """The scalar loss of an update.

        Args:
            batch: normalised, on the policy's device.
            draw: all chance of the update comes from here, so that it can be repeated.
        """

    def extra_files(self) -> dict[str, bytes]:
        """Files that a saved policy needs beside its weights, by their path in its folder."""
        return {}

    def set_sampler_steps(self, steps: int) -> None:
        """Samples in `steps` steps from now on.

        Raises:
            HandoffError: the family has no such sampler.
        """
        from robots.errors import HandoffError

        raise HandoffError(
            f"policy: {type(self).__name__} answers in one pass, it has no {steps}-step sampler."
        )


@contextmanager
def repeatable_dropout(draw: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Draws torch's random numbers from `draw`, so that an update that drops units can be
    repeated."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(draw.integers(1 << 62)))
        yield


class Words(NamedTuple):
    """Sentences as the text layers read them."""

    token_BL: Tensor
    """int64."""
    mask_BL: Tensor
    """False for padding, which stands behind."""
