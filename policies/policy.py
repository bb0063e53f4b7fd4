"""Interface of all policies over action chunks. Inputs and outputs are in physical units, the
networks work on normalised ones.

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
from policies.language.instruction_features import InstructionFeatures
from policies.language.sentence_encoder import FOLDER, SentenceEncoder
from policies.networks.decided_actions import DecidedActions, decided_places, place_decided
from policies.networks.images.folder_trunk import FolderTrunk
from policies.networks.images.image_model import FOLDER as IMAGE_FOLDER
from policies.networks.images.image_model import ImageModel
from policies.normalize import MinMaxNormalizer, MomentStatistics, StandardNormalizer
from policies.policy_config import PolicyConfig
from policies.samplers.chunk_actor import ChunkRefiner, PolicyFeatures
from policies.samplers.noise_actor import NoiseActor
from robots.errors import HandoffError

if TYPE_CHECKING:
    from policies.policy import InstructionTokens
    from policies.samplers.chain import Denoise, Grid


class ObservationTensors(NamedTuple):
    """Observation batch of a policy."""

    vector_BTO: Tensor
    """Observation vectors, newest step last."""
    sensors: Mapping[str, Tensor] = {}
    """Per camera (B, T, height, width, 3) uint8 RGB, per point cloud (B, T, points, entries) [m];
    as recorded, not normalised."""
    instructions: tuple[str, ...] = ()
    """B sentences; empty for policies that are not language-conditioned."""
    goal_BO: Tensor | None = None
    """Observation vector of the goal state, for goal-conditioned policies whose goal is not part of
    the observation."""
    instruction_tokens: InstructionTokens | None = None
    """Instructions tokenized beforehand by the policy's backbone; takes precedence over
    `instructions`."""
    embedding_BW: Tensor | None = None
    """Embeddings of the instructions by the policy's sentence encoder; takes precedence over
    `instructions`."""
    decided: DecidedActions | None = None
    """Actions that are decided already; None decides nothing. For policies that take them."""


class Batch(NamedTuple):
    """Training batch, normalised."""

    obs: ObservationTensors
    chunk_BHA: Tensor
    padded_BH: Tensor
    """True for actions outside their episode, which repeat its first or last action."""
    ending_BG: Tensor | None = None
    """What `policies.imitation.end_prediction` predicts; None for nothing."""
    estimated_BTG: Tensor | None = None
    """Fields that the policy estimates, at the observed steps; None for none."""
    executed_BHA: Tensor | None = None
    """Chunks of which decided actions are shown; None for `chunk_BHA`."""


class ChunkPolicy(nn.Module, ABC):
    """Base class of all policy families: a chunk as a pure function of observation, noise and
    weights, and the training loss.

    A family implements `sample` and `loss`, and assigns `config` again so that type checkers know
    its type. Every other method has a default that a family may override.

    Args:
        config: configuration of the family.
        shapes: sizes given by the data.
    """

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
    def language_conditioned(self) -> bool:
        """See `ChunkPolicyConfig.language_conditioned`."""
        return self.config.language_conditioned

    @property
    def default_instruction(self) -> str | None:
        """See `ChunkPolicyConfig.default_instruction`."""
        return self.config.default_instruction

    @property
    def sentences(self) -> SentenceEncoder | None:
        """Sentence encoder of the instructions; None for a policy without one."""
        found = (part for part in self.modules() if isinstance(part, InstructionFeatures))
        return next((part.sentences for part in found), None)

    @property
    def image_model(self) -> ImageModel | None:
        """Description of the pretrained image model from a folder; None for a policy without
        one."""
        found = (part.source for part in self.modules() if isinstance(part, FolderTrunk))
        return next(found, None)

    @property
    def sampler(self) -> str:
        """Name of the sampler with its number of steps, such as `ddim-10`; `one-step` for policies
        without sampler steps."""
        return self.config.sampler_name(self.sampler_steps)

    @property
    def sampler_steps(self) -> int | None:
        """Current number of sampler steps; None for policies that predict in one pass."""
        return None

    @property
    def repeated_modules(self) -> tuple[nn.Module, ...]:
        """Submodules that `sample` calls in every step of several; an export captures each once."""
        return ()

    @property
    def encoded_shape(self) -> tuple[int, int]:
        """(T, O + F) of an observation whose pictures and point clouds are F features; see
        `encode`. The shape of the vector for families that do not encode."""
        return self.observation_shape

    def encode(self, obs: ObservationTensors) -> Tensor | None:
        """(B, T, O + F) vector and features of an observation, without random crops.

        Given in place of the vector, without sensors, it stands for the observation: trainings that
        keep the encoders encode every picture once. None for families without such features.
        """
        return None

    @property
    def device(self) -> torch.device:
        """Device of the weights."""
        return self.normalize_action.centre.device

    def forward(
        self,
        observation_BTO: Tensor,
        noise_BHA: Tensor,
        sensors: Mapping[str, Tensor] | None = None,
        instructions: tuple[str, ...] = (),
        goal_BO: Tensor | None = None,
        embedding_BW: Tensor | None = None,
        prefix_BPE: Tensor | None = None,
    ) -> Tensor:
        """Actions (B, H, A) in physical units.

        Args:
            observation_BTO: physical units, newest step last.
            noise_BHA: standard normal.
            sensors: see `ObservationTensors`.
            instructions: see `ObservationTensors`.
            goal_BO: physical units; see `ObservationTensors`.
            embedding_BW: see `ObservationTensors`.
            prefix_BPE: see `robots.interfaces.PolicyInput.prefix`.
        """
        goal = None if goal_BO is None else self.normalize_observation(goal_BO)
        obs = ObservationTensors(
            self.normalize_observation(observation_BTO),
            sensors or {},
            instructions,
            goal,
            embedding_BW=embedding_BW,
            decided=None if prefix_BPE is None else self._decided(prefix_BPE, observation_BTO),
        )
        chunk_BHA = self.normalize_action.inverse(self.sample(obs, noise_BHA))
        if self.anchor is None:
            return chunk_BHA
        return chunk_BHA + self._anchor_of(observation_BTO)

    def _anchor_of(self, observation_BTO: Tensor) -> Tensor:
        """(B, 1, A) newest value of the field to which actions are relative."""
        assert self.anchor is not None
        return observation_BTO[:, -1:, self.anchor : self.anchor + self.chunk_shape[1]]

    def _decided(self, prefix_BPE: Tensor, observation_BTO: Tensor) -> DecidedActions:
        """Decided actions in physical units, normalised and at their places of a chunk."""
        places = decided_places(self.config.n_obs_steps - 1, self.config.most_decided)
        action_BHA, mask_BH1 = place_decided(prefix_BPE, places, self.config.horizon)
        if self.anchor is not None:
            action_BHA = action_BHA - self._anchor_of(observation_BTO)
        return DecidedActions(self.normalize_action(action_BHA) * mask_BH1, mask_BH1)

    @abstractmethod
    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A)."""

    @abstractmethod
    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Scalar training loss.

        Args:
            batch: normalised, on the policy's device.
            generator: source of all randomness of the update, so that it can be repeated.
        """

    def extra_files(self) -> dict[str, bytes]:
        """Files that a saved policy needs in addition to its weights: path in its folder to
        content."""
        sources = ((FOLDER, self.sentences), (IMAGE_FOLDER, self.image_model))
        return {
            f"{folder}/{name}": data
            for folder, source in sources
            if source is not None
            for name, data in source.files.items()
        }

    def set_sampler_steps(self, steps: int) -> None:
        """Sets the number of sampler steps.

        Raises:
            HandoffError: the family has no multi-step sampler.
        """
        raise HandoffError(
            f"policy: {type(self).__name__} predicts in one pass, it has no {steps}-step sampler."
        )

    def fit_action(self, moments: MomentStatistics, chunks: Callable[[], np.ndarray]) -> None:
        """Fits the action normaliser.

        Args:
            moments: mean and standard deviation of all training chunks.
            chunks: reads those chunks, (N, H, A), for statistics that need all data at once.
        """
        self.normalize_action.fit_moments(moments)

    def fit_usual_goal(self, last: MomentStatistics) -> None:
        """Sets the default goal to the mean of the episodes' last observations; called after the
        normalisers are fitted. Families without such a goal do nothing."""

    def tokens(self, sentences: Sequence[str]) -> InstructionTokens:
        """Tokenizes sentences for the policy's text layers.

        Raises:
            HandoffError: a sentence that is too long, or a family that is not
                language-conditioned.
        """
        raise HandoffError(
            f"policy: {type(self).__name__} is not language-conditioned, got {len(sentences)} sentences."
        )

    def shared_settings(self) -> dict[str, object]:
        """Settings by name that a teacher and its student must share, in addition to sizes and
        units."""
        return {}


class EncodedSampler(NamedTuple):
    """A deterministic sampler on observations that are encoded once."""

    features: Callable[[], Tensor]
    """Features (B, F) of the observations, for networks that choose the initial noise."""
    tokens: Callable[[], PolicyFeatures]
    """The same before they are one vector, for an encoder that is learned beside the policy."""
    chunk: Callable[[Tensor], Tensor]
    """Maps the initial noise (B, H, A) to the normalised chunk (B, H, A)."""


class DenoisingPolicy(ChunkPolicy):
    """A `ChunkPolicy` that denoises a chunk along a grid of Gaussian steps, whose samples and
    log-probabilities are accessible one by one."""

    noise_actor: NoiseActor | None
    """Actor that chooses the initial noise of `sample` (DSRL), assigned by the family; None starts
    from the given noise. The steps of `chain_grid` start from a noise of the caller in any case."""
    chunk_actor: ChunkRefiner | None
    """Actor that refines the chunk of `sample` (RL token), assigned by the family; None leaves it.
    The chunks of `chain_grid` are not refined."""

    @abstractmethod
    def encoded_sampler(self, obs: ObservationTensors) -> EncodedSampler:
        """The family's sampler on these observations, without the actors."""

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A)."""
        sampler = self.encoded_sampler(obs)
        if self.noise_actor is not None:
            noise_BHA = self.noise_actor(sampler.features(), noise_BHA)
        chunk_BHA = sampler.chunk(noise_BHA)
        if self.chunk_actor is None:
            return chunk_BHA
        return self.clip_chunk(self.chunk_actor(sampler.tokens(), chunk_BHA))

    @abstractmethod
    def velocity(self, obs: ObservationTensors) -> Denoise:
        """The denoiser for `chain_grid`, conditioned on an observation: (noisy (B, H, A), timestep
        or time (B,)) to velocity."""

    @abstractmethod
    def chain_grid(
        self, steps: int | None, *, eta: float, flow_noise: float, renoise: bool = False
    ) -> Grid:
        """The sampler's steps as Gaussians.

        Args:
            steps: number of steps; None takes the sampler's current number.
            eta: noise of diffusion steps, 0 for DDIM to 1 for DDPM.
            flow_noise: noise of flow steps, 0 for the ODE.
            renoise: see `policies.samplers.ddim.ddim_grid`; used by diffusion only.
        """

    def clip_chunk(self, chunk_BHA: Tensor) -> Tensor:
        """Clips the end of a chain to the bounds of the family's own sampler."""
        return chunk_BHA


