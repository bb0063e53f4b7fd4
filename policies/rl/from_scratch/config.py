"""Options of RL from scratch. Imports no torch.

Every default names its source: [C] is the released code of the method, [P] its paper, [Q] PQL
(arXiv 2307.12983). Those of FastTD3 and PQL are for thousands of environments on a GPU, those of
MR.Q for one environment and a GPU; `configs/reach_fast_td3.yaml` and, of MR.Q,
`docs/guides/reinforcement.md` have sizes for a laptop.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator, Field

from policies.networks.config import PictureFeaturesConfig
from policies.rl.coarse_to_fine.config import CqnAsConfig
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.mrq.config import MrqConfig
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import (
    GaussianExplorationConfig,
    GsdeConfig,
    OnlineConfig,
    SacOptions,
)
from policies.rl.off_policy.fast_td3_config import FastTd3Config, PqlConfig
from policies.rl.streaming.config import StreamAcOptions
from policies.training.config import LoggingConfig
from robots.config import (
    Count,
    LearningRate,
    Repetitions,
    Seed,
    config,
)
from robots.seed_ranges import TRAINING

PLAIN_LAYERS = MlpSizes(activation="relu", layer_norm=False)
"""Two hidden layers of 256 units with ReLU."""

ExplorationConfig = Annotated[GaussianExplorationConfig | GsdeConfig, Discriminator("kind")]
"""Exploration of SAC, discriminated by `kind`."""


@config
class ReplayOptions:
    """Options of learning from a replay buffer."""

    collections: Repetitions = 150_000
    """Number of collections; one collection is one step of every environment."""
    batch_size: Count = 256
    """Transitions per minibatch."""
    capacity: Count = 51_200
    """Replay capacity per environment [steps]; 51,200 in FastTD3 [C], 5,000,000 steps in total in
    PQL [Q]."""
    discount: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99
    """Discount per control period."""
    n_step: Count = 1
    """Steps of the n-step return, fewer where an episode ends."""
    learning_starts: Annotated[int, Field(ge=0)] = 10
    """Collections before the first update."""
    random_collections: Annotated[int, Field(ge=0)] = 0
    """Collections at the start with uniform random actions."""
    save_every: Count = 250
    """Collections between two checkpoints."""


@config
class FastTd3Algorithm(ReplayOptions):
    """FastTD3 (arXiv 2505.22642): TD3 with distributional critics; the defaults are those of the
    released code for HumanoidBench."""

    kind: Literal["fast_td3"] = "fast_td3"
    learner: FastTd3Config = field(default_factory=FastTd3Config)
    """Networks and updates."""
    batch_size: Count = 32_768
    """Transitions per critic update."""
    critic_per_collection: Annotated[float, Field(gt=0.0)] = 2.0
    """Critic updates per collection, 1 / beta_a:v. Fractions accumulate exactly."""


@config
class PqlAlgorithm(ReplayOptions):
    """PQL (arXiv 2307.12983) with its distributional critics, as options of FastTD3.

    Two choices remain those of FastTD3. The target is the whole distribution of one critic; PQL's
    code takes the minimum of the probabilities per atom, which sum to less than 1. Activations are
    ReLU, not ELU.
    """

    kind: Literal["pql"] = "pql"
    learner: PqlConfig = field(default_factory=PqlConfig)
    """Networks and updates."""
    batch_size: Count = 8192
    """Transitions per critic update."""
    n_step: Count = 3
    """Steps of the n-step return, fewer where an episode ends."""
    critic_per_collection: Annotated[float, Field(gt=0.0)] = 8.0
    """Critic updates per collection, 1 / beta_a:v. Fractions accumulate exactly."""
    learning_starts: Annotated[int, Field(ge=0)] = 32
    """Collections before the first update."""
    random_collections: Annotated[int, Field(ge=0)] = 32
    """Collections at the start with uniform random actions."""


@config
class MrqAlgorithm(ReplayOptions):
    """MR.Q (arXiv 2501.16142): TD3 on embeddings that predict embeddings, rewards and
    terminations; the defaults are those of the released code, for `num_envs` = 128 where they
    count collections."""

    kind: Literal["mrq"] = "mrq"
    learner: MrqConfig = field(default_factory=MrqConfig)
    """Networks and updates."""
    capacity: Count = 8000
    """Replay capacity per environment [steps]; 1,000,000 steps in total [C]. Two prioritised
    samples are drawn per update, each in a time proportional to all stored steps."""
    n_step: Count = 3
    """Steps of the n-step return, fewer where an episode ends [C]."""
    learning_starts: Annotated[int, Field(ge=0)] = 80
    """Collections before the first update; 10,000 steps in total [C]."""
    random_collections: Annotated[int, Field(ge=0)] = 80
    """Collections at the start with uniform random actions; 10,000 steps in total [C]."""
    updates_per_step: Annotated[float, Field(gt=0.0)] = 1.0
    """Updates of values and policy per step of one environment [C], beside which the encoders get
    as many. Fractions accumulate exactly."""


@config
class CqnAsAlgorithm(ReplayOptions):
    """CQN-AS (arXiv 2411.12155): a critic over sequences of actions, whose discretisation is
    refined level by level, learns from demonstrations and the policy's own episodes; the defaults
    are those of the released code for RLBench, for `num_envs` = 128 where they count
    collections."""

    kind: Literal["cqn_as"] = "cqn_as"
    learner: CqnAsConfig = field(default_factory=CqnAsConfig)
    """Networks and updates."""
    batch_size: Count = 512
    """Transitions per minibatch, demonstrations among them [C]."""
    demo_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of each minibatch from the demonstrations, and the policy's own successes [C]."""
    capacity: Count = 8000
    """Replay capacity per environment [steps]; 1,000,000 steps in total [C]."""
    learning_starts: Annotated[int, Field(ge=0)] = 0
    """Collections before the first update; updates learn from demonstrations alone until an episode
    has ended [C]."""
    updates_per_step: Annotated[float, Field(gt=0.0)] = 1.0
    """Updates per step of one environment [C]. Fractions accumulate exactly."""


