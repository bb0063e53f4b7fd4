"""Sizes of the networks from which policies are built: denoisers, encoders of pictures and point
clouds, and vision-language backbones. Imports without torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Discriminator

from robots.config import config


@config
class MlpConfig:
    """A residual MLP over chunk, observation and noise level, all concatenated: the quickest on one
    processor core."""

    kind: Literal["mlp"] = "mlp"
    width: int = 512
    """Hidden units of every layer."""
    blocks: int = 4
    """Residual blocks of two layers each."""
    time_embedding: int = 64
    """Entries of the sinusoidal embedding of the noise level; even."""


@config
class UnetConfig:
    """The paper's conditional U-Net over the steps of the chunk; the values are those of its state
    policies."""

    kind: Literal["unet"] = "unet"
    widths: tuple[int, ...] = (256, 512, 1024)
    """Channels of every level, finest first; the horizon is halved between two levels. Image
    policies of the paper have twice as many."""
    kernel: int = 5
    """Steps that a convolution sees; odd."""
    groups: int = 8
    """Groups of every GroupNorm; must divide all widths."""
    time_embedding: int = 256
    """Entries of the embedding of the noise level; even."""


@config
class TransformerConfig:
    """The paper's transformer: a causal decoder over the chunk that reads noise level and
    observations."""

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
    """ResNet-18 with GroupNorm, spatial softmax, random crop: Diffusion Policy's encoder of one
    camera."""

    channels: tuple[int, ...] = (64, 128, 256, 512)
    """Channels of the ResNet's stages of two blocks each; multiples of 16. The default is
    ResNet-18."""
    crop: tuple[int, int] = (84, 84)
    """Height and width that are left of a picture [px]: at random in training, the middle
    otherwise."""
    keypoints: int = 32
    """Keypoints of the spatial softmax."""
    features: int = 64
    """Numbers that a picture becomes."""


@config
class PointEncoderConfig:
    """The small PointNet of 3D Diffusion Policy."""

    widths: tuple[int, ...] = (64, 128, 256)
    """Hidden units of the network that every point passes."""
    features: int = 64
    """Numbers that a cloud becomes."""


@config
class ScratchConfig:
    """A small backbone that nothing was learned by yet: text layers as those of SmolVLM, and its
    vision tower."""

    sentences: tuple[str, ...] = ()
    """Sentences from which the tokenizer learns its byte pairs; other words cost more tokens.
    Without any a token is a byte."""
    vocabulary: int = 320
    """Most tokens that it learns; at least the 256 bytes and four more."""
    width: int = 128
    """Width of a token; a multiple of twice the number of heads."""
    layers: int = 4
    """Layers of the language model."""
    heads: int = 4
    """Attention heads per layer."""
    feedforward: int = 256
    """Hidden units of every layer."""
    picture: int = 32
    """Edge of the pictures [px], a multiple of 16: a patch is 8 wide, and four of them are a
    token."""
    vision_layers: int = 2
    """Layers of the vision tower, which is as wide; not built for a policy without cameras."""


@config
class BackboneConfig:
    """A vision-language model: pretrained, in a local folder as `save_pretrained` of transformers
    writes one, or a small one from scratch."""

    folder: str | None = None
    """Holds `config.json`, `model.safetensors` (or its shards with their index), `tokenizer.json`
    and, where pictures are not normalised to -1..1, `preprocessor_config.json`. Nothing is ever
    fetched from a hub."""
    scratch: ScratchConfig | None = None
    """Sizes of a backbone trained from scratch, used when no folder is given."""
    layers: int | None = None
    """Text layers that are kept, from the first on; None keeps all. SmolVLA keeps 16 of 32."""
    instruction_tokens: int = 48
    """Longest instruction [tokens]; a longer one is refused."""


@config
class LoraConfig:
    """Low-rank adapters (LoRA, Hu et al., ICLR 2022) in the text layers of a backbone."""

    rank: int = 16
    """Rank of the low-rank factors."""
    alpha: float = 16.0
    """The product of the factors is scaled by alpha / rank."""
    dropout: float = 0.0
    """Share of the adapters' inputs that is dropped while training."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """Names of the linear layers that get an adapter."""
