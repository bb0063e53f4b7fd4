"""The families of policies and their sizes. Imports without torch."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator

from robots.config import config
from robots.wire.learner import ActorCard


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
    """Of every GroupNorm; divides all widths."""
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
    """Of the ResNet's stages, two blocks each; multiples of 16. The default is ResNet-18."""
    crop: tuple[int, int] = (84, 84)
    """Height and width that are left of a picture [px]: at random in training, the middle
    otherwise."""
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


@config
class ChunkPolicyConfig:
    """What every policy over action chunks reads and answers."""

    stream: str = "policy"
    """Stream of the episodes that holds observations and actions."""
    observation_fields: tuple[str, ...] = ("keypoints", "agent")
    """Concatenated, each flattened, in this order into the O entries of one step."""
    image_fields: tuple[str, ...] = ()
    """Cameras: pictures (height, width, 3), uint8 RGB."""
    point_fields: tuple[str, ...] = ()
    """Point clouds (points, entries), positions first."""
    action_field: str = "action"
    """The action, A entries."""
    anchor_field: str | None = "agent"
    """Observation field, A entries, to whose newest value the actions are relative; None takes them
    as they are."""
    n_obs_steps: int = 1
    """Newest steps that the policy sees; on push-T two scored no better than one, see
    `docs/results.md`."""
    horizon: int = 16
    """Actions predicted per inference; the first belongs to the oldest observed step."""
    n_action_steps: int = 8
    """Actions executed per chunk, from index `n_obs_steps - 1` on."""


@config
class EncodedPolicyConfig(ChunkPolicyConfig):
    """What every policy has that learns encoders of pictures and point clouds of its own."""

    image_encoder: ImageEncoderConfig = field(default_factory=ImageEncoderConfig)
    """One such encoder per camera."""
    point_encoder: PointEncoderConfig = field(default_factory=PointEncoderConfig)
    """One such encoder per point cloud."""


@config
class DiffusionPolicyConfig(EncodedPolicyConfig):
    """A diffusion or flow policy over action chunks (Chi et al., RSS 2023; Lipman et al. 2023)."""

    kind: Literal["diffusion"] = "diffusion"
    objective: Literal["diffusion", "flow"] = "diffusion"
    """`diffusion` learns the velocity of a squared-cosine schedule and samples with DDIM; `flow`
    learns that of the straight path from noise to data and samples with Euler's method."""
    train_timesteps: int = 100
    """Noise levels of the squared-cosine schedule; for `flow` the levels at which times are told to
    the network."""
    inference_steps: int = 10
    """Steps when sampling; for `diffusion` a divisor of `train_timesteps`."""
    clip: float = 3.0
    """Bound on every clean sample that the sampler works out [normalised units]."""
    network: NetworkConfig = field(default_factory=MlpConfig)
    """The denoiser."""


@config
class BesoConfig(ChunkPolicyConfig):
    """Goal-conditioned score matching (BESO, Reuss et al., RSS 2023); the sizes are those released
    for Kitchen."""

    kind: Literal["beso"] = "beso"
    n_obs_steps: int = 4
    """Newest steps that the policy sees. `horizon` 4 with `n_action_steps` 1 is the paper's
    window."""
    goal: Literal["field", "future"] = "future"
    """Where the goal comes from: `field` takes `goal_fields` out of the observation, which then
    holds a commanded goal; `future` is told the observation of a state to be reached, in training
    one later in the same episode."""
    goal_fields: tuple[str, ...] = ("keypoints",)
    """Observed fields that make up the goal's G entries."""
    goal_dropout: float = 0.1
    """Share of the training examples whose normalised goal is zeroed, so that the network also
    learns to do without."""
    guidance: float = 1.5
    """Weight of the goal: 0 ignores it, 1 follows the conditional network, more exaggerates it."""
    sampling_steps: int = 3
    """Noise levels that the sampler visits."""
    sigma_min: float = 0.005
    """Least noise level [normalised units]; Block-push was released with 0.05."""
    sigma_max: float = 1.0
    """Greatest noise level, at which sampling starts [normalised units]."""
    sigma_data: float = 0.5
    """Spread of the chunks, for EDM's coefficients [normalised units]."""
    clip: float = 3.0
    """Bound on the sampled chunk [normalised units]."""
    layers: int = 6
    """Of the transformer."""
    heads: int = 6
    """Attention heads; divides `width`."""
    width: int = 360
    """Entries of a token."""
    attention_dropout: float = 0.3
    """Share of the attention weights that is dropped while training."""
    residual_dropout: float = 0.0
    """Share of each branch's output that is dropped while training."""


