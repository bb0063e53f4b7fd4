"""Configurations of the policy families: sizes, and properties that stages need. Imports
no torch.

A new family needs a class here that is added to the union `PolicyConfig`, a module in
`policies/families`, a case in `policies.load.new_module`, and a file in `configs/policy`. No other
module depends on a family by name: they use the properties of `ChunkPolicyConfig` and the methods
of `policies.policy.ChunkPolicy`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated, ClassVar, Literal, Self, get_args

from policies.chunk_policy_config import (
    ChunkPolicyConfig,
    EncodedPolicyConfig,
    InstructedPolicyConfig,
    VisionLanguagePolicyConfig,
)
from policies.learned_policy_config import CoarseToFinePolicyConfig, LearnedActorConfig
from policies.networks.config import (
    ChunkActorConfig,
    MlpConfig,
    NetworkConfig,
    NoiseActorConfig,
    PointEncoderConfig,
)
from robots.config import (
    ByKind,
    Count,
    Finite,
    NonNegative,
    Positive,
    Share,
    ShareBelowOne,
    Whole,
    config,
)
from robots.errors import HandoffError

FROZEN_METHODS = ("dsrl", "rl_token")
"""Fine-tuning methods that learn an actor beside the sampler of a policy, whose weights stay."""


@config
class DiffusionPolicyConfig(EncodedPolicyConfig):
    """A diffusion or flow policy over action chunks (Chi et al., RSS 2023; Lipman et al. 2023)."""

    on_policy_student: ClassVar[bool] = True
    """Whether the policy can be a student, or a teacher, of on-policy distillation."""

    kind: Literal["diffusion"] = "diffusion"
    objective: Literal["diffusion", "flow"] = "diffusion"
    """Training objective: `diffusion` predicts the velocity of a squared-cosine schedule and
    samples with DDIM; `flow` predicts the velocity of the straight path from noise to data and
    samples with Euler's method."""
    train_timesteps: Count = 100
    """Number of noise levels of the squared-cosine schedule; for `flow`, number of discrete times
    that the network is conditioned on."""
    inference_steps: Count = 10
    """Number of sampler steps; for `diffusion` a divisor of `train_timesteps`."""
    clip: Positive = 3.0
    """Bound on every clean sample that the sampler predicts [normalised units]."""
    network: NetworkConfig = field(default_factory=MlpConfig)
    """Denoising network."""
    noise_draws: Count = 1
    """Draws of noise and noise level per example in imitation, for which its observation is encoded
    once. Where the encoder of pictures costs more than the denoiser, several make the gradient less
    noisy at little cost."""
    prefix: Whole = 0
    """Largest number of actions that are decided when a chunk is predicted, because the arm
    executes them meanwhile: the chunk goes on from them (training-time real-time chunking, Black et
    al. 2025). At least the policy's delay in steps; 0 trains without."""
    prefix_field: str = "action"
    """Field with the executed actions, of which decided ones are shown in training; where
    `action_field` is what an expert would have done, the two differ. Unused without `prefix`."""
    step_conditioned: bool = False
    """Whether the network of a `flow` is also conditioned on the length of the sampler's step; set
    by the distillation `shortcut`, which learns it."""
    noise_actor: NoiseActorConfig | None = None
    """Actor that chooses the initial noise of the sampler; set by the fine-tuning method `dsrl`,
    which learns it. None starts from standard normal noise."""
    chunk_actor: ChunkActorConfig | None = None
    """Actor that refines the sampled chunk; set by the fine-tuning method `rl_token`, which learns
    it. None leaves the chunk as it is."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.step_conditioned and self.objective != "flow":
            raise HandoffError(
                f"policy: step_conditioned with the objective '{self.objective}', expected 'flow'. A network that is "
                "conditioned on its step's length is made by `distill` with the algorithm 'shortcut'."
            )
        if self.n_obs_steps - 1 + self.prefix + self.n_action_steps > self.horizon:
            raise HandoffError(
                f"policy: {self.prefix} decided actions and {self.n_action_steps} executed ones from index "
                f"{self.n_obs_steps - 1} of a chunk, whose horizon is {self.horizon}; n_obs_steps - 1 + prefix + "
                "n_action_steps must not exceed horizon."
            )

    @property
    def most_decided(self) -> int:
        """See `ChunkPolicyConfig.most_decided`."""
        return self.prefix

    @property
    def decided_field(self) -> str | None:
        """See `ChunkPolicyConfig.decided_field`."""
        return self.prefix_field if self.prefix and self.prefix_field != self.action_field else None

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
    def one_step_methods(self) -> tuple[str, ...]:
        """See `ChunkPolicyConfig.one_step_methods`; `shortcut` requires the straight path of a
        flow, and takes no decided actions and no actor beside the sampler."""
        if self.step_conditioned:
            return ()
        if self.prefix or self.noise_actor is not None or self.chunk_actor is not None:
            return ("one_step",)
        return ("one_step", "shortcut") if self.objective == "flow" else ("one_step",)

    @property
    def finetuning_methods(self) -> tuple[str, ...]:
        """See `ChunkPolicyConfig.finetuning_methods`; all but those that keep the policy
        frozen require a velocity that is trained at every time, none keeps decided actions or an
        earlier actor beside the sampler, FPO and ReinFlow require a flow, and only PPO and those on
        a frozen policy observe the instruction."""
        if self.prefix or self.noise_actor is not None or self.chunk_actor is not None:
            return ()
        if self.step_conditioned:
            return FROZEN_METHODS
        ppo = ("dppo", "fpo", "reinflow") if self.objective == "flow" else ("dppo",)
        if self.language is not None:
            return (*ppo, *FROZEN_METHODS)
        return (*ppo, "best_of_n", "expo", "q_chunking", "rl100", *FROZEN_METHODS)


@config
class BesoConfig(EncodedPolicyConfig):
    """Goal-conditioned score matching (BESO, Reuss et al., RSS 2023); the sizes are those released
    for Kitchen. Features of cameras and point clouds are part of the state, goals are vectors."""

    kind: Literal["beso"] = "beso"
    n_obs_steps: Count = 4
    """Number of newest observation steps given to the policy. `horizon` 4 with `n_action_steps` 1
    is the paper's window."""
    goal: Literal["field", "future"] = "future"
    """Source of the goal: `field` takes `goal_fields` from the observation, which then contains a
    commanded goal; `future` takes the observation of a goal state, in training a later one of the
    same episode."""
    goal_fields: tuple[str, ...] = ("keypoints",)
    """Observation fields that make up the goal's G entries."""
    goal_dropout: Share = 0.1
    """Fraction of the training examples whose normalised goal is zeroed, so that the network also
    learns the unconditional distribution."""
    guidance: NonNegative = 1.5
    """Classifier-free guidance scale: 0 ignores the goal, 1 uses the conditional network alone,
    larger values extrapolate."""
    sampling_steps: Count = 3
    """Number of sampler steps."""
    sigma_min: Positive = 0.005
    """Smallest noise level [normalised units]; Block-push was released with 0.05."""
    sigma_max: Positive = 1.0
    """Largest noise level, at which sampling starts [normalised units]."""
    sigma_data: Positive = 0.5
    """Standard deviation of the chunks for EDM's coefficients [normalised units]."""
    clip: Positive = 3.0
    """Bound on the sampled chunk [normalised units]."""
    layers: Count = 6
    """Number of transformer layers."""
    heads: Count = 6
    """Attention heads; divides `width`."""
    width: Count = 360
    """Token width."""
    attention_dropout: ShareBelowOne = 0.3
    """Dropout rate of the attention weights."""
    residual_dropout: ShareBelowOne = 0.0
    """Dropout rate of each residual branch's output."""

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
    def uses_future_goal(self) -> bool:
        """See `ChunkPolicyConfig.uses_future_goal`."""
        return self.goal == "future"


