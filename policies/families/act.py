"""ACT, the action chunking transformer (Zhao et al., RSS 2023): a conditional variational
autoencoder over chunks.

This follows the released act code and LeRobot's ACT, which was written to match it;
`policies.networks.act` lists the differences from the paper. The absolute error of padded actions
counts as 0 in the mean over all actions, as released. Unlike there, observations are scaled to
[-1, 1] and normalised actions have standard deviation 1/2; the loss compensates, so that
`kl_weight` has the same meaning.

At inference the latent is 0, the mean of its prior, so the chunk does not depend on the noise: ACT
predicts a single mode where demonstrations have several.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, Z latent.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from policies.card import Shapes
from policies.language.sentence_encoder import SentenceEncoder
from policies.networks.act import ChunkTransformer, LatentEncoder
from policies.policy import Batch, ChunkPolicy, ObservationTensors, repeatable_dropout
from policies.policy_config import ActConfig
from robots.errors import HandoffError

_DEVIATIONS = 2.0
"""Factor from normalised actions (standard deviation 1/2) to those of the published loss (1)."""


class ActPolicy(ChunkPolicy):
    """ACT, decoded from latent 0 at inference; see `ChunkPolicy`.

    Raises:
        HandoffError: more than one observation step without a memory, no inputs, or incompatible
            sizes.
    """

    def __init__(
        self, config: ActConfig, shapes: Shapes, sentences: SentenceEncoder | None = None
    ) -> None:
        super().__init__(config, shapes)
        _check(config, shapes)
        self.config = config
        self.latent_encoder = LatentEncoder(config, shapes)
        self.transformer = ChunkTransformer(config, shapes, sentences)

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A); the noise is ignored."""
        # `len` would make the batch size a constant of an exported graph.
        latent_BZ = noise_BHA.new_zeros(noise_BHA.shape[0], self.config.latent)
        return self.transformer(latent_BZ, obs)

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Mean absolute error of the chunk decoded from its encoded latent, plus the weighted KL
        divergence of the latent."""
        vector_BO, device = batch.obs.vector_BTO[:, -1], batch.chunk_BHA.device
        noise = generator.standard_normal((len(vector_BO), self.config.latent), dtype=np.float32)
        with (
            repeatable_dropout(generator, device)
            if self.training and self.config.dropout
            else nullcontext()
        ):
            mean_BZ, log_variance_BZ = self.latent_encoder(
                vector_BO, batch.chunk_BHA, batch.padded_BH
            )
            latent_BZ = mean_BZ + (0.5 * log_variance_BZ).exp() * torch.from_numpy(noise).to(device)
            predicted_BHA = self.transformer(
                latent_BZ, batch.obs, generator if self.training else None
            )
        error = _DEVIATIONS * masked_absolute_error(
            predicted_BHA.float(), batch.chunk_BHA, batch.padded_BH
        )
        return error + self.config.kl_weight * gaussian_divergence(mean_BZ, log_variance_BZ).mean()


def masked_absolute_error(predicted_BHA: Tensor, chunk_BHA: Tensor, padded_BH: Tensor) -> Tensor:
    """Mean absolute error over all entries, with padded actions counted as 0."""
    return ((predicted_BHA - chunk_BHA).abs() * ~padded_BH[..., None]).mean()


def gaussian_divergence(mean_BZ: Tensor, log_variance_BZ: Tensor) -> Tensor:
    """KL divergence (B,) [nat] of a diagonal Gaussian from the standard normal.

    Kingma and Welling, ICLR 2014, appendix B.
    """
    return 0.5 * (mean_BZ.square() + log_variance_BZ.exp() - 1.0 - log_variance_BZ).sum(-1)


def _check(config: ActConfig, shapes: Shapes) -> None:
    if config.n_obs_steps != 1 and config.memory is None:
        raise HandoffError(
            f"act: n_obs_steps is {config.n_obs_steps}, expected 1. ACT observes the newest step only; with "
            "policy.memory.kind it remembers the observation vectors of several."
        )
    if config.memory is not None and not shapes.observation:
        raise HandoffError(
            "act: memory is set, but observation_fields is empty. ACT remembers observation vectors, not pictures."
        )
    if not shapes.observation and not shapes.sensors:
        raise HandoffError(
            "policy: it has no inputs. Set observation_fields, image_fields or point_fields."
        )
    if config.decoder_layers < 1:
        raise HandoffError(f"act: {config.decoder_layers} decoder_layers, expected 1 or more.")
