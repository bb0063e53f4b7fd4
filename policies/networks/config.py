"""Sizes of the networks inside policies. Imports without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator

from robots.config import config


@config
class MlpConfig:
    """A residual MLP over chunk, observation and noise level, all concatenated: the quickest on one processor core."""

    kind: Literal["mlp"] = "mlp"
    width: int = 512
    """Hidden units of every layer."""
    blocks: int = 4
    """Residual blocks of two layers each."""
    time_embedding: int = 64
    """Entries of the sinusoidal embedding of the noise level; even."""


@config
class UnetConfig:
    """The paper's conditional U-Net over the steps of the chunk; the values are those of its state policies."""

    kind: Literal["unet"] = "unet"
    widths: tuple[int, ...] = (256, 512, 1024)
    """Channels of every level, finest first; the horizon is halved between two levels. Image policies of the paper have
    twice as many."""
    kernel: int = 5
    """Steps that a convolution sees; odd."""
    groups: int = 8
    """Of every GroupNorm; divides all widths."""
    time_embedding: int = 256
    """Entries of the embedding of the noise level; even."""


@config
class TransformerConfig:
    """The paper's transformer: a causal decoder over the chunk that reads noise level and observations."""

    kind: Literal["transformer"] = "transformer"
    layers: int = 8
    """Decoder layers."""
    heads: int = 4
    """Attention heads; divides `width`."""
    width: int = 256
    """Entries of a token, and of the embedding of the noise level; even."""
    dropout: float = 0.01
    """Share that is dropped in attention, feed-forward and residual branches while training."""


NetworkConfig = Annotated[MlpConfig | UnetConfig | TransformerConfig, Discriminator("kind")]
"""The denoiser, told apart by `kind`."""


@config
class ImageEncoderConfig:
    """ResNet-18 with GroupNorm, spatial softmax, random crop: Diffusion Policy's encoder of one camera."""

    channels: tuple[int, ...] = (64, 128, 256, 512)
    """Of the ResNet's stages, two blocks each; multiples of 16. The default is ResNet-18."""
    crop: tuple[int, int] = (84, 84)
    """Height and width that are left of a picture [px]: at random in training, the middle otherwise."""
    keypoints: int = 32
    """Of the spatial softmax."""
    features: int = 64
    """Numbers that a picture becomes."""


@config
class PointEncoderConfig:
    """The small PointNet of 3D Diffusion Policy."""

    widths: tuple[int, ...] = (64, 128, 256)
    """Hidden units of the network that every point passes."""
    features: int = 64
    """Numbers that a cloud becomes."""
