"""Options of the fine-tuning methods; imports no torch. Those of PPO over denoising policies are in
`policies.rl.finetuning.denoising.config`, those of RL tokens in
`policies.rl.finetuning.rl_token.config`.

Every default of EXPO, Q-chunking and DSRL names its source: [C] is the released code, [P] the
paper.
"""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Any, ClassVar, Literal

from pydantic import (
    Discriminator,
    Field,
    PlainSerializer,
    ValidatorFunctionWrapHandler,
    WrapValidator,
)

from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.finetuning.base import FinetuneAlgorithm, FrozenPolicyConfig
from policies.rl.finetuning.denoising.config import (
    DppoFinetuneConfig,
    FpoFinetuneConfig,
    ReinFlowFinetuneConfig,
)
from policies.rl.finetuning.rl_token.config import RlTokenFinetuneConfig
from policies.rl.generative.config import ExpoConfig, QChunkingConfig
from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import SacConfig, check_subset
from policies.rl.offline.config import (
    RL100_CHAIN,
    DynamicsConfig,
    ExpectileCriticsConfig,
    OfflinePpoConfig,
)
from policies.rl.on_policy.config import (
    DppoConfig,
    FlowNoiseConfig,
    GroupConfig,
    LogProbLevel,
    OnPolicyConfig,
    PpoConfig,
    Trunk,
)
from policies.training.config import LoggingConfig, TrainingConfig
from robots.config import (
    Count,
    Finite,
    LearningRate,
    Positive,
    Repetitions,
    Seed,
    Share,
    Whole,
    config,
    to_plain,
    validate,
)
from robots.errors import HandoffError
from robots.outside import import_outside
from robots.seed_ranges import TRAINING


@config
class ChunkSelectionConfig(FinetuneAlgorithm):
    """Options of methods whose critics choose among chunks that the policy samples; see
    `policies.rl.finetuning.chunk_selection`."""

    steps: Count = 5
    """Sampler steps during fine-tuning; the fine-tuned policy keeps its original number."""
    samples: Count = 16
    """Chunks N sampled per decision; 32 in Q-chunking [C], 8 in EXPO [P]."""
    discount: Annotated[float, Field(gt=0, le=1)] = 0.99
    """Discount per action, not per chunk."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of the critics."""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.01
    """Polyak coefficient of the target critics per update."""
    batch_size: Count = 256
    """Transitions per step of the critics."""
    updates: Annotated[int, Field(ge=0)] = 400
    """Updates after every rollout from the second on."""
    warm_up: Annotated[int, Field(ge=0)] = 2
    """Rollouts at the start that choose chunks at random."""
    imitate_every: Count = 25
    """Rollouts between two imitation phases, after which the updated policy acts. A last phase
    follows the last rollout."""
    imitation: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=3000, learning_rate=3e-4)
    )
    """Training of an imitation phase."""

    def reward_discount(self) -> float:
        """See `FinetuneAlgorithm.reward_discount`."""
        return self.discount


@config
class BestOfNFinetuneConfig(ChunkSelectionConfig):
    """Options of best-of-N fine-tuning: critics choose among N sampled chunks, which the policy
    then imitates; see `policies.rl.finetuning.best_of_n`."""

    kind: Literal["best_of_n"] = "best_of_n"
    backup_samples: Count = 8
    """Random subset of the next state's chunks whose best value is the target, per update."""
    critics: Count = 2
    """Members of the ensemble of critics."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu")
    """Widths of the critic's hidden layers."""

    def __post_init__(self) -> None:
        if not 1 <= self.backup_samples <= self.samples:
            raise HandoffError(
                f"finetune: backup_samples is {self.backup_samples}, expected 1 to {self.samples} (samples)."
            )