def refuse_actors(policy: ChunkPolicy, about: str) -> None:
    """Checks that a policy whose weights or velocities are used has no actor beside its sampler.

    Args:
        policy: any policy.
        about: beginning of the message, such as `finetune: the policy`.

    Raises:
        HandoffError: the policy has a noise actor or a chunk actor.
    """
    if not isinstance(policy, DenoisingPolicy):
        return
    found = (
        ("dsrl", policy.noise_actor, "chooses the initial noise of its sampler"),
        ("rl_token", policy.chunk_actor, "refines the chunks of its sampler"),
    )
    for method, actor, does in found:
        if actor is not None:
            raise HandoffError(
                f"{about} was fine-tuned by '{method}': an actor {does}, which only evaluation, the distillation "
                "'one_step' and export keep. Use the policy before that fine-tuning."
            )


@contextmanager
def repeatable_dropout(generator: np.random.Generator, device: torch.device) -> Iterator[None]:
    """Seeds torch's global random state from `generator`, so that an update with dropout can be
    repeated."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(int(generator.integers(1 << 62)))
        yield


class InstructionTokens(NamedTuple):
    """Tokenized instructions."""

    token_BL: Tensor
    """Token ids, int64."""
    mask_BL: Tensor
    """False for padding, which is on the right."""
