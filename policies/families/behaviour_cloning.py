"""Behaviour cloning with a Gaussian mixture or by regression (Mandlekar et al., CoRL 2021).

This follows the released robomimic (`BC_GMM`: 5 modes, softplus, two layers of 1024) and its
low-noise evaluation, with these differences: one mixture over the whole chunk instead of one per
action, because sampling a mode per action would switch between modes within a chunk; means without
tanh, because normalised actions are not bounded by 1; and at inference the exact mean of a mode,
where robomimic adds noise of standard deviation 1e-4. The validation loss uses the learned standard
deviations, robomimic's the low ones. Padded actions are part of the loss.

The policy is a pure function of its noise: the mode is sampled by inverse transform of the first
entry of the chunk's noise. The other entries are not used, and regression uses none.

Shape suffixes: B batch, T observed steps, O observation, H horizon, A action, M modes, D = H * A
entries of a chunk.
"""

from __future__ import annotations

import math
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import l1_loss, mse_loss, softplus

from policies.card import Shapes
from policies.language.sentence_encoder import SentenceEncoder
from policies.networks.images.image_model import ImageModel
from policies.networks.observation_encoder import ObservationEncoder
from policies.policy import Batch, ChunkPolicy, ObservationTensors
from policies.policy_config import BehaviourCloningConfig
from robots.errors import HandoffError

_RAREST = 1e-6
"""Probability at which the uniform number that selects a mode is clipped at either end."""


class GaussianMixture(NamedTuple):
    """Gaussians with independent entries, in float32."""

    mean_BMD: Tensor
    deviation_BMD: Tensor
    log_weight_BM: Tensor
    """Logarithms of weights that sum to 1."""

    def log_likelihood(self, chunk_BD: Tensor) -> Tensor:
        """Log-likelihood (B,) [nat] of chunks."""
        distance_BMD = (chunk_BD[:, None] - self.mean_BMD) / self.deviation_BMD
        entry_BMD = (
            -0.5 * distance_BMD.square() - self.deviation_BMD.log() - 0.5 * math.log(2 * math.pi)
        )
        return torch.logsumexp(self.log_weight_BM + entry_BMD.sum(-1), dim=-1)


class BehaviourCloningPolicy(ChunkPolicy):
    """An MLP from the observation to a chunk or to a mixture over chunks; see `ChunkPolicy`.

    Raises:
        HandoffError: no inputs, fewer than one mode, or a bound on the standard deviations that is
            not positive.
    """

    def __init__(
        self,
        config: BehaviourCloningConfig,
        shapes: Shapes,
        sentences: SentenceEncoder | None = None,
        image_model: ImageModel | None = None,
    ) -> None:
        super().__init__(config, shapes)
        if config.modes < 1 or config.min_deviation <= 0:
            raise HandoffError(
                f"behaviour cloning: {config.modes} modes and min_deviation {config.min_deviation:g}, expected 1 "
                "or more modes and min_deviation above 0."
            )
        self.config = config
        self.encoder = ObservationEncoder(config, shapes, sentences, image_model)
        inputs = self.encoder.steps * self.encoder.outputs
        if not inputs:
            raise HandoffError(
                "policy: it has no inputs. Set observation_fields, image_fields or point_fields."
            )
        entries = math.prod(self.chunk_shape)
        outputs = config.modes * (2 * entries + 1) if config.head == "gmm" else entries
        layers: list[nn.Module] = []
        for size, next_size in pairwise((inputs, *config.hidden)):
            layers += [nn.Linear(size, next_size), nn.ReLU()]
        self.network = nn.Sequential(*layers, nn.Linear((inputs, *config.hidden)[-1], outputs))

    @property
    def encoded_shape(self) -> tuple[int, int]:
        """See `ChunkPolicy.encoded_shape`."""
        steps, entries = self.observation_shape
        return steps, entries + self.encoder.features

    def encode(self, obs: ObservationTensors) -> Tensor:
        """See `ChunkPolicy.encode`."""
        return self.encoder.encode_sensors(obs)

    def sample(self, obs: ObservationTensors, noise_BHA: Tensor) -> Tensor:
        """Normalised observation to normalised chunk (B, H, A); the noise selects the mode."""
        output_BX = self.network(self.encoder(obs).flatten(1))
        if self.config.head != "gmm":
            return output_BX.unflatten(1, self.chunk_shape)
        mixture = self._mixture(output_BX)
        mode_B = sample_mode(mixture.log_weight_BM, noise_BHA[:, 0, 0])
        index_B1D = mode_B[:, None, None].expand(-1, 1, math.prod(self.chunk_shape))
        return mixture.mean_BMD.gather(1, index_B1D)[:, 0].unflatten(1, self.chunk_shape)

    def loss(self, batch: Batch, generator: np.random.Generator) -> Tensor:
        """Mean negative log-likelihood of chunks [nat], or mean squared or absolute error of their
        entries."""
        condition_BTO = self.encoder(batch.obs, generator if self.training else None)
        output_BX = self.network(condition_BTO.flatten(1))
        chunk_BD = batch.chunk_BHA.flatten(1)
        if self.config.head == "mse":
            return mse_loss(output_BX.float(), chunk_BD)
        if self.config.head == "l1":
            return l1_loss(output_BX.float(), chunk_BD)
        # Autocast would sum log-likelihoods of hundreds of nats with three digits of precision.
        with torch.autocast(output_BX.device.type, enabled=False):
            return -self._mixture(output_BX).log_likelihood(chunk_BD).mean()

    def mixture(self, obs: ObservationTensors) -> GaussianMixture:
        """The predicted mixture over normalised chunks.

        Raises:
            HandoffError: the policy has a regression head.
        """
        if self.config.head != "gmm":
            raise HandoffError(
                f"behaviour cloning: the head is '{self.config.head}', expected 'gmm' for a mixture."
            )
        return self._mixture(self.network(self.encoder(obs).flatten(1)))

    def _mixture(self, output_BX: Tensor) -> GaussianMixture:
        modes, entries = self.config.modes, math.prod(self.chunk_shape)
        sizes = (modes * entries, modes * entries, modes)
        mean_BX, raw_BX, logit_BM = output_BX.float().split(sizes, dim=-1)
        deviation_BMD = softplus(raw_BX.unflatten(1, (modes, entries))) + self.config.min_deviation
        return GaussianMixture(
            mean_BX.unflatten(1, (modes, entries)), deviation_BMD, logit_BM.log_softmax(-1)
        )


def sample_mode(log_weight_BM: Tensor, noise_B: Tensor) -> Tensor:
    """Modes (B,) int64, sampled in proportion to their weights by inverse transform of the noise.

    Args:
        log_weight_BM: logarithms of weights that sum to 1.
        noise_B: one standard normal number per row.
    """
    # In float32 the distribution function reaches 0 and 1, which could select a mode of weight 0.
    uniform_B = (0.5 * (1.0 + torch.erf(noise_B * math.sqrt(0.5)))).clamp(_RAREST, 1.0 - _RAREST)
    below_BM = log_weight_BM.exp().cumsum(-1)[:, :-1]
    return (uniform_B[:, None] >= below_BM).sum(-1)
