"""ACT, the action chunking transformer (Zhao et al., RSS 2023): a conditional variational
autoencoder over chunks.

Followed is the released act, and LeRobot's ACT, which was made to agree with it;
`policies.networks.act` says where it differs from the paper. The absolute error of padded actions
counts as 0 in a mean over all of them, as released. Other than there, observations are scaled to
[-1, 1], and actions have deviation 1/2 inside, for which the loss makes up, so that `kl_weight`
means what it means there.

When acting, the latent is 0, the mean of its prior. The chunk is then the same whatever the noise:
ACT answers one way where demonstrations go several.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, Z latent.
"""

from __future__ import annotations

from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor

from policies.card import Shapes
from policies.networks.act import ChunkTransformer, LatentEncoder
from policies.policy import Batch, ChunkPolicy, ObservationTensors, repeatable_dropout
from policies.policy_config import ActConfig
from robots.errors import HandoffError

_DEVIATIONS = 2.0
"""Of a normalised action, per deviation: the published weight of the divergence is for actions of
deviation 1."""


class ActPolicy(ChunkPolicy):
    """Answers the chunk at latent 0; see `ChunkPolicy`.

    Raises:
        HandoffError: more than one observed step, nothing observed, or sizes that do not fit
            together.
    """

    def __init__(self, config: ActConfig, shapes: Shapes) -> None:
        super().__init__(config, shapes)
        _check(config, shapes)
        self.config = config
        self.latent_encoder = LatentEncoder(config, shapes)
        self.transformer = ChunkTransformer(config, shapes)

    def sample(self, observed: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A), the same for all noise."""
        # `len` would fix the number of rows in an exported graph.
        latent_BZ = noise_BHA.new_zeros(noise_BHA.shape[0], self.config.latent)
        return self.transformer(latent_BZ, observed.vector_BTO[:, -1], observed.sensors)

    def loss(self, batch: Batch, draw: np.random.Generator) -> Tensor:
        """Mean absolute error of the chunk decoded from its own latent, plus that latent's weighted
        divergence."""
        vector_BO, device = batch.observed.vector_BTO[:, -1], batch.chunk_BHA.device
        noise = draw.standard_normal((len(vector_BO), self.config.latent), dtype=np.float32)
        with (
            repeatable_dropout(draw, device)
            if self.training and self.config.dropout
            else nullcontext()
        ):
            mean_BZ, log_variance_BZ = self.latent_encoder(
                vector_BO, batch.chunk_BHA, batch.padded_BH
            )
            latent_BZ = mean_BZ + (0.5 * log_variance_BZ).exp() * torch.from_numpy(noise).to(device)
            predicted_BHA = self.transformer(latent_BZ, vector_BO, batch.observed.sensors)
        error = _DEVIATIONS * masked_absolute_error(
            predicted_BHA.float(), batch.chunk_BHA, batch.padded_BH
        )
        return error + self.config.kl_weight * gaussian_divergence(mean_BZ, log_variance_BZ).mean()


def masked_absolute_error(predicted_BHA: Tensor, chunk_BHA: Tensor, padded_BH: Tensor) -> Tensor:
    """Mean over all entries, to which padded actions contribute 0."""
    return ((predicted_BHA - chunk_BHA).abs() * ~padded_BH[..., None]).mean()


def gaussian_divergence(mean_BZ: Tensor, log_variance_BZ: Tensor) -> Tensor:
    """Kullback-Leibler divergence (B,) [nat] of independent normal entries from standard normal
    ones.

    Kingma and Welling, ICLR 2014, appendix B.
    """
    return 0.5 * (mean_BZ.square() + log_variance_BZ.exp() - 1.0 - log_variance_BZ).sum(-1)


def _check(config: ActConfig, shapes: Shapes) -> None:
    if config.n_obs_steps != 1:
        raise HandoffError(
            f"act: n_obs_steps is {config.n_obs_steps}, expected 1. ACT sees the newest step only."
        )
    if not shapes.observation and not shapes.sensors:
        raise HandoffError(
            "policy: it observes nothing. Name observation_fields, image_fields or point_fields."
        )
    if config.decoder_layers < 1:
        raise HandoffError(
            f"act: {config.decoder_layers} decoder_layers, expected 1 or more. Whence would actions come?"
        )
    if config.width % config.heads or config.width % 4:
        raise HandoffError(
            f"act: width {config.width} with {config.heads} heads, expected a multiple of the heads and of 4."
        )