@config
class SacLearnerConfig(SacOptions):
    """Networks and updates of SAC as in the paper (Haarnoja et al. 2018): the lower of two critics,
    and the entropy of the next action in the Bellman target."""

    critic: MlpSizes = PLAIN_LAYERS
    """Layers of a critic [P]."""
    actor: MlpSizes = PLAIN_LAYERS
    """Layers of the actor [P]."""
    actor_value: Literal["mean", "min"] = "min"
    """Aggregate of the critics that the actor maximises: `min` (SAC [P]) or `mean` (RLPD)."""
    backup_entropy: bool = True
    """Whether the Bellman target includes the entropy of the next action [P]."""
    init_temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Initial temperature."""


@config
class SacAlgorithm(ReplayOptions):
    """Soft actor-critic (SAC), with independent noise or gSDE."""

    kind: Literal["sac"] = "sac"
    learner: SacLearnerConfig = field(default_factory=SacLearnerConfig)
    """Networks and updates."""
    exploration: ExplorationConfig = field(default_factory=GaussianExplorationConfig)
    """Noise of the actions in training."""
    updates_per_collection: Annotated[float, Field(gt=0.0)] = 1.0
    """Updates per collection, each of one critic and one actor step. Fractions accumulate
    exactly."""


@config
class RlpdLearnerConfig(SacOptions):
    """Networks and updates of RLPD (Ball et al., arXiv 2302.02948): ten critics with LayerNorm, of
    which a random pair bounds the target."""

    critic: MlpSizes = MlpSizes(activation="relu")
    """Layers of a critic [C]."""
    actor: MlpSizes = PLAIN_LAYERS
    """Layers of the actor [C]."""
    critics: Count = 10
    """Critics in the ensemble [C]."""
    subset: Count | None = 2
    """Critics over which the Bellman target takes the minimum, sampled per minibatch [C]; None
    takes all."""
    init_temperature: Annotated[float, Field(gt=0.0)] = 1.0
    """Initial temperature [C]."""


@config
class RlpdAlgorithm(ReplayOptions):
    """RLPD: SAC whose minibatches contain demonstrations in a fixed share."""

    kind: Literal["rlpd"] = "rlpd"
    learner: RlpdLearnerConfig = field(default_factory=RlpdLearnerConfig)
    """Networks and updates."""
    exploration: ExplorationConfig = field(default_factory=GaussianExplorationConfig)
    """Noise of the actions in training."""
    demo_share: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.5
    """Share of each minibatch from the demonstrations [C]."""
    updates_per_collection: Annotated[float, Field(gt=0.0)] = 1.0
    """Updates per collection. Fractions accumulate exactly."""
    minibatches: Count = 20
    """Critic steps per update, followed by one actor step on the last minibatch [C]."""


@config
class PpoOptions:
    """Options of PPO on rollouts of a Gaussian policy; the defaults are those of rsl_rl, with the
    rollouts of few environments."""

    rollouts: Repetitions = 500
    """Number of rollouts, each followed by an update."""
    rollout_steps: Repetitions = 32
    """Steps of every environment per rollout."""
    actor: MlpSizes = field(default_factory=lambda: MlpSizes(hidden=(128, 128), layer_norm=False))
    """Layers of the mean, whose output passes through tanh."""
    critic: MlpSizes = field(default_factory=lambda: MlpSizes(hidden=(128, 128), layer_norm=False))
    """Layers of a critic; values and cost values have separate networks."""
    init_std: Annotated[float, Field(gt=0.0)] = 0.5
    """Initial standard deviation of every action entry [action units]; it is learned."""
    discount: Annotated[float, Field(ge=0.0, le=1.0)] = 0.99
    """Discount per control period."""
    gae_lambda: Annotated[float, Field(ge=0.0, le=1.0)] = 0.95
    """Lambda of generalised advantage estimation."""
    clip: Annotated[float, Field(gt=0.0, lt=1.0)] = 0.2
    """Clip range of the ratio below and above 1."""
    value_clip: Annotated[float, Field(gt=0.0)] | None = None
    """Clip range of a value around its value in the rollout; None does not clip."""
    epochs: Count = 5
    """Passes over a rollout."""
    batch_size: Count = 512
    """Steps per minibatch."""
    actor_learning_rate: LearningRate = 3e-4
    """Learning rate of the actor (Adam); the first one where it adapts."""
    critic_learning_rate: LearningRate = 1e-3
    """Learning rate of the critics (Adam)."""
    adaptive_kl_target: Annotated[float, Field(gt=0.0)] | None = 0.01
    """KL divergence that the actor's learning rate is adapted to (rsl_rl); None keeps the rate."""
    target_kl: Annotated[float, Field(gt=0.0)] | None = None
    """KL divergence above which no further epoch runs; None runs all epochs."""
    max_grad_norm: Annotated[float, Field(gt=0.0)] | None = 1.0
    """Norm to which the gradients of actor and critics are clipped separately; None does not
    clip."""
    save_every: Count = 10
    """Rollouts between two checkpoints."""


