"""Encodes images for RL learners: SERL's encoder (arXiv 2401.16013), with HIL-SERL's learned
spatial embeddings.

Each camera has a small convolutional network, or a given frozen backbone, followed by eight learned
spatial embeddings, a linear layer, LayerNorm and tanh. The observation vector has a separate linear
layer; all features are concatenated. Images of s and s' are shifted randomly and independently
(DrQ, arXiv 2004.13649).

Critics train the encoder; the actor gets detached features. The released SERL detaches only the
image features from the actor and lets it train the layer of the vector; here both are detached, as
in the paper. As in the code, target critics use a target encoder, and the next action uses the
current encoder. Dropout after the embeddings is off by default and draws from a given generator, so
that an update depends only on the weights and its number. A frozen trunk can run before, once per
picture; the encoder then reads its feature maps.

Shape suffixes: B batch, C channels, H height, W width, E spatial embeddings, F features, O
observation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from policies.augmentation.images import random_shift
from policies.networks.field_modules import FieldModules
from policies.networks.images.image_encoder import SpatialEmbeddings
from policies.rl.networks.config import EncoderConfig
from policies.rl.networks.ensemble import Features
from policies.rl.replay.transitions import Observations, Sizes, Transitions
from robots.errors import HandoffError


class Encoder(Features):
    """Encoder of the observation vector and the images.

    Args:
        config: layers.
        sizes: sizes of the observations, with pictures or feature maps.
        backbones: frozen backbone per camera, a module from (B, 3, H, W) in [0, 1] to (B, C, h, w);
            a camera without one gets convolutions that are trained.

    Raises:
        HandoffError: a backbone has no camera, or images are too small for the convolutions.
    """

    def __init__(
        self, config: EncoderConfig, sizes: Sizes, backbones: Mapping[str, nn.Module] | None = None
    ) -> None:
        super().__init__(sizes)
        cameras = [camera[0] for camera in (*sizes.pictures, *sizes.maps)]
        unknown = sorted(set(backbones or {}) - set(cameras))
        if unknown:
            raise HandoffError(
                f"encoder: backbones for {unknown}, but the cameras are {cameras}. Is a camera name misspelt?"
            )
        self.reduce_vector = _reduction(self.size, config.vector_width)
        self.pictures = FieldModules(
            {
                name: SerlImageEncoder(config, name, height, width, (backbones or {}).get(name))
                for name, height, width in sizes.pictures
            }
            | {name: MapEncoder(config, *shape) for name, *shape in sizes.maps}
        )
        self.size = config.vector_width + len(cameras) * config.picture_width

    def forward(
        self,
        vector_BO: Tensor,
        pictures: Mapping[str, Tensor] | None = None,
        dropout: torch.Generator | None = None,
    ) -> Tensor:
        """(B, F) features: those of the cameras in order, then those of the vector.

        Args:
            vector_BO: observation vectors in physical units.
            pictures: images per camera, (B, H, W, 3) uint8 RGB, or their feature maps.
            dropout: source of the dropout; None drops nothing.

        Raises:
            HandoffError: the images of a camera are missing.
        """
        pictures = pictures or {}
        missing = sorted(set(self.pictures) - set(pictures))
        if missing:
            raise HandoffError(
                f"encoder: no images of {missing}, only of {sorted(pictures)}. Is a camera off, or was the "
                "learner called "
                "with vectors only?"
            )
        features = [encoder(pictures[name], dropout) for name, encoder in self.pictures.items()]
        return torch.cat([*features, self.reduce_vector(super().forward(vector_BO))], dim=1)


def encode_observations(
    features: Features, obs: Observations, dropout: torch.Generator | None = None
) -> Tensor:
    """(B, F) features of the observations; an `Encoder` includes the images, with dropout if a
    generator for it is given."""
    if isinstance(features, Encoder):
        return features(obs.vector_BO, obs.pictures, dropout)
    return features(obs.vector_BO)


class MapEncoder(nn.Module):
    """Encoder of the feature maps of one camera.

    Args:
        config: layers.
        channels: channels of a map.
        rows: rows of a map.
        columns: columns of a map.
    """

    def __init__(self, config: EncoderConfig, channels: int, rows: int, columns: int) -> None:
        super().__init__()
        self.embeddings = SpatialEmbeddings(config.embeddings, channels, rows, columns)
        self.reduce = _reduction(config.embeddings * channels, config.picture_width)
        self.dropout = config.dropout

    def forward(self, picture: Tensor, dropout: torch.Generator | None = None) -> Tensor:
        """Maps feature maps (B, C, H, W) of any floating-point type to features (B, F)."""
        sums_BD = self.embeddings(picture.to(self.embeddings.place_ECHW.dtype))
        if dropout is not None and self.dropout > 0.0:
            keep = 1.0 - self.dropout
            uniform_BD = torch.rand(sums_BD.shape, generator=dropout, device=dropout.device)
            sums_BD = sums_BD * (uniform_BD.to(sums_BD.device) < keep) / keep
        return self.reduce(sums_BD)


class SerlImageEncoder(MapEncoder):
    """Encoder of the images of one camera."""

    def __init__(
        self,
        config: EncoderConfig,
        name: str,
        height: int,
        width: int,
        backbone: nn.Module | None = None,
    ) -> None:
        layers = (
            _convolutions(config.channels, name, height, width)
            if backbone is None
            else backbone.requires_grad_(False).eval()
        )
        with torch.no_grad():
            map_1CHW = layers(torch.zeros(1, 3, height, width))
        super().__init__(config, *map_1CHW.shape[1:])
        self.frozen = backbone is not None
        self.backbone = layers

    def train(self, mode: bool = True) -> SerlImageEncoder:
        """Sets training or evaluation mode; a frozen backbone stays in evaluation mode, so that its
        batch statistics do not change."""
        super().train(mode)
        if self.frozen:
            self.backbone.eval()
        return self

    def forward(self, picture: Tensor, dropout: torch.Generator | None = None) -> Tensor:
        """Maps uint8 RGB images (B, H, W, 3) to features (B, F)."""
        picture_BCHW = picture.permute(0, 3, 1, 2).to(self.embeddings.place_ECHW.dtype) / 255.0
        if self.frozen:
            with torch.no_grad():
                map_BCHW = self.backbone(picture_BCHW)
        else:
            map_BCHW = self.backbone(picture_BCHW)
        return super().forward(map_BCHW, dropout)


def shifted_observations(obs: Observations, pad: int, generator: torch.Generator) -> Observations:
    """Observations with randomly shifted images, one offset per row for all cameras [C]; feature
    maps stay as they are."""
    if pad == 0 or not any(picture.dtype == torch.uint8 for picture in obs.pictures.values()):
        return obs
    offset_2B = torch.randint(2 * pad + 1, (2, len(obs.vector_BO)), generator=generator)
    device = obs.vector_BO.device
    pictures = {
        name: random_shift(picture, offset_2B.to(device), pad)
        for name, picture in obs.pictures.items()
    }
    return obs._replace(pictures=pictures)


def augmented(batch: Transitions, pad: int, generator: torch.Generator) -> Transitions:
    """Minibatch with the images of s and s' shifted independently."""
    if not batch.obs.pictures:
        return batch
    obs, next_obs = (
        shifted_observations(batch.obs, pad, generator),
        shifted_observations(batch.next_obs, pad, generator),
    )
    return batch._replace(obs=obs, next_obs=next_obs)


