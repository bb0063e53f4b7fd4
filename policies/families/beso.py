"""BESO: goal-conditioned behaviour by score matching (Reuss et al., RSS 2023, arXiv 2304.02532).

A transformer inside EDM's preconditioner denoises the chunk from sigma_max in a few DDIM steps
along exponentially spaced noise levels; classifier-free guidance tells how strongly the goal
counts. `policies.networks.goal_transformer` says how the paper's interleaved states and actions
become Handoff's observed steps and chunk.

Where paper and released beso differ, or Handoff from both:
- Zeroed goals: the paper drops whole goals, the released code single entries of them. Whole goals
  are dropped here.
- The released sampler clips actions to the range of the data; here to `clip` normalised units,
  since the normaliser keeps mean and deviation.
- The released evaluation of Kitchen samples with Euler-ancestral steps, its training names DDIM.
  Ancestral steps draw noise of their own, so that a chunk would not be a function of observation
  and noise; whoever wants them, as reinforcement learning does, walks `grid(1.0)` with
  `policies.samplers.chain.sample_chain` and `denoise`.

With few steps the least noise level matters: of three levels from 1 to 0.005 the second is 0.07,
where a network has never seen a sample between two modes and leaves it there. From 1 to 0.05, as
released for Block-push, it is 0.22.

Shape suffixes: B batch, T observed steps, O observation, G goal, H horizon, A action.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from policies.card import Shapes
from policies.networks.goal_transformer import GoalTransformer
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
    """Denoises a chunk towards a goal; see `ChunkPolicy`.

    Attributes:
        guidance: weight of the goal, see `BesoConfig.guidance`; may be changed at any time.

    Raises:
        HandoffError: settings that do not fit together.
    """

    usual_goal_O: Tensor

    def __init__(self, config: BesoConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        _check(config, shapes)
        self.config, self.guidance = config, config.guidance
        self.goal_spans = [shapes.entries[name] for name in config.goal_fields]
        seen = (
            shapes.entries
            if config.goal == "future"
            else shapes.entries.keys() - set(config.goal_fields)
        )
        self.state_spans = [span for name, span in shapes.entries.items() if name in seen]
        self.goal_entries, state = (
            sum(end - start for start, end in s) for s in (self.goal_spans, self.state_spans)
        )
        self.network = GoalTransformer(
            self.chunk_shape, (config.n_obs_steps, state), self.goal_entries, config
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
        """Samples in `steps` steps from now on.

        Raises:
            HandoffError: fewer than one, or noise levels that are not 0 < sigma_min < sigma_max.
        """
        self.sigma_K = exponential_sigmas(steps, self.config.sigma_min, self.config.sigma_max)

    @property
    def sampler_steps(self) -> int:
        """See `ChunkPolicy.sampler_steps`."""
        return len(self.sigma_K)

    def grid(self, eta: float) -> EdmGrid:
        """The sampler's steps, on the device of the weights; start at `start` times a standard
        normal chunk.

        Args:
            eta: 0 for DDIM, as `sample` walks it, to 1 for the Euler-ancestral sampler.
        """
        return edm_grid(self.sigma_K, eta).to(self.device)

    def sample(self, observed: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A)."""
        denoise, levels = self.denoise(observed), self.sigma_K.tolist()
        sample_BHA = levels[0] * noise_BHA
        # The steps of `grid(0.0)`, with plain numbers: an exported graph would have to carry its
        # tables.
        for sigma, following in zip(levels, [*levels[1:], 0.0], strict=True):
            sigma_B = torch.full((noise_BHA.shape[0],), sigma, device=noise_BHA.device)
            sample_BHA = torch.lerp(denoise(sample_BHA, sigma_B), sample_BHA, following / sigma)
        return sample_BHA.clamp(-self.config.clip, self.config.clip)

    def denoise(self, observed: ObservationTensors) -> Denoise:
        """The guided denoiser, given an observation: (noisy (B, H, A), sigma (B,)) to clean
        chunk."""
        state_BTO = _entries(observed.vector_BTO, self.state_spans)
        none_BG = state_BTO.new_zeros(state_BTO.shape[0], self.goal_entries)
        return guide(
            self._denoise_towards(self.goal(observed) if self.guidance else none_BG, state_BTO),
            self._denoise_towards(none_BG, state_BTO),
            self.guidance,
        )

    def goal(self, observed: ObservationTensors) -> Tensor:
        """The normalised goal (B, G): of the newest step for a commanded one, else of the state
        told apart.

        Where none is told it is the usual one, where the demonstrations end on average.
        """
        if self.config.goal == "field":
            return _entries(observed.vector_BTO[:, -1], self.goal_spans)
        if observed.goal_BO is None:
            usual_BO = self.usual_goal_O.expand(observed.vector_BTO.shape[0], -1)
            return _entries(usual_BO, self.goal_spans)
        return _entries(observed.goal_BO, self.goal_spans)

    def loss(self, batch: Batch, draw: np.random.Generator) -> Tensor:
        """Mean squared error of F at noise levels from BESO's truncated log-logistic density."""
        config, clean_BHA, device = self.config, batch.chunk_BHA, batch.chunk_BHA.device
        uniform_B = torch.from_numpy(draw.random(len(clean_BHA)))
        sigma_B = training_sigma(
            uniform_B, config.sigma_data, 0.5, config.sigma_min, config.sigma_max
        )
        noise_BHA = torch.from_numpy(
            draw.standard_normal(tuple(clean_BHA.shape), dtype=np.float32)
        ).to(device)
        example = edm_example(clean_BHA, noise_BHA, sigma_B.float().to(device), config.sigma_data)
        state_BTO, goal_BG = (
            _entries(batch.observed.vector_BTO, self.state_spans),
            self.goal(batch.observed),
        )
        if self.training:
            kept_B = torch.from_numpy(draw.random(len(goal_BG)) >= config.goal_dropout).to(device)
            goal_BG = goal_BG * kept_B[:, None]
        drops = self.training and (config.attention_dropout or config.residual_dropout)
        with repeatable_dropout(draw, device) if drops else nullcontext():
            answer_BHA = self.network(example.input_BHA, example.noise_B, goal_BG, state_BTO)
        return mse_loss(answer_BHA.float(), example.target_BHA)

    def _denoise_towards(self, goal_BG: Tensor, state_BTO: Tensor) -> Denoise:
        def network(scaled_BHA: Tensor, noise_B: Tensor) -> Tensor:
            return self.network(scaled_BHA, noise_B, goal_BG, state_BTO)

        return preconditioned(network, self.config.sigma_data)


