"""Options of the networks of policies: denoisers, image and point-cloud encoders, and
vision-language backbones. Imports no torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field

from policies.augmentation.config import ImageAugmentationConfig
from robots.config import (
    Count,
    DefaultKind,
    Pixels,
    Positive,
    PositiveShare,
    ShareBelowOne,
    Whole,
    config,
)
from robots.errors import HandoffError
from robots.wire.actor_card import ActorCard, MlpCard

ChannelGroups = Annotated[Count, Field(multiple_of=16)]
"""Channels of an image encoder, whose GroupNorm has groups of 16."""


@config
class MlpConfig:
    """A residual MLP over the concatenated chunk, observation and timestep embedding: the fastest
    denoiser on one CPU core."""

    kind: Literal["mlp"] = "mlp"
    width: Count = 512
    """Hidden units of every layer."""
    blocks: Count = 4
    """Residual blocks of two layers each."""
    time_embedding: Count = 64
    """Size of the sinusoidal timestep embedding; even."""

    @property
    def time_features(self) -> int:
        """Size of the timestep embedding."""
        return self.time_embedding


@config
class UnetConfig:
    """Diffusion Policy's conditional U-Net over the steps of the chunk; the defaults are those of
    its state policies."""

    kind: Literal["unet"] = "unet"
    widths: tuple[Count, ...] = (256, 512, 1024)
    """Channels of every level, finest first; the horizon is halved between levels. The paper's
    image policies use twice as many channels."""
    kernel: Count = 5
    """Kernel size of the convolutions [steps]; odd."""
    groups: Count = 8
    """Number of groups of every GroupNorm; must divide all widths."""
    time_embedding: Count = 256
    """Size of the timestep embedding; even."""

    @property
    def time_features(self) -> int:
        """Size of the timestep embedding."""
        return self.time_embedding


@config
class TransformerConfig:
    """Diffusion Policy's transformer: a causal decoder over the chunk with cross-attention to
    timestep and observations."""

    kind: Literal["transformer"] = "transformer"
    layers: Count = 8
    """Number of decoder layers."""
    heads: Count = 4
    """Number of attention heads; must divide `width`."""
    width: Count = 256
    """Width of the tokens and of the timestep embedding; even."""
    dropout: ShareBelowOne = 0.01
    """Dropout rate of attention, feed-forward and residual branches."""

    @property
    def time_features(self) -> int:
        """Size of the timestep embedding."""
        return self.width


NetworkConfig = Annotated[MlpConfig | UnetConfig | TransformerConfig, Discriminator("kind")]
"""Union of the denoisers' options, discriminated by `kind`."""


@config
class PicturePartConfig:
    """Part of a camera's pictures that an image encoder sees: large pictures are resized, then
    cropped."""

    default_crop_ratio: ClassVar[float] = 0.875
    """Fraction of height and width that a crop takes, unless it is given: published is 84 of 96 px
    for push-T."""
    default_shorter_side: ClassVar[int | None] = 96
    """Shorter side of resized pictures unless it or a size of the crop is given [px]: that of
    push-T's pictures, which are not resized. None keeps the recorded size."""

    resize: Pixels | None = None
    """Shorter side to which larger images are resized before the crop, with their aspect ratio
    [px]; smaller images keep their size. None takes 96 px, and resizes nothing if `crop` is set or
    the kind is `folder`."""
    crop_ratio: PositiveShare | None = None
    """Height and width of the crop as a fraction of those of the resized image: random in training,
    centred otherwise. None takes 0.875, which is 84 of 96 px, unless `crop` is set; a frozen trunk
    then sees the whole image."""
    crop: tuple[Pixels, Pixels] | None = None
    """Height and width of the crop [px], in place of `crop_ratio`; the same for all cameras."""

    def __post_init__(self) -> None:
        if self.crop is not None and self.crop_ratio is not None:
            raise HandoffError(
                f"image_encoder: crop is {list(self.crop)} and crop_ratio {self.crop_ratio:g}, expected one of them. "
                "crop is a size [px], crop_ratio a fraction of the image."
            )


@config
class TrainedEncoderConfig(PicturePartConfig):
    """Options of the image encoders that are trained with their policy: a network of feature maps,
    spatial softmax, random crop."""

    keypoints: Count = 32
    """Number of keypoints of the spatial softmax."""
    features: Count = 64
    """Size of the feature vector of an image."""
    augmentation: ImageAugmentationConfig = ImageAugmentationConfig()
    """Random changes of the pictures in training."""


@config
class ResnetEncoderConfig(TrainedEncoderConfig):
    """ResNet-18 with GroupNorm, spatial softmax, random crop: Diffusion Policy's encoder of one
    camera."""

    kind: Literal["resnet"] = "resnet"
    channels: tuple[ChannelGroups, ...] = (64, 128, 256, 512)
    """Channels of the ResNet's stages, which have two blocks each; multiples of 16. The default is
    ResNet-18."""