@config
class ActConfig(InstructedPolicyConfig):
    """Action chunking transformer (ACT, Zhao et al., RSS 2023); it observes one step and uncropped
    images."""

    kind: Literal["act"] = "act"
    width: Count = 512
    """Token width; a multiple of `heads` and of 4."""
    heads: Count = 8
    """Attention heads."""
    feedforward: Count = 3200
    """Hidden units of every feed-forward layer."""
    latent_layers: Count = 4
    """Layers of the encoder that maps the demonstrated chunk to the latent; used in training
    only."""
    encoder_layers: Count = 4
    """Layers of the encoder of the observation tokens."""
    decoder_layers: Count = 1
    """Layers of the decoder of the action tokens; the paper says 7, of which the released code uses
    the first only."""
    latent: Count = 32
    """Size of the latent."""
    kl_weight: NonNegative = 10.0
    """Weight of the KL divergence of the latent from a standard normal, relative to the mean
    absolute error of normalised actions."""
    dropout: ShareBelowOne = 0.1
    """Dropout rate of attention, feed-forward and residual branches."""
    temporal_ensemble: Finite | None = None
    """Coefficient m of temporal ensembling: the policy runs at every step, and all chunks that
    predicted the step are averaged with weight exp(-m * i) for the i-th oldest; published is 0.01.
    None executes `n_action_steps` of each chunk."""
    point_encoder: PointEncoderConfig = field(default_factory=PointEncoderConfig)
    """Point-cloud encoder; one instance per point cloud."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % self.heads or self.width % 4:
            raise HandoffError(
                f"act: width {self.width} with {self.heads} heads, expected a multiple of the heads and of 4."
            )

    @property
    def ensemble(self) -> float | None:
        """See `ChunkPolicyConfig.ensemble`."""
        return self.temporal_ensemble

    @property
    def window(self) -> tuple[int, int, int, int]:
        """See `ChunkPolicyConfig.window`: as published, every step of an episode is the newest of a
        window; the loss leaves out the actions beyond the end."""
        executed = self.horizon - self.n_obs_steps + 1
        return self.n_obs_steps, self.horizon, executed, self.observation_stride


@config
class BehaviourCloningConfig(EncodedPolicyConfig):
    """Behaviour cloning with a Gaussian mixture or by regression (robomimic, Mandlekar et al., CoRL
    2021)."""

    kind: Literal["bc"] = "bc"
    head: Literal["gmm", "mse", "l1"] = "gmm"
    """Output head: `gmm` is a Gaussian mixture over the whole chunk, trained by likelihood; `mse`
    and `l1` predict one chunk, trained by squared or absolute error, between the modes of the
    demonstrations."""
    hidden: tuple[Count, ...] = (1024, 1024)
    """Hidden units of every layer."""
    modes: Count = 5
    """Number of Gaussians of the mixture."""
    min_deviation: Positive = 1e-4
    """Lower bound on the standard deviations of the Gaussians [normalised units]."""


@config
class VlaConfig(VisionLanguagePolicyConfig):
    """A vision-language backbone with a flow-matching action expert (pi0, SmolVLA)."""

    kind: Literal["vla"] = "vla"
    horizon: Count = 50
    """Actions predicted per inference; the first belongs to the oldest observed step."""
    n_action_steps: Count = 50
    """Actions executed per chunk, from index `n_obs_steps - 1` on."""
    inference_steps: Count = 10
    """Number of Euler steps from noise to the chunk."""
    expert_width: Positive = 0.75
    """Width of the action expert as a fraction of the backbone's."""
    expert_layers: Count | None = None
    """Layers of the action expert, a divisor of the number of backbone layers; None takes as many
    as the backbone."""
    self_attention_every: Count = 2
    """Interval of the expert's layers, starting at the first, that attend to observation and
    actions together; the others attend to the observation alone. 2 is SmolVLA's interleaving, 1 is
    pi0."""
    checkpoint: str | None = None
    """Folder of a SmolVLA or pi0 checkpoint in LeRobot's files, `config.json` and
    `model.safetensors`, whose weights backbone, expert and projections start from. The policy then
    computes as SmolVLA's or pi0's code, and the sizes above must be those of the checkpoint;
    `backbone.folder` gives only the configuration and the tokenizer of the backbone. Nothing is
    downloaded from a hub."""
    noise_actor: NoiseActorConfig | None = None
    """Actor that chooses the initial noise of the sampler; set by the fine-tuning method `dsrl`,
    which learns it. None starts from standard normal noise."""
    chunk_actor: ChunkActorConfig | None = None
    """Actor that refines the sampled chunk; set by the fine-tuning method `rl_token`, which learns
    it. None leaves the chunk as it is."""

    @property
    def external_folders(self) -> Mapping[str, str]:
        """See `ChunkPolicyConfig.external_folders`."""
        folders = super().external_folders
        return folders if self.checkpoint is None else {**folders, "checkpoint": self.checkpoint}

    @property
    def finetuning_methods(self) -> tuple[str, ...]:
        """See `ChunkPolicyConfig.finetuning_methods`; the padded entries of a checkpoint are part
        of its sampler's state, and only methods on a frozen policy do not need to know them."""
        if self.noise_actor is not None or self.chunk_actor is not None:
            return ()
        if self.checkpoint is not None:
            return FROZEN_METHODS
        return (*super().finetuning_methods, "fpo", *FROZEN_METHODS)

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
    """A vision-language backbone that predicts action tokens (OpenVLA), decoded in parallel
    (OpenVLA-OFT) or autoregressively."""

    kind: Literal["token_vla"] = "token_vla"
    horizon: Count = 8
    """Actions predicted per inference; the first belongs to the oldest observed step."""
    decoding: Literal["parallel", "autoregressive"] = "parallel"
    """Decoding order: `parallel` predicts all tokens of a chunk in one pass, each given the
    observation alone; `autoregressive` predicts them one after another, each given the previous
    ones, step by step and within a step entry by entry."""
    tokens: Literal["own", "vocabulary"] = "own"
    """Initialisation of the bins' embeddings and output weights: `own` uses small random numbers,
    `vocabulary` copies those of the backbone's last vocabulary entries, as in OpenVLA. Both are
    trained."""
    bins: Count = 256
    """Number of bins per action entry."""
    quantile: ShareBelowOne = 0.01
    """Fraction of the training actions below the first bin, and of those above the last; 0 bins
    between the extremes."""
    temperature: NonNegative = 0.0
    """Sampling temperature of the tokens at inference; 0 takes the most likely token and ignores
    the noise."""


PolicyConfig = Annotated[
    DiffusionPolicyConfig
    | BesoConfig
    | ActConfig
    | BehaviourCloningConfig
    | VlaConfig
    | TokenVlaConfig
    | LearnedActorConfig
    | CoarseToFinePolicyConfig,
    ByKind(),
]
"""Union of the policy families' configurations, discriminated by `kind`."""


def families() -> tuple[type[ChunkPolicyConfig], ...]:
    """Configuration classes of all families, in the order of the union."""
    return get_args(get_args(PolicyConfig)[0])
