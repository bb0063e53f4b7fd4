"""The families of policies, their sizes, and their answers to what stages ask of a family. Imports
without torch.

A new family is a class here that stands in the union `PolicyConfig`, a module in
`policies/families`, a case in `policies.load.new_module`, and a file in `configs/policy`. No other
module names a family: what one has to know of it is an answer of `ChunkPolicyConfig` or a method of
`policies.policy.ChunkPolicy`.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Discriminator

from policies.chunk_policy_config import (
    ChunkPolicyConfig,
    EncodedPolicyConfig,
    VisionLanguagePolicyConfig,
)
from policies.networks.config import MlpConfig, NetworkConfig, PointEncoderConfig
from robots.config import config
from robots.wire.learner import ActorCard


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

    @property
    def sampler(self) -> str:
        """See `ChunkPolicyConfig.sampler`."""
        return "ddim" if self.objective == "diffusion" else "flow"

    @property
    def sampler_steps(self) -> int:
        """See `ChunkPolicyConfig.sampler_steps`."""
        return self.inference_steps

    def with_sampler_steps(self, steps: int) -> Self:
        """See `ChunkPolicyConfig.with_sampler_steps`."""
        return replace(self, inference_steps=steps)

    @property
    def distils_to_one_step(self) -> bool:
        """See `ChunkPolicyConfig.distils_to_one_step`; its teacher samples with DDIM."""
        return self.objective == "diffusion"

    @property
    def finetuning_methods(self) -> tuple[str, ...]:
        """See `ChunkPolicyConfig.finetuning_methods`; all of them learn from vectors alone."""
        return () if self.sensor_fields else ("dppo", "best_of_n", "rl100")


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
    """Layers of the transformer."""
    heads: int = 6
    """Attention heads; divides `width`."""
    width: int = 360
    """Entries of a token."""
    attention_dropout: float = 0.3
    """Share of the attention weights that is dropped while training."""
    residual_dropout: float = 0.0
    """Share of each branch's output that is dropped while training."""

    @property
    def sampler(self) -> str:
        """See `ChunkPolicyConfig.sampler`."""
        return self.kind

    @property
    def sampler_steps(self) -> int:
        """See `ChunkPolicyConfig.sampler_steps`."""
        return self.sampling_steps

    def with_sampler_steps(self, steps: int) -> Self:
        """See `ChunkPolicyConfig.with_sampler_steps`."""
        return replace(self, sampling_steps=steps)

    @property
    def wants_future_goal(self) -> bool:
        """See `ChunkPolicyConfig.wants_future_goal`."""
        return self.goal == "future"


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
    """Weight of the divergence of the latent from a standard normal, relative to the mean absolute
    error of normalised actions."""
    dropout: float = 0.1
    """Share that is dropped in attention, feed-forward and residual branches while training."""
    temporal_ensemble: float | None = None
    """Asks the policy at every step and averages all chunks that foresaw it, with weight exp(-this
    * i) for the i-th oldest; published is 0.01. None executes `n_action_steps` of each chunk."""
    point_encoder: PointEncoderConfig = field(default_factory=PointEncoderConfig)
    """One such encoder per point cloud."""

    @property
    def ensemble(self) -> float | None:
        """See `ChunkPolicyConfig.ensemble`."""
        return self.temporal_ensemble


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

    @property
    def sampler(self) -> str:
        """See `ChunkPolicyConfig.sampler`."""
        return "flow"

    @property
    def sampler_steps(self) -> int:
        """See `ChunkPolicyConfig.sampler_steps`."""
        return self.inference_steps

    def with_sampler_steps(self, steps: int) -> Self:
        """See `ChunkPolicyConfig.with_sampler_steps`."""
        return replace(self, inference_steps=steps)


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
    """Temperature of the tokens at inference; 0 takes the most likely token and ignores the
    noise."""


@config
class LearnedActorConfig(ChunkPolicyConfig):
    """The actor of a reinforcement learner, by its mode; it is not pretrained but published
    (`policies.rl.hil.learner`)."""

    pretrained: ClassVar[bool] = False
    """Whether the policy was trained by imitation."""

    kind: Literal["actor"] = "actor"
    anchor_field: str | None = None
    """Its actions are never relative to an observation."""
    horizon: int = 1
    """One action per look at the world."""
    n_action_steps: int = 1
    """Actions executed per inference."""
    card: ActorCard
    """Form of its networks. With a hand, `width_target` is among `observation_fields`: to hold is
    to be told that opening again."""
    gripper_width_max: float = 0.08
    """Largest opening of the gripper that the commands belong to [m]; read with a hand only."""


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


def families() -> tuple[type[ChunkPolicyConfig], ...]:
    """Configuration classes of all families, in the order of the union."""
    return get_args(get_args(PolicyConfig)[0])