@config
class CnnEncoderConfig(TrainedEncoderConfig):
    """A few convolutions with GroupNorm, spatial softmax, random crop: a small encoder of one
    camera in the manner of Levine et al. (arXiv 1504.00702)."""

    kind: Literal["cnn"] = "cnn"
    channels: tuple[ChannelGroups, ...] = (32, 64, 64)
    """Channels of the convolutions; multiples of 16. Each halves height and width, so three have
    feature maps of 8 px per place."""
    kernel: Count = 5
    """Kernel size of the first convolution [px]; odd. The others have 3 px."""


@config
class MapReadOutConfig(PicturePartConfig):
    """Options of the image encoders over a pretrained network that is not trained, with a small
    trained read-out per camera. The feature maps of every picture are computed once and kept, so
    that an update costs little more than one from numbers; there are no random crops."""

    default_crop_ratio: ClassVar[float] = 1.0
    """Fraction of height and width that a crop takes, unless it is given: the whole image."""

    channels: Count = 64
    """Channels of the trained 1x1 convolution."""
    keypoints: Count = 32
    """Maps of the trained 3x3 convolution after it, whose mean positions are read."""
    features: Count = 128
    """Size of the feature vector of an image."""


@config
class FrozenEncoderConfig(MapReadOutConfig):
    """EfficientNet-Lite0 with weights of ImageNet, which are not trained, and a small trained
    read-out per camera."""

    kind: Literal["efficientnet_lite0"] = "efficientnet_lite0"
    stride: Literal[4, 8, 16, 32] = 8
    """Pixels per cell of the feature maps, which have 24, 40, 112 or 320 channels."""


@config
class FolderEncoderConfig(MapReadOutConfig):
    """A vision model of transformers or timm from a local folder, which is not trained, and a small
    trained read-out per camera."""

    default_shorter_side: ClassVar[int | None] = None
    """Shorter side of resized pictures unless it or a size of the crop is given: that of the
    recorded ones, as the model's input has a size of its own."""

    kind: Literal["folder"] = "folder"
    folder: str
    """Folder with `config.json`, `model.safetensors` and, for a model of transformers,
    `preprocessor_config.json`, such as DINOv2's or SigLIP's. What is seen of a picture is resized
    to the model's own input, whose aspect ratio may be another. Nothing is downloaded from a
    hub."""


@config
class PictureFeaturesConfig(PicturePartConfig):
    """Features of pictures by EfficientNet-Lite0 with weights of ImageNet, averaged in a grid of
    cells. They are entries of the observation vector of learners that see vectors; nothing of the
    encoder is trained."""

    default_crop_ratio: ClassVar[float] = 1.0
    """Fraction of height and width that a crop takes, unless it is given: the whole image."""

    stride: Literal[4, 8, 16, 32] = 16
    """Pixels per place of the feature maps, which have 24, 40, 112 or 320 channels."""
    cells: tuple[Count, Count] = (3, 3)
    """Rows and columns of cells; every cell gives the mean of each channel. Three by three of 112
    channels are 1,008 entries per camera."""


ImageEncoderConfig = Annotated[
    Annotated[
        ResnetEncoderConfig | CnnEncoderConfig | FrozenEncoderConfig | FolderEncoderConfig,
        Discriminator("kind"),
    ],
    DefaultKind("resnet"),
]
"""Union of the image encoders' options, discriminated by `kind`, which is `resnet` by default."""


@config
class TrunkConfig:
    """A frozen trunk of an image encoder: EfficientNet-Lite0 with weights of ImageNet
    (`policies.networks.images.efficientnet_lite`)."""

    kind: Literal["efficientnet_lite0"] = "efficientnet_lite0"
    stride: Literal[4, 8, 16, 32] = 16
    """Stride of the feature maps [px]."""


@config
class PointEncoderConfig:
    """The small PointNet of 3D Diffusion Policy."""

    widths: tuple[Count, ...] = (64, 128, 256)
    """Hidden units of the layers of the per-point MLP."""
    features: Count = 64
    """Size of the feature vector of a point cloud."""


@config
class ScratchConfig:
    """A small backbone with random weights: text layers and vision tower as in SmolVLM."""

    sentences: tuple[str, ...] = ()
    """Sentences on which the byte-pair tokenizer is trained; other words need more tokens. Without
    sentences every byte is a token."""
    vocabulary: Count = 320
    """Maximum vocabulary size; at least 260 (256 bytes and four more)."""
    width: Count = 128
    """Width of the tokens; a multiple of twice the number of heads."""
    layers: Count = 4
    """Number of text layers."""
    heads: Count = 4
    """Number of attention heads per layer."""
    feedforward: Count = 256
    """Hidden units of every layer."""
    picture: Pixels = 32
    """Edge of the images [px], a multiple of 16: a patch is 8 px wide, and 2 x 2 patches are a
    token."""
    vision_layers: Count = 2
    """Number of layers of the vision tower, which has the same width; not built for a policy
    without cameras."""


