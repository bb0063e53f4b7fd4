"""Options of this package."""

from __future__ import annotations

from typing import Literal

from robots.config import config


@config
class MlpSizes:
    """A plain network: layers of Linear, LayerNorm if wanted, activation."""

    hidden: tuple[int, ...] = (256, 256)
    """Units of every hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """tanh in HIL-SERL [C], relu in RLPD [C]."""
    layer_norm: bool = True
    """LayerNorm before the activation; without it a critic overestimates what the demonstrations do
    not cover (RLPD, arXiv 2302.02948)."""


@config
class EncoderConfig:
    """From pictures to features (SERL, arXiv 2401.16013); used where the data hold pictures."""

    channels: tuple[int, ...] = (32, 64, 128, 256)
    """Channels of the convolutions, each of which halves the image, as in SERL's small encoder
    [C]."""
    embeddings: int = 8
    """Learned weightings of places per channel [C]."""
    picture_width: int = 256
    """Features per camera [C]."""
    vector_width: int = 64
    """Features of the observation vector [C]."""
    shift: int = 4
    """Largest random shift of the pictures in training [pixel] [C]; 0 shifts nothing."""