@config
class ExpoFinetuneConfig(ChunkSelectionConfig):
    """Options of EXPO (arXiv 2507.07986) over chunks: the policy proposes chunks, a learned policy
    edits them, and critics choose among both; see `policies.rl.finetuning.expo`."""

    learns_from_demos: ClassVar[bool] = True
    """Always True: demonstrations are part of the data."""

    kind: Literal["expo"] = "expo"
    samples: Count = 8
    """Chunks N sampled per decision, each of which is also edited [P]."""
    beta: Annotated[float, Field(gt=0)] = 0.3
    """Bound on every entry of an edit, in standard deviations of that entry over the
    demonstrations; .05 to .7 of the range of an action in the paper [P]."""
    backup: Literal["max", "policy"] = "max"
    """Next chunk of the Bellman target: `max` takes the best of all candidates, as in acting [P];
    `policy` takes one edited chunk."""
    critics: Count = 10
    """Members of the ensemble of critics [P]."""
    subset: Count = 2
    """Random members over which the target takes the minimum, per update [P]."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu")
    """Layers of a critic."""
    edit: MlpSizes = MlpSizes(hidden=(256, 256), activation="relu")
    """Layers of the edit policy."""
    edit_learning_rate: LearningRate = 3e-4
    """Learning rate of the edit policy."""
    temperature: Annotated[float, Field(gt=0)] = 1.0
    """Initial weight of the entropy of an edit, which then adapts to `target_entropy` [P]."""
    temperature_learning_rate: LearningRate = 3e-4
    """Learning rate of that weight."""
    target_entropy: Finite | None = None
    """Target entropy of an edit [nat]; None takes half a nat per entry below that of the uniform
    distribution over edits."""
    updates: Annotated[int, Field(ge=0)] = 200
    """Updates after every rollout from the second on."""
    minibatches: Count = 2
    """Critic steps per update, each on a minibatch of its own, before one step of the edit policy;
    20 in the paper, with one environment step per update [P]."""
    demo_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.5
    """Share of the transitions of an update that are demonstrations (RLPD) [P]."""

    def __post_init__(self) -> None:
        check_subset("finetune", self.subset, self.critics)

    def learner(self, limit: float) -> ExpoConfig:
        """Options of the learner, for chunk entries in [-`limit`, `limit`]."""
        sac = SacConfig(
            critic=self.critic,
            actor=self.edit,
            critics=self.critics,
            subset=self.subset,
            learning_rate=self.learning_rate,
            actor_learning_rate=self.edit_learning_rate,
            temperature_learning_rate=self.temperature_learning_rate,
            tau=self.tau,
            init_temperature=self.temperature,
            target_entropy=self.target_entropy,
        )
        return ExpoConfig(
            sac=sac,
            base=None,
            beta=self.beta,
            limit=limit,
            samples=self.samples,
            backup=self.backup,
        )


@config
class QChunkingFinetuneConfig(ChunkSelectionConfig):
    """Options of Q-chunking (arXiv 2507.07969): the policy imitates all recorded chunks, and
    critics of whole chunks choose among its samples; see `policies.rl.finetuning.q_chunking`."""

    learns_from_demos: ClassVar[bool] = True
    """Always True: demonstrations are part of the data."""

    kind: Literal["q_chunking"] = "q_chunking"
    critics: Count = 2
    """Members of the ensemble of critics [C]."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu")
    """Layers of a critic; four of 512 units in the released code [C]."""
    value: Literal["mean", "min"] = "mean"
    """Aggregation over the critics, in the target and in the choice [C]."""
    demo_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.25
    """Share of the transitions of an update that are demonstrations; the released code samples from
    all data alike [C]."""

    def learner(self) -> QChunkingConfig:
        """Options of the learner, to which a chunk is one action of as many entries."""
        return QChunkingConfig(
            horizon=1,
            samples=self.samples,
            behaviour=None,
            critics=self.critics,
            critic=self.critic,
            value=self.value,
            learning_rate=self.learning_rate,
            tau=self.tau,
        )


RL100_LAYERS = MlpSizes(hidden=(256, 256), activation="relu", layer_norm=True)


