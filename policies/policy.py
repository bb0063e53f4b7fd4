"""The interface of all policies over action chunks: physical units outside, normalised ones inside,
one loss.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from policies.card import Shapes
from policies.normalize import MinMaxNormalizer, MomentStatistics, StandardNormalizer
from policies.policy_config import PolicyConfig
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.policy import Words
    from policies.samplers.chain import Denoise, Grid


class ObservationTensors(NamedTuple):
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

    observed: ObservationTensors
    chunk_BHA: Tensor
    padded_BH: Tensor
    """True for actions outside their episode, which repeat its first or last."""


class ChunkPolicy(nn.Module, ABC):
    """A chunk as a pure function of observation, noise and weights, and the loss by which the
    weights learn.

    A family fills in `sample` and `loss`, and assigns `config` again, by which a type checker knows
    it as that of the family. Every other method has an answer here that a family may override.

    Args:
        config: of the family.
        shapes: sizes that the data give.
    """

    said: str | None = None
    """Instruction that the policy hears where none is given; None without one."""

    def __init__(self, config: PolicyConfig, shapes: Shapes) -> None:
        super().__init__()
        self.config = config
        self.shapes = shapes
        self.anchor = shapes.anchor
        self.observation_shape = (config.n_obs_steps, shapes.observation)
        self.chunk_shape = (config.horizon, shapes.action)
        self.normalize_observation = MinMaxNormalizer(shapes.observation)
        self.normalize_action = StandardNormalizer(self.chunk_shape)

    @property
    def reads_language(self) -> bool:
        """See `ChunkPolicyConfig.reads_language`."""
        return self.config.reads_language

    @property
    def sampler(self) -> str:
        """Name of the sampler and its steps, such as `ddim-10`; `one-step` without steps."""
        return self.config.sampler_name(self.sampler_steps)

    @property
    def sampler_steps(self) -> int | None:
        """Steps in which it samples now; None for one that answers in one pass."""
        return None

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
            sensors: see `ObservationTensors`.
            instructions: see `ObservationTensors`.
            goal_BO: physical units; see `ObservationTensors`.
        """
        goal = None if goal_BO is None else self.normalize_observation(goal_BO)
        observed = ObservationTensors(
            self.normalize_observation(observation_BTO), sensors or {}, instructions, goal
        )
        chunk_BHA = self.normalize_action.inverse(self.sample(observed, noise_BHA))
        if self.anchor is None:
            return chunk_BHA
        return chunk_BHA + observation_BTO[:, -1:, self.anchor : self.anchor + self.chunk_shape[1]]

    @abstractmethod
    def sample(self, observed: ObservationTensors, noise_BHA: Tensor) -> Tensor:
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
        raise HandoffError(
            f"policy: {type(self).__name__} answers in one pass, it has no {steps}-step sampler."
        )

    def fit_action(self, moments: MomentStatistics, chunks: Callable[[], np.ndarray]) -> None:
        """Fits the normaliser of actions.

        Args:
            moments: of all chunks to learn from.
            chunks: reads those chunks, (N, H, A), for what has no running form.
        """
        self.normalize_action.fit_moments(moments)

    def fit_usual_goal(self, last: MomentStatistics) -> None:
        """Takes the mean of the episodes' last observations for the goal where none is told; called
        after the normalisers are fitted. A family without such a goal does nothing."""

    def tokens(self, sentences: Sequence[str]) -> Words:
        """The sentences as the policy's text layers read them.

        Raises:
            HandoffError: a sentence that is too long, or a family that reads no language.
        """
        raise HandoffError(
            f"policy: {type(self).__name__} reads no language, got {len(sentences)} sentences."
        )

    def shared_settings(self) -> dict[str, object]:
        """Settings in which a teacher must agree with its student beside sizes and units, by their
        names."""
        return {}


class DenoisingPolicy(ChunkPolicy):
    """A `ChunkPolicy` that goes from noise to the chunk along a grid of Gaussian steps, each of
    which can be walked, weighed and corrected by itself."""

    @abstractmethod
    def velocity(self, observed: ObservationTensors) -> Denoise:
        """The network behind `chain_grid`, given what is observed: (noisy (B, H, A), level or time
        (B,)) to velocity."""

    @abstractmethod
    def chain_grid(
        self, steps: int | None, *, eta: float, flow_noise: float, renoise: bool = False
    ) -> Grid:
        """The steps of the sampler as Gaussians.

        Args:
            steps: how many; None takes those of the sampler now.
            eta: noise of a diffusion's steps, 0 for DDIM to 1 for DDPM.
            flow_noise: noise of a flow's steps, 0 for its ODE.
            renoise: see `policies.samplers.ddim.ddim_grid`; read for a diffusion.
        """

    def bounded(self, chunk_BHA: Tensor) -> Tensor:
        """The end of a chain within the bounds of the family's own sampler."""
        return chunk_BHA


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
