"""The diffusion policy: encoders, denoiser and sampler between the normalisers of `ChunkPolicy`.

With `objective: flow` the same networks learn flow matching (Lipman et al. 2023) at the K times
1/K, 2/K .. 1; the network is conditioned on the index of the time, as on the timestep of a
diffusion. A student of `policies.distillation.shortcut` is conditioned on the length of the
sampler's step as well.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, K noise levels.
"""

from __future__ import annotations

from contextlib import nullcontext
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss

from policies.card import Shapes
from policies.language.sentence_encoder import SentenceEncoder
from policies.networks.config import (
    MlpConfig,
    NetworkConfig,
    TransformerConfig,
    UnetConfig,
)
from policies.networks.decided_actions import (
    DecidedActions,
    decided_places,
    draw_decided,
    none_decided,
    undecided_error,
)
from policies.networks.images.image_model import ImageModel
from policies.networks.mlp import MlpDenoiser, StepLengthEmbedding
from policies.networks.observation_encoder import ObservationEncoder
from policies.networks.transformer import TransformerDenoiser
from policies.networks.unet import UnetDenoiser
from policies.policy import (
    Batch,
    DenoisingPolicy,
    EncodedSampler,
    ObservationTensors,
    repeatable_dropout,
)
from policies.policy_config import DiffusionPolicyConfig
from policies.samplers.chain import Denoise, Grid
from policies.samplers.chunk_actor import ChunkRefiner, PolicyFeatures
from policies.samplers.ddim import (
    NoiseSchedule,
    cosine_schedule,
    ddim_grid,
    ddim_sample,
    ddim_steps,
)
from policies.samplers.flow_matching import flow_example, sde_grid
from policies.samplers.noise_actor import NoiseActor
from robots.errors import HandoffError


class StepDenoise(Protocol):
    """A `Denoise` that may be given the length of the sampler's step."""

    def __call__(
        self, noisy_BHA: Tensor, timestep_B: Tensor, length_B: Tensor | None = None, /
    ) -> Tensor:
        """The velocity (B, H, A); timesteps and lengths are (B,) int64."""
        ...