@config
class RL100FinetuneConfig(FinetuneAlgorithm):
    """Options of RL-100 (arXiv 2510.14830): offline iterations on demonstrations and rollouts, then
    online PPO."""

    learns_from_demos: ClassVar[bool] = True
    """Always True: demonstrations are part of the data."""

    kind: Literal["rl100"] = "rl100"
    iterations: Count = 2
    """Offline iterations. Each improves the policy on all recorded data, collects rollouts, and
    retrains the policy by imitation."""
    offline_every: Count = 5
    """Rollouts per iteration; the rollouts after all iterations train online."""
    discount: Share = 0.99
    """Discount per action, not per chunk."""
    critics: ExpectileCriticsConfig = field(
        default_factory=lambda: ExpectileCriticsConfig(
            expectile=0.7,
            critics=4,
            critic=RL100_LAYERS,
            value_network=RL100_LAYERS,
            learning_rate=1e-3,
            tau=0.05,
        )
    )
    """Options of IQL's critics on the data. RL-100 uses expectile 0.7, two layers of 512 units and
    tau 0.005. Here a larger tau suits the few updates, and the minimum of four critics with layer
    norm overestimates less outside the data."""
    critic_updates: Whole = 5000
    """Updates of the critics per iteration."""
    critic_batch: Count = 256
    """Transitions per update of the critics."""
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    """Dynamics ensemble of the offline updates."""
    offline: OfflinePpoConfig = field(
        default_factory=lambda: OfflinePpoConfig(
            denoising=DppoConfig(steps=5, chain=RL100_CHAIN),
            learning_rate=1e-4,
            updates=2000,
            batch_size=1024,
            gate_every=500,
        )
    )
    """Options of offline PPO, with fewer and larger updates than published, for a small network;
    its denoising chain is also that of the rollouts. The margin is the published one: critics of
    demonstrations that all succeed know no failure, and a gate at a tenth of the margin accepted a
    policy that no longer picked up the cube (docs/results/manipulation.md)."""
    imitation: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=10_000, learning_rate=1e-3, schedule="cosine")
    )
    """Training from scratch on the demonstrations and the successful rollouts."""
    online: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            ppo=PpoConfig(clip=0.2, value_clip=0.2),
            clip_min=None,
            denoising_discount=1.0,
            batch_size=2048,
            epochs=10,
            critic_learning_rate=3e-4,
            actor_learning_rate=3e-6,
            target_kl=None,
            adaptive_kl_target=0.02,
            max_grad_norm=0.5,
        )
    )
    """Options of online PPO as published; the actor's learning rate starts small and adapts to the
    KL divergence. `discount` above replaces its discount."""
    critic: tuple[Count, ...] = (256, 256, 256)
    """Hidden units of the online critic."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.offline_every < 1:
            raise HandoffError(
                f"rl100: iterations is {self.iterations}, offline_every {self.offline_every}; expected 1 or more each."
            )

    def reward_discount(self) -> float:
        """See `FinetuneAlgorithm.reward_discount`."""
        return self.discount


@config
class DsrlFinetuneConfig(FrozenPolicyConfig):
    """Options of DSRL (arXiv 2506.15799): SAC chooses the initial noise of the policy's sampler,
    and the policy stays as it is; see `policies.rl.finetuning.dsrl`. [C] is the code of the paper's
    diffusion policies, [C pi0] that of its experiments with pi0."""

    learns_beside: ClassVar[str | None] = "chooses the initial noise"
    """Always the same: the actor's part."""

    kind: Literal["dsrl"] = "dsrl"
    noise_limit: Positive = 1.5
    """Bound on every entry of the chosen noise, in standard deviations of the noise that the policy
    was trained with; 1.5 [C], 1 to 2.5 [C pi0]."""
    noise_steps: Count | None = None
    """Actions of a chunk whose noise is chosen; the remaining ones have the noise of the last. None
    chooses that of all actions [C]; 1 is a start for long chunks [C pi0]."""
    acts: Literal["mode", "sample"] = "mode"
    """Noise of the fine-tuned policy: the mode of the learned distribution, which makes the policy
    deterministic, or a sample, as in the evaluations of the released code [C]."""
    critics: Count = 2
    """Critics in the ensemble, over which target and actor take the minimum [C]."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256))
    """Layers of a critic; three of 128 (Gym) or 2048 units (robomimic), with tanh and LayerNorm
    [C]."""
    actor: MlpSizes = MlpSizes(hidden=(256, 256, 256))
    """Layers of the actor; those of a critic [C]."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of critics, actor and temperature [C]."""
    tau: Annotated[float, Field(gt=0, le=1)] = 0.005
    """Polyak coefficient of the target critics per update [C]."""
    temperature: Positive = 1.0
    """Initial weight of the entropy, which then adapts to `target_entropy` [C]."""
    target_entropy: Finite = 0.0
    """Target entropy of the actor's distribution before it is scaled by `noise_limit` [nat] [C]."""
    backup_entropy: bool = True
    """Whether the Bellman target includes the entropy of the next noise: true [C], false
    [C pi0]."""
    batch_size: Count = 256
    """Transitions per update [C]."""

    def check_sizes(self, rollouts: int, horizon: int) -> None:
        """See `FrozenPolicyConfig.check_sizes`; also refuses more steps of noise than a chunk
        has."""
        super().check_sizes(rollouts, horizon)
        if self.noise_steps is not None and self.noise_steps > horizon:
            raise HandoffError(
                f"finetune: noise_steps is {self.noise_steps}, expected 1 to {horizon}, the actions of a chunk."
            )

    def learner(self) -> SacConfig:
        """Options of the learner, whose actions are noise divided by `noise_limit`."""
        return SacConfig(
            critic=self.critic,
            actor=self.actor,
            critics=self.critics,
            actor_value="min",
            backup_entropy=self.backup_entropy,
            learning_rate=self.learning_rate,
            actor_learning_rate=self.learning_rate,
            temperature_learning_rate=self.learning_rate,
            tau=self.tau,
            init_temperature=self.temperature,
            target_entropy=self.target_entropy,
            log_std_min=-20.0,
            log_std_max=2.0,
        )