@config
class PpoAlgorithm(PpoOptions):
    """PPO (Schulman et al., arXiv 1707.06347)."""

    kind: Literal["ppo"] = "ppo"


@config
class PpoLagrangianAlgorithm(PpoOptions):
    """PPO-Lagrangian (Ray et al. 2019): PPO under a limit on the mean cost of an episode, which a
    Lagrange multiplier keeps."""

    kind: Literal["ppo_lagrangian"] = "ppo_lagrangian"
    cost_limit: Annotated[float, Field(gt=0.0)] = 10.0
    """Limit on the mean cost of an episode, in the unit of the environments' cost; N s for contact
    costs."""
    cost_rate: Annotated[float, Field(gt=0.0)] = 0.035
    """Integral gain of the multiplier per rollout, on the excess `cost / cost_limit - 1`."""
    cost_gain: Annotated[float, Field(ge=0.0)] = 0.1
    """Proportional gain of the multiplier, on the same excess; damps its oscillation (Stooke et
    al., arXiv 2007.03964)."""


@config
class StreamAcAlgorithm(StreamAcOptions):
    """Stream AC(lambda) (Elsayed et al., arXiv 2410.14606): actor-critic with eligibility traces
    that learns from every step of one environment once, without a replay buffer."""

    kind: Literal["stream_ac"] = "stream_ac"
    steps: Repetitions = 2_000_000
    """Number of environment steps, each followed by an update [C]."""
    save_every: Count = 10_000
    """Steps between two checkpoints."""


FromScratchAlgorithm = Annotated[
    SacAlgorithm
    | RlpdAlgorithm
    | FastTd3Algorithm
    | PqlAlgorithm
    | MrqAlgorithm
    | CqnAsAlgorithm
    | PpoAlgorithm
    | PpoLagrangianAlgorithm
    | StreamAcAlgorithm,
    Discriminator("kind"),
]
"""Algorithms of RL from scratch, discriminated by `kind`."""


def online_options(algorithm: ReplayOptions, num_envs: int) -> OnlineConfig:
    """Ratio of updates to steps, per step of one environment, and composition of the
    minibatches."""
    match algorithm:
        case FastTd3Algorithm() | PqlAlgorithm():
            per_step = algorithm.critic_per_collection / num_envs
        case MrqAlgorithm() | CqnAsAlgorithm():
            per_step = algorithm.updates_per_step
        case SacAlgorithm() | RlpdAlgorithm():
            per_step = algorithm.updates_per_collection / num_envs
        case _:
            raise TypeError(f"{type(algorithm).__name__} has no ratio of updates to steps")
    with_demos = isinstance(algorithm, RlpdAlgorithm)
    return OnlineConfig(
        batch_size=algorithm.batch_size,
        demo_share=algorithm.demo_share if with_demos else 0.0,
        minibatches=algorithm.minibatches if with_demos else 1,
        updates_per_step=per_step,
        training_starts=algorithm.learning_starts * num_envs,
    )


@config
class FromScratchConfig(LoggingConfig):
    """RL from scratch on observation vectors and the features of pictures."""

    algorithm: FromScratchAlgorithm = field(default_factory=FastTd3Algorithm)
    """The algorithm and its options."""
    fields: tuple[str, ...] = ()
    """Observation fields of the policy, in this order; empty takes all except images."""
    image_fields: tuple[str, ...] = ()
    """Cameras whose pictures the policy observes, as features of a frozen network."""
    image_features: PictureFeaturesConfig = field(default_factory=PictureFeaturesConfig)
    """Features of the pictures, which follow the observation vector."""
    reward: RewardShaping = field(default_factory=RewardShaping)
    """Reward shaping. If a task rewards every step and success ends the episode, set its `step`
    penalty; see there."""
    first_seed: Seed = TRAINING.start
    """Seed of the first initial state; the seeds of evaluation protocols lie below it."""
    seed: Seed = 0
    """Seed of weights, exploration and minibatches."""
    threads: Count = 1
    """CPU threads of torch."""