@config
class ActConfig(ChunkPolicyConfig):
    """Action chunking transformer (ACT, Zhao et al., RSS 2023); it sees one step and every picture
    whole."""

    kind: Literal["act"] = "act"
    width: int = 512
    """Entries of a token; a multiple of `heads` and of 4."""
    heads: int = 8
    """Attention heads."""
    feedforward: int = 3200
    """Hidden units of every feed-forward layer."""
    latent_layers: int = 4
    """Layers of the encoder that makes the latent from the demonstrated chunk; used in training
    only."""
    encoder_layers: int = 4
    """Layers over the tokens of what is seen."""
    decoder_layers: int = 1
    """Layers over the tokens of the actions; the paper says 7, of which the released code uses the
    first."""
    latent: int = 32
    """Entries of the latent."""
    kl_weight: float = 10.0
    """Of the divergence of the latent from a standard normal, beside the mean absolute error of
    actions of deviation
    1."""
    dropout: float = 0.1
    """Share that is dropped in attention, feed-forward and residual branches while training."""
    temporal_ensemble: float | None = None
    """Asks the policy at every step and averages all chunks that foresaw it, with weight exp(-this
    * i) for the i-th oldest; published is 0.01. None executes `n_action_steps` of each chunk."""
    point_encoder: PointEncoderConfig = field(default_factory=PointEncoderConfig)
    """One such encoder per point cloud."""


@config
class BehaviourCloningConfig(EncodedPolicyConfig):
    """Behaviour cloning with a Gaussian mixture, or by plain regression (robomimic, Mandlekar et
    al., CoRL 2021)."""

    kind: Literal["bc"] = "bc"
    head: Literal["gmm", "mse"] = "gmm"
    """`gmm` learns a mixture of Gaussians over the whole chunk by its likelihood; `mse` learns one
    chunk by the squared error, which averages over whatever the demonstrations do from there on."""
    hidden: tuple[int, ...] = (1024, 1024)
    """Hidden units of every layer."""
    modes: int = 5
    """Gaussians of the mixture."""
    min_deviation: float = 1e-4
    """Lower bound of their standard deviations [normalised units]."""


@config
class ScratchConfig:
    """A small backbone that nothing was learned by yet: text layers as those of SmolVLM, and its
    vision tower."""

    sentences: tuple[str, ...] = ()
    """From which the tokenizer learns its pairs; other words cost more tokens. Without any a token
    is a byte."""
    vocabulary: int = 320
    """Most tokens that it learns; at least the 256 bytes and four more."""
    width: int = 128
    """Of a token; a multiple of twice the heads."""
    layers: int = 4
    heads: int = 4
    feedforward: int = 256
    """Hidden units of every layer."""
    picture: int = 32
    """Edge of the pictures [px], a multiple of 16: a patch is 8 wide, and four of them are a
    token."""
    vision_layers: int = 2
    """Of the vision tower, which is as wide; not built for a policy without cameras."""


@config
class BackboneConfig:
    """A vision-language model: pretrained, in a local folder as `save_pretrained` of transformers
    writes one, or a small one from scratch."""

    folder: str | None = None
    """Holds `config.json`, `model.safetensors` (or its shards with their index), `tokenizer.json`
    and, where pictures are not normalised to -1..1, `preprocessor_config.json`. Nothing is ever
    fetched from a hub."""
    scratch: ScratchConfig | None = None
    """In place of a folder."""
    layers: int | None = None
    """Text layers that are kept, from the first on; None keeps all. SmolVLA keeps 16 of 32."""
    instruction_tokens: int = 48
    """Longest instruction [tokens]; a longer one is refused."""