def in_single_precision(batch: Transitions) -> Transitions:
    """Minibatch with its feature maps in float32; images stay as they are."""

    def converted(obs: Observations) -> Observations:
        pictures = {
            name: picture.float() if picture.dtype == torch.float16 else picture
            for name, picture in obs.pictures.items()
        }
        return obs._replace(pictures=pictures)

    return batch._replace(obs=converted(batch.obs), next_obs=converted(batch.next_obs))


def _convolutions(channels: tuple[int, ...], name: str, height: int, width: int) -> nn.Sequential:
    """SERL's small encoder: 3 x 3 convolutions with stride 2 and no padding, each with ReLU [C]."""
    smallest = 2 ** (len(channels) + 1) - 1
    if min(height, width) < smallest:
        raise HandoffError(
            f"encoder: images of camera {name} have {height} x {width} pixels; {len(channels)} convolutions "
            "with stride "
            f"2 need at least {smallest} x {smallest}. Use larger images or fewer convolutions."
        )
    layers: list[nn.Module] = []
    for size_in, size_out in zip((3, *channels[:-1]), channels, strict=True):
        layers += [nn.Conv2d(size_in, size_out, 3, stride=2), nn.ReLU()]
    return nn.Sequential(*layers)


def _reduction(size: int, width: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(size, width), nn.LayerNorm(width, eps=1e-6), nn.Tanh())