def _entries(vector: Tensor, spans: list[tuple[int, int]]) -> Tensor:
    return torch.cat([vector[..., start:end] for start, end in spans], dim=-1)


def _check(config: BesoConfig, shapes: Shapes) -> None:
    if config.sensor_fields:
        raise HandoffError(
            f"beso: sensors {list(config.sensor_fields)}, but it sees observation_fields alone."
        )
    unknown = [name for name in config.goal_fields if name not in shapes.entries]
    if unknown or not config.goal_fields:
        raise HandoffError(
            f"beso: goal_fields {list(config.goal_fields)}, expected at least one, each among the observed "
            f"{list(shapes.entries)}. Is it missing from observation_fields?"
        )
    if config.goal == "field" and not shapes.entries.keys() - set(config.goal_fields):
        raise HandoffError(
            f"beso: all observed fields, {list(shapes.entries)}, are the goal, so that no state is left to see."
        )
    if not 0.0 <= config.goal_dropout < 1.0 or config.guidance < 0.0:
        raise HandoffError(
            f"beso: goal_dropout {config.goal_dropout} and guidance {config.guidance}, expected 0 up to below 1, and "
            "at least 0."
        )
    if config.goal_dropout == 0.0 and config.guidance != 1.0:
        raise HandoffError(
            f"beso: guidance {config.guidance} asks for a network that also does without a goal, but goal_dropout is "
            "0. Raise it, or set guidance to 1?"
        )
