"""BESO: goal-conditioned diffusion policy by score matching (Reuss et al., RSS 2023, arXiv
2304.02532).

A transformer inside EDM's preconditioner denoises the chunk from sigma_max in a few DDIM steps
along exponentially spaced noise levels; classifier-free guidance sets the influence of the goal.
`policies.networks.goal_transformer` maps the paper's interleaved states and actions to observation
steps and a chunk.

Differences between paper, released beso code and Handoff:
- Goal dropout: the paper drops whole goals, the released code single entries. Here whole goals are
  dropped.
- The released sampler clips actions to the range of the data; here to `clip` normalised units,
  since the normaliser stores mean and standard deviation.
- The released evaluation of Kitchen samples with Euler-ancestral steps, its training config with
  DDIM. Ancestral steps draw additional noise, so that a chunk would not be a function of
  observation and initial noise. Reinforcement learning, which needs them, samples `grid(1.0)` with
  `policies.samplers.chain.sample_chain` and `denoise`.

With few steps the smallest noise level matters: of three levels from 1 to 0.005 the second is 0.07,
where the network was never trained on samples between two modes and leaves them there. From 1 to
0.05, as released for Block-push, it is 0.22.

Shape suffixes: B batch, T observed steps, O observation, G goal, H horizon, A action.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.card import Shapes
from policies.language.sentence_encoder import SentenceEncoder
from policies.networks.goal_transformer import GoalTransformer
from policies.networks.images.image_model import ImageModel
from policies.networks.observation_encoder import ObservationEncoder
from policies.normalize import MomentStatistics
from policies.policy import Batch, ChunkPolicy, ObservationTensors, repeatable_dropout
from policies.policy_config import BesoConfig
from policies.samplers.chain import Denoise
from policies.samplers.ddim import guide
from policies.samplers.edm import (
    EdmGrid,
    edm_example,
    edm_grid,
    exponential_sigmas,
    preconditioned,
    training_sigma,
)
from robots.errors import HandoffError


class BesoPolicy(ChunkPolicy):
    """Denoises a chunk conditioned on a goal; see `ChunkPolicy`.

    Attributes:
        guidance: see `BesoConfig.guidance`; may be changed at any time.

    Raises:
        HandoffError: incompatible settings.
    """

    usual_goal_O: Tensor

    def __init__(
        self,
        config: BesoConfig,
        shapes: Shapes,
        sentences: SentenceEncoder | None = None,
        image_model: ImageModel | None = None,
    ) -> None:
        super().__init__(config, shapes)
        _check(config, shapes)
        self.config = config
        self.guidance = config.guidance
        self.goal_spans = [shapes.entries[name] for name in config.goal_fields]
        state_fields = (
            shapes.entries
            if config.goal == "future"
            else shapes.entries.keys() - set(config.goal_fields)
        )
        self.state_spans = [span for name, span in shapes.entries.items() if name in state_fields]
        self.encoder = ObservationEncoder(config, shapes, sentences, image_model)
        if self.encoder.outputs > shapes.observation:
            self.state_spans.append((shapes.observation, self.encoder.outputs))
        self.goal_entries, state = (
            sum(end - start for start, end in s) for s in (self.goal_spans, self.state_spans)
        )
        self.network = GoalTransformer(
            self.chunk_shape, (self.encoder.steps, state), self.goal_entries, config
        )
        self.register_buffer(
            "usual_goal_O", torch.zeros(shapes.observation), persistent=config.goal == "future"
        )
        self.set_sampler_steps(config.sampling_steps)

    def fit_usual_goal(self, last: MomentStatistics) -> None:
        """See `ChunkPolicy.fit_usual_goal`."""
        mean_O = torch.from_numpy(last.mean).to(self.usual_goal_O)
        self.usual_goal_O.copy_(self.normalize_observation(mean_O))

    def set_sampler_steps(self, steps: int) -> None:
        """Sets the number of sampler steps.

        Raises:
            HandoffError: fewer than one step, or noise levels that are not 0 < sigma_min <
                sigma_max.
        """
        self.sigma_K = exponential_sigmas(steps, self.config.sigma_min, self.config.sigma_max)

    @property
    def sampler_steps(self) -> int:
        """See `ChunkPolicy.sampler_steps`."""
        return len(self.sigma_K)

    @property
    def encoded_shape(self) -> tuple[int, int]:
        """See `ChunkPolicy.encoded_shape`."""
        steps, entries = self.observation_shape
        return steps, entries + self.encoder.features

    def encode(self, obs: ObservationTensors) -> Tensor:
        """See `ChunkPolicy.encode`."""
        return self.encoder.encode_sensors(obs)

    def grid(self, eta: float) -> EdmGrid:
        """The sampler's steps as Gaussians, on the device of the weights; sampling starts at
        `start` times a standard normal chunk.

        Args:
            eta: 0 for DDIM, which `sample` uses, to 1 for the Euler-ancestral sampler.
        """
        return edm_grid(self.sigma_K, eta).to(self.device)

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A)."""
        denoise, sigmas = self.denoise(obs), self.sigma_K.tolist()
        sample_BHA = sigmas[0] * noise_BHA
        # Same steps as `grid(0.0)`, but with plain numbers, which keeps tables out of exported
        # graphs.
        for sigma, next_sigma in zip(sigmas, [*sigmas[1:], 0.0], strict=True):
            sigma_B = torch.full((noise_BHA.shape[0],), sigma, device=noise_BHA.device)
            sample_BHA = torch.lerp(denoise(sample_BHA, sigma_B), sample_BHA, next_sigma / sigma)
        return sample_BHA.clamp(-self.config.clip, self.config.clip)

    def denoise(self, obs: ObservationTensors) -> Denoise:
        """The guided denoiser, conditioned on an observation: (noisy (B, H, A), sigma (B,)) to
        clean chunk."""
        state_BTO = _entries(self.encoder(obs), self.state_spans)
        no_goal_BG = state_BTO.new_zeros(state_BTO.shape[0], self.goal_entries)
        return guide(
            self._denoise_towards(self.goal(obs) if self.guidance else no_goal_BG, state_BTO),
            self._denoise_towards(no_goal_BG, state_BTO),
            self.guidance,
        )

    def goal(self, obs: ObservationTensors) -> Tensor:
        """The normalised goal (B, G): from the newest observation step with `goal: field`,
        otherwise from `goal_BO`.

        Without `goal_BO` it is the usual goal, the mean of the demonstrations' last observations.
        """
        if self.config.goal == "field":
            return _entries(obs.vector_BTO[:, -1], self.goal_spans)
        if obs.goal_BO is None:
            usual_BO = self.usual_goal_O.expand(obs.vector_BTO.shape[0], -1)
            return _entries(usual_BO, self.goal_spans)
        return _entries(obs.goal_BO, self.goal_spans)

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Mean squared error of the network F at noise levels from BESO's truncated log-logistic
        distribution."""
        config = self.config
        clean_BHA = batch.chunk_BHA
        device = batch.chunk_BHA.device
        uniform_B = torch.from_numpy(generator.random(len(clean_BHA)))
        sigma_B = training_sigma(
            uniform_B, config.sigma_data, 0.5, config.sigma_min, config.sigma_max
        )
        noise_BHA = torch.from_numpy(
            generator.standard_normal(tuple(clean_BHA.shape), dtype=np.float32)
        ).to(device)
        example = edm_example(clean_BHA, noise_BHA, sigma_B.float().to(device), config.sigma_data)
        encoded_BTX = self.encoder(batch.obs, generator if self.training else None)
        state_BTO, goal_BG = _entries(encoded_BTX, self.state_spans), self.goal(batch.obs)
        if self.training:
            kept_B = torch.from_numpy(generator.random(len(goal_BG)) >= config.goal_dropout).to(
                device
            )
            goal_BG = goal_BG * kept_B[:, None]
        drops = self.training and (config.attention_dropout or config.residual_dropout)
        with repeatable_dropout(generator, device) if drops else nullcontext():
            output_BHA = self.network(example.input_BHA, example.noise_B, goal_BG, state_BTO)
        return mse_loss(output_BHA.float(), example.target_BHA)

    def _denoise_towards(self, goal_BG: Tensor, state_BTO: Tensor) -> Denoise:
        def network(scaled_BHA: Tensor, noise_B: Tensor) -> Tensor:
            return self.network(scaled_BHA, noise_B, goal_BG, state_BTO)

        return preconditioned(network, self.config.sigma_data)


def _entries(vector: Tensor, spans: list[tuple[int, int]]) -> Tensor:
    return torch.cat([vector[..., start:end] for start, end in spans], dim=-1)


def _check(config: BesoConfig, shapes: Shapes) -> None:
    unknown = [name for name in config.goal_fields if name not in shapes.entries]
    if unknown or not config.goal_fields:
        raise HandoffError(
            f"beso: goal_fields {list(config.goal_fields)}, expected at least one, each among the observed "
            f"{list(shapes.entries)}. Is it missing from observation_fields?"
        )
    stateless = not shapes.entries.keys() - set(config.goal_fields) and not config.sensor_fields
    if config.goal == "field" and stateless:
        raise HandoffError(
            f"beso: all observed fields, {list(shapes.entries)}, are goal fields, so that no state is left."
        )
    if config.goal == "field" and config.memory is not None:
        raise HandoffError(
            "beso: memory would show the goal fields to the network that must not know the goal; it goes with goal "
            "'future' only."
        )
    if not 0.0 <= config.goal_dropout < 1.0 or config.guidance < 0.0:
        raise HandoffError(
            f"beso: goal_dropout {config.goal_dropout} and guidance {config.guidance}, expected goal_dropout "
            "in [0, 1) and guidance of at least 0."
        )
    if config.goal_dropout == 0.0 and config.guidance != 1.0:
        raise HandoffError(
            f"beso: guidance {config.guidance} needs an unconditional network, but goal_dropout is "
            "0. Raise goal_dropout, or set guidance to 1?"
        )