MEMORY_HEADS = 4
"""Heads of a memory by attention."""


@config
class MemoryConfig:
    """A summary of the observed steps, which a policy gets beside the newest step in place of all
    steps side by side."""

    kind: Literal["gru", "attention", "mean"] = "gru"
    """How steps are summed up: by a small recurrent network (`gru`), by attention of the newest
    step to all (`attention`), or by means whose weights fall off with age at learned rates
    (`mean`), for quantities that change slowly."""
    features: Count = 64
    """Number of features of the summary; with `attention` a multiple of 4."""

    def __post_init__(self) -> None:
        if self.kind == "attention" and self.features % MEMORY_HEADS:
            raise HandoffError(
                f"policy: memory.features is {self.features}, expected a multiple of {MEMORY_HEADS}, the heads of "
                "attention."
            )


@config
class BackboneConfig:
    """A vision-language model: pretrained, from a local folder in the layout of transformers'
    `save_pretrained`, or a small one trained from scratch."""

    folder: str | None = None
    """Folder with `config.json`, `model.safetensors` (or its shards with their index),
    `tokenizer.json` and, where images are not normalised to -1..1, `preprocessor_config.json`.
    Nothing is downloaded from a hub."""
    scratch: ScratchConfig | None = None
    """Sizes of a backbone trained from scratch, used when no folder is given."""
    layers: Count | None = None
    """Number of first text layers to keep; None keeps all. SmolVLA keeps 16 of 32."""
    instruction_tokens: Count = 48
    """Maximum length of an instruction [tokens]; longer ones are an error."""


@config
class LoraConfig:
    """Low-rank adapters (LoRA, Hu et al., ICLR 2022) in the text layers of a backbone."""

    rank: Count = 16
    """Rank of the low-rank factors."""
    alpha: Positive = 16.0
    """Scale of the adapters: the product of the factors is multiplied by alpha / rank."""
    dropout: ShareBelowOne = 0.0
    """Dropout rate of the adapters' inputs."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """Names of the linear layers with an adapter."""


@config
class NoiseActorConfig:
    """An actor that chooses the initial noise of a policy's sampler (DSRL,
    `policies.samplers.noise_actor`)."""

    card: ActorCard
    """Architecture of the actor: from the policy's features of an observation to the mean and the
    log standard deviation of the noise, before tanh."""
    steps: Count
    """Actions of a chunk whose noise is chosen; the remaining ones have the noise of the last."""
    limit: Positive
    """Bound on every entry of the noise, in standard deviations of the noise that the policy was
    trained with."""
    sampled: bool = False
    """Whether the noise is sampled from the actor's distribution, by the noise that the policy is
    given; otherwise it is the distribution's mode, and the given noise has no effect."""

    def __post_init__(self) -> None:
        if self.card.action % self.steps or self.card.hand is not None or self.card.maps:
            raise HandoffError(
                f"noise actor: {self.card.action} entries of noise for {self.steps} actions, expected a multiple, and "
                "an actor of vectors without gripper commands. Was the policy's config.json edited?"
            )


@config
class TokenEncoderConfig:
    """A transformer that reads one compact token from the features of a frozen policy (RL token,
    `policies.samplers.chunk_actor`)."""

    features: Count
    """Entries of a feature token of the policy."""
    width: Annotated[Count, Field(multiple_of=2)]
    """Entries of the RL token, and of the transformer's tokens."""
    heads: Count
    """Attention heads; divides `width`."""
    layers: Count
    """Number of transformer layers."""

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise HandoffError(
                f"rl token: width {self.width} with {self.heads} heads, expected a multiple of the heads."
            )


@config
class ChunkActorConfig:
    """An actor that refines the chunk which a frozen policy samples (RL token,
    `policies.samplers.chunk_actor`)."""

    token: TokenEncoderConfig
    """Encoder of the RL token."""
    actor: MlpCard
    """Layers of the actor: from RL token, observation vector and reference to an edit."""
    first: Whole
    """Number of the first refined action of a chunk."""
    steps: Count
    """Number of refined actions."""
    limit: Positive
    """Bound on every entry of an edit [normalised units]."""

    def __post_init__(self) -> None:
        inputs, outputs = self.actor.layers[0], self.actor.layers[-1]
        if outputs % self.steps or inputs < self.token.width + outputs:
            raise HandoffError(
                f"chunk actor: {outputs} entries of edits for {self.steps} actions from {inputs} inputs, expected a "
                "multiple, and inputs for the token and the reference. Was the policy's config.json edited?"
            )
