"""Options of MLPs and image encoders. Imports no torch.

Every default names its source: [C] is the released code of the method.
"""

from __future__ import annotations

from typing import Literal

from robots.config import Count, ShareBelowOne, Whole, config


@config
class MlpSizes:
    """Multi-layer perceptron: layers of Linear, optional LayerNorm, activation."""

    hidden: tuple[Count, ...] = (256, 256)
    """Units of each hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation of the hidden layers: tanh in HIL-SERL [C], relu in RLPD [C]."""
    layer_norm: bool = True
    """Whether LayerNorm precedes each activation; without it critics overestimate actions outside
    the demonstrations (RLPD, arXiv 2302.02948)."""


@config
class EncoderConfig:
    """Image encoder (SERL, arXiv 2401.16013); used if the observations contain images."""

    channels: tuple[Count, ...] = (32, 64, 128, 256)
    """Channels of the convolutions, each with stride 2, as in SERL's small encoder [C]."""
    embeddings: Count = 8
    """Learned spatial embeddings per channel [C]."""
    picture_width: Count = 256
    """Features per camera [C]."""
    vector_width: Count = 64
    """Features of the observation vector [C]."""
    dropout: ShareBelowOne = 0.0
    """Dropout rate of the embeddings in the losses of the critics; 0.1 in SERL [C]."""
    shift: Whole = 4
    """Largest random shift of the images in training [pixel] [C]; 0 disables the augmentation.
    Feature maps of a frozen trunk are not shifted."""