class DiffusionPolicy(DenoisingPolicy):
    """Denoises a chunk conditioned on the observation; see `ChunkPolicy`.

    Args:
        config: configuration of the family.
        shapes: sizes given by the data.
        sentences: sentence encoder of a policy with `language`.
        image_model: see `ObservationEncoder`.
    """

    alpha_K: Tensor
    sigma_K: Tensor

    def __init__(
        self,
        config: DiffusionPolicyConfig,
        shapes: Shapes,
        sentences: SentenceEncoder | None = None,
        image_model: ImageModel | None = None,
    ) -> None:
        super().__init__(config, shapes)
        self.config = config
        self.encoder = ObservationEncoder(config, shapes, sentences, image_model)
        self.places = decided_places(config.n_obs_steps - 1, config.prefix)
        decided = config.prefix * (shapes.action + 1)
        self.denoiser = new_denoiser(
            config.network,
            self.chunk_shape,
            (self.encoder.steps, self.encoder.outputs + decided),
            config.train_timesteps,
        )
        self.step_length = (
            StepLengthEmbedding(config.train_timesteps, config.network.time_features)
            if config.step_conditioned
            else None
        )
        self.noise_actor = None if config.noise_actor is None else NoiseActor(config.noise_actor)
        self.chunk_actor = None if config.chunk_actor is None else ChunkRefiner(config.chunk_actor)
        schedule = cosine_schedule(config.train_timesteps)
        self.register_buffer("alpha_K", schedule.alpha_K, persistent=False)
        self.register_buffer("sigma_K", schedule.sigma_K, persistent=False)
        self.set_sampler_steps(config.inference_steps)

    def set_sampler_steps(self, steps: int) -> None:
        """Sets the number of sampler steps.

        Raises:
            HandoffError: `steps` does not divide the number of training timesteps.
        """
        self.steps = ddim_steps(self.config.train_timesteps, steps)

    @property
    def sampler_steps(self) -> int:
        """See `ChunkPolicy.sampler_steps`."""
        return len(self.steps)

    @property
    def repeated_modules(self) -> tuple[nn.Module, ...]:
        """See `ChunkPolicy.repeated_modules`."""
        return (self.denoiser,) if len(self.steps) > 1 else ()

    def chain_grid(
        self, steps: int | None, *, eta: float, flow_noise: float, renoise: bool = False
    ) -> Grid:
        """See `DenoisingPolicy.chain_grid`."""
        config, count = self.config, steps or len(self.steps)
        if config.objective == "flow":
            return sde_grid(count, flow_noise)
        return ddim_grid(config.train_timesteps, count, eta, config.clip, renoise=renoise)

    @property
    def encoded_shape(self) -> tuple[int, int]:
        """See `ChunkPolicy.encoded_shape`."""
        steps, entries = self.observation_shape
        return steps, entries + self.encoder.features

    def encode(self, obs: ObservationTensors) -> Tensor:
        """See `ChunkPolicy.encode`."""
        return self.encoder.encode_sensors(obs)

    def encoded_sampler(self, obs: ObservationTensors) -> EncodedSampler:
        """See `DenoisingPolicy.encoded_sampler`; the features are the encoded observation, as the
        denoiser is conditioned on it, and every observed step of it is a token."""
        encoded_BTO = self.encoder(obs)
        denoise = self._conditioned(encoded_BTO, obs.decided)

        def tokens() -> PolicyFeatures:
            mask_BT = torch.ones_like(encoded_BTO[..., 0], dtype=torch.bool)
            return PolicyFeatures(encoded_BTO.flatten(1), encoded_BTO, mask_BT)

        return EncodedSampler(
            lambda: encoded_BTO.flatten(1),
            tokens,
            lambda noise_BHA: self._denoised(denoise, noise_BHA),
        )

    def _denoised(self, denoise: StepDenoise, noise_BHA: Tensor) -> Tensor:
        if self.config.objective == "diffusion":
            return ddim_sample(denoise, noise_BHA, self.steps, self.config.clip)
        sample_BHA, count = noise_BHA, len(self.steps)
        for number in range(count):
            # `len` would be a constant in an exported graph, the size of the example's batch.
            rows = (noise_BHA.shape[0],)
            start, end = (self._time_index(1.0 - (number + i) / count) for i in (0, 1))
            timestep_B = torch.full(rows, start - 1, device=noise_BHA.device)
            length_B = torch.full(rows, start - end, device=noise_BHA.device)
            sample_BHA = sample_BHA - denoise(sample_BHA, timestep_B, length_B) / count
        return self.clip_chunk(sample_BHA)

    def clip_chunk(self, chunk_BHA: Tensor) -> Tensor:
        """See `DenoisingPolicy.clip_chunk`."""
        return chunk_BHA.clamp(-self.config.clip, self.config.clip)

    def velocity(self, obs: ObservationTensors) -> Denoise:
        """See `DenoisingPolicy.velocity`."""
        denoise = self.conditioned(obs)
        if self.config.objective != "flow":
            return denoise
        timesteps = self.config.train_timesteps
        # The grid of a flow uses times, its network the indices of times.
        return lambda noisy_BHA, time_B: denoise(noisy_BHA, (time_B * timesteps).round().long() - 1)

    def shared_settings(self) -> dict[str, object]:
        """See `ChunkPolicy.shared_settings`."""
        return {"objective": self.config.objective}

    def conditioned(self, obs: ObservationTensors) -> StepDenoise:
        """The denoiser, conditioned on an observation and, where the policy takes them, on decided
        actions, which take their places in every noisy chunk."""
        return self._conditioned(self.encoder(obs), obs.decided)

    def _conditioned(self, condition_BTO: Tensor, decided: DecidedActions | None) -> StepDenoise:
        if not self.config.prefix:
            return self.denoise(condition_BTO)
        if decided is None:
            rows = condition_BTO.shape[0]
            decided = none_decided(condition_BTO.new_zeros(rows, *self.chunk_shape))
        denoise = self.denoise(decided.beside(condition_BTO, self.places))
        return lambda noisy_BHA, timestep_B, length_B=None: denoise(
            decided.imposed(noisy_BHA), timestep_B, length_B
        )

    def denoise(self, condition_BTO: Tensor) -> StepDenoise:
        """The denoiser, conditioned on an encoded observation: (noisy (B, H, A), timestep (B,)) to
        velocity.

        The length of the sampler's step (B,), in training timesteps, may follow; a network that is
        not conditioned on it ignores it, and 0, the default, asks for the instantaneous velocity.
        """

        def denoise(
            noisy_BHA: Tensor, timestep_B: Tensor, length_B: Tensor | None = None
        ) -> Tensor:
            if self.step_length is None or length_B is None:
                return self.denoiser(noisy_BHA, timestep_B, condition_BTO)
            return self.denoiser(noisy_BHA, timestep_B, condition_BTO, self.step_length(length_B))

        return denoise

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Mean squared error of the predicted velocity at uniformly drawn timesteps; decided
        actions have none."""
        draws = self.config.noise_draws
        clean_BHA, device = batch.chunk_BHA.repeat_interleave(draws, dim=0), batch.chunk_BHA.device
        timestep_B = torch.from_numpy(
            generator.integers(0, self.config.train_timesteps, len(clean_BHA))
        ).to(device)
        noise_BHA = torch.from_numpy(
            generator.standard_normal(tuple(clean_BHA.shape), dtype=np.float32)
        ).to(device)
        if self.config.objective == "diffusion":
            schedule = NoiseSchedule(self.alpha_K, self.sigma_K)
            noisy_BHA, velocity_BHA = schedule.diffuse(clean_BHA, noise_BHA, timestep_B)
        else:
            time_B = (timestep_B + 1.0) / self.config.train_timesteps
            noisy_BHA, velocity_BHA = flow_example(clean_BHA, noise_BHA, time_B)
        decided = None
        if self.config.prefix:
            shown_BHA = batch.chunk_BHA if batch.executed_BHA is None else batch.executed_BHA
            decided = draw_decided(shown_BHA, self.places, generator).repeated(draws)
            noisy_BHA = decided.imposed(noisy_BHA)
        drops = self.training and isinstance(self.config.network, TransformerConfig)
        with repeatable_dropout(generator, device) if drops else nullcontext():
            condition_BTO = self.encoder(batch.obs, generator if self.training else None)
            condition_BTO = condition_BTO.repeat_interleave(draws, dim=0)
            if decided is not None:
                condition_BTO = decided.beside(condition_BTO, self.places)
            predicted_BHA = self.denoiser(noisy_BHA, timestep_B, condition_BTO)
        if decided is None:
            return mse_loss(predicted_BHA.float(), velocity_BHA)
        return undecided_error(predicted_BHA.float(), velocity_BHA, decided)

    def _time_index(self, time: float) -> int:
        """Time in training timesteps: 0 is the clean chunk, `train_timesteps` pure noise."""
        return round(time * self.config.train_timesteps)


def new_denoiser(
    network: NetworkConfig, chunk: tuple[int, int], observation: tuple[int, int], timesteps: int
) -> nn.Module:
    """An untrained denoiser: noisy chunk (B, H, A), timestep (B,), observation (B, T, O) to
    velocity (B, H, A).

    Args:
        network: type and sizes of the network.
        chunk: (H, A).
        observation: (T, O).
        timesteps: number of noise levels.

    Raises:
        HandoffError: incompatible sizes.
    """
    if not observation[1]:
        raise HandoffError(
            "policy: it has no inputs. Set observation_fields, image_fields or point_fields."
        )
    match network:
        case MlpConfig():
            return MlpDenoiser(
                chunk, observation, timesteps, network.width, network.blocks, network.time_embedding
            )
        case UnetConfig():
            return UnetDenoiser(chunk, observation, timesteps, network)
        case TransformerConfig():
            return TransformerDenoiser(chunk, observation, timesteps, network)