@config
class VlaFinetuneConfig(FinetuneAlgorithm):
    """Options of PPO or GRPO of a language-conditioned policy with action tokens (RLinf-VLA, arXiv
    2510.06710) or a flow (pi_RL)."""

    trains_frozen_parts: ClassVar[bool] = True
    """Always True: adapters of a frozen backbone are trained further."""

    kind: Literal["vla"] = "vla"
    group: GroupConfig | None = None
    """Options of groups, which select GRPO; None selects PPO."""
    log_prob_level: LogProbLevel = "token"
    """Unit with one log-probability and one ratio: token, action or chunk; see
    `policies.rl.on_policy.rollout`."""
    values: Literal["chunk", "action"] = "action"
    """Unit with one value: the chunk, or each of its actions, which RLinf found to be better. Used
    by PPO only."""
    critic: tuple[Count, ...] = (512, 128)
    """Hidden units of the value head."""
    critic_trunk: Trunk = "shared"
    """Input of the value head: `shared` reads the policy's hidden states and trains them, as in
    RLinf; `detached` reads them without gradient; `own` reads a copy of the initial policy that is
    trained for values only."""
    temperature: Positive = 1.0
    """Temperature of the action tokens in rollouts."""
    flow: FlowNoiseConfig = field(default_factory=FlowNoiseConfig)
    """Noise that makes a flow-matching policy stochastic."""
    staleness: Whole = 0
    """Updates by which the acting policy may lag the learning one (AReaL's eta). From 1 on,
    rollouts are collected during updates; more than 1 has no further effect. Needs
    `learning.decoupled`."""
    learning: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            ppo=PpoConfig(
                clip=0.2, clip_high=0.28, dual_clip=3.0, value_clip=0.2, value_huber=10.0
            ),
            clip_min=None,
            denoising_discount=1.0,
            epochs=1,
            batch_size=640,
            actor_learning_rate=1e-4,
            critic_learning_rate=3e-3,
            target_kl=None,
            critic_warmup_rollouts=0,
            max_grad_norm=1.0,
        )
    )
    """Losses, learning rates and epochs, as in RLinf's ManiSkill configurations of OpenVLA [C]."""

    def __post_init__(self) -> None:
        if self.staleness < 0 or (self.staleness > 0 and not self.learning.decoupled):
            raise HandoffError(
                f"finetune: staleness is {self.staleness} without learning.decoupled, expected 0, or "
                "learning.decoupled: true, because stale rollouts need importance weights."
            )

    @property
    def runs_on_device(self) -> bool:
        """See `FinetuneAlgorithm.runs_on_device`; a stale actor has a copy of the policy."""
        return self.staleness == 0

    def reward_discount(self) -> float:
        """See `FinetuneAlgorithm.reward_discount`."""
        return self.learning.discount


def _outside_algorithm(value: Any, handler: ValidatorFunctionWrapHandler) -> Any:
    """Validates options whose `kind` is the import path of their class; others go to `handler`."""
    if isinstance(value, FinetuneAlgorithm):
        return value
    kind = value.get("kind", "") if isinstance(value, dict) else ""
    if "." not in kind:
        return handler(value)
    module, _, name = kind.rpartition(".")
    cls = getattr(import_outside(module, f"finetune: algorithm '{kind}'"), name, None)
    if not (isinstance(cls, type) and issubclass(cls, FinetuneAlgorithm)):
        raise HandoffError(_not_an_algorithm(kind))
    return validate(cls, dict(value), "algorithm")


def _not_an_algorithm(given: Any) -> str:
    return f"finetune: the algorithm {given!r} is no FinetuneAlgorithm, from which its options must derive."


FinetuneMethodConfig = Annotated[
    DppoFinetuneConfig
    | FpoFinetuneConfig
    | ReinFlowFinetuneConfig
    | BestOfNFinetuneConfig
    | ExpoFinetuneConfig
    | QChunkingFinetuneConfig
    | RL100FinetuneConfig
    | VlaFinetuneConfig
    | DsrlFinetuneConfig
    | RlTokenFinetuneConfig,
    Discriminator("kind"),
    WrapValidator(_outside_algorithm),
    PlainSerializer(to_plain),
]


@config
class FinetuneConfig(LoggingConfig):
    """Options of a fine-tuning run."""

    algorithm: FinetuneMethodConfig = field(default_factory=DppoFinetuneConfig)
    """Fine-tuning algorithm and its options."""
    reward: RewardShaping = field(default_factory=RewardShaping)
    """Reward shaping on top of the task reward."""
    rollouts: Repetitions = 40
    """Rollouts, each followed by updates on it."""
    decisions: Repetitions = 40
    """Decisions per environment and rollout."""
    first_seed: Seed = TRAINING.start
    """Seed of the first episode; seeds below are reserved for evaluation protocols."""
    seed: Seed = 0
    """Seed of initial weights, noise and minibatches."""
    save_every: Count = 5
    """Rollouts between two saved states."""
    threads: Count = 1
    """CPU threads of torch."""

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, FinetuneAlgorithm):
            raise HandoffError(_not_an_algorithm(self.algorithm))