@config
class LoraConfig:
    """Low-rank adapters (LoRA, Hu et al., ICLR 2022) in the text layers of a backbone."""

    rank: int = 16
    """Of both factors."""
    alpha: float = 16.0
    """The product of the factors is scaled by alpha / rank."""
    dropout: float = 0.0
    """Share of the adapters' inputs that is dropped while training."""
    targets: tuple[str, ...] = ("q_proj", "k_proj", "v_proj", "o_proj")
    """Names of the linear layers that get an adapter."""


@config
class VisionLanguagePolicyConfig(ChunkPolicyConfig):
    """What every policy over a vision-language backbone has; it sees the newest picture of each
    camera, if any."""

    backbone: BackboneConfig
    """Which pretrained model."""
    train_backbone: Literal["none", "lora", "all"] = "none"
    """`none` freezes it, `lora` trains adapters in it, `all` trains it whole, with its vision
    tower."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Read for `train_backbone: lora`."""
    state_tokens: Literal["one", "field", "object"] = "one"
    """`one` shows the backbone the whole state as a token, as SmolVLA; `field` every observed field
    as one of its own, so that words can be about one of them; `object` likewise, and fields of as
    many entries share their projection and are told apart by a name that is learned: what is
    learned of one cube holds for the next. Without cameras that is all it sees."""
    instruction: str | None = None
    """Said to the policy where nothing else is: in training by episodes without an instruction,
    which are told the name of their task if this is None, and at inference, which is then
    refused."""


@config
class VlaConfig(VisionLanguagePolicyConfig):
    """A vision-language backbone with a flow-matching action expert (pi0, SmolVLA)."""

    kind: Literal["vla"] = "vla"
    horizon: int = 50
    """Actions predicted per inference; the first belongs to the oldest observed step."""
    n_action_steps: int = 50
    """Actions executed per chunk, from index `n_obs_steps - 1` on."""
    inference_steps: int = 10
    """Steps of Euler's method from noise to the chunk."""
    expert_width: float = 0.75
    """Width of the action expert as a share of the backbone's."""
    expert_layers: int | None = None
    """Layers of the action expert, a divisor of the backbone's kept ones; None takes as many."""
    self_attention_every: int = 2
    """Every such layer of the expert, from the first on, attends to the observation and the actions
    together, the others to the observation alone: 2 is SmolVLA's interleaving, 1 is pi0's form."""


@config
class TokenVlaConfig(VisionLanguagePolicyConfig):
    """A vision-language backbone that answers with action tokens (OpenVLA), decoded in parallel
    (OpenVLA-OFT)."""

    kind: Literal["token_vla"] = "token_vla"
    horizon: int = 8
    """Actions predicted per inference; the first belongs to the oldest observed step."""
    decoding: Literal["parallel", "autoregressive"] = "parallel"
    """`parallel` answers all tokens of a chunk in one pass, each given the observation alone;
    `autoregressive` answers them one after another, each given those before it, step by step and
    within a step entry by entry."""
    tokens: Literal["own", "vocabulary"] = "own"
    """Where the embeddings of the bins and the weights of their logits start from: `own` from small
    random numbers, `vocabulary` from those of the backbone's last words, as in OpenVLA. Both are
    trained."""
    bins: int = 256
    """Tokens of an entry of an action."""
    quantile: float = 0.01
    """Share of the training actions below the first bin, and of those above the last; 0 bins
    between the extremes."""
    temperature: float = 0.0
    """Of the tokens that inference draws; 0 takes the likeliest and ignores the noise."""


@config
class LearnedActorConfig(ChunkPolicyConfig):
    """The actor of a reinforcement learner, by its mode; it is not pretrained but published
    (`policies.rl.hil.learner`)."""

    kind: Literal["actor"] = "actor"
    anchor_field: str | None = None
    """Its actions are never relative to an observation."""
    horizon: int = 1
    """One action per look at the world."""
    n_action_steps: int = 1
    card: ActorCard
    """Form of its networks. With a hand, `width_target` is among `observation_fields`: to hold is
    to be told that opening again."""


PolicyConfig = Annotated[
    DiffusionPolicyConfig
    | BesoConfig
    | ActConfig
    | BehaviourCloningConfig
    | VlaConfig
    | TokenVlaConfig
    | LearnedActorConfig,
    Discriminator("kind"),
]
"""A policy family with its sizes, told apart by `kind`."""
