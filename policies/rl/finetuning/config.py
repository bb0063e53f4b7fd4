"""Options of the fine-tuning methods; imports no torch."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator

from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import RL100_CHAIN, DynamicsConfig, IqlConfig, OfflinePpoConfig
from policies.rl.on_policy.config import (
    DppoConfig,
    FlowNoiseConfig,
    GroupConfig,
    LogProbLevel,
    OnPolicyConfig,
    PpoConfig,
    Trunk,
)
from policies.training.config import TrainingConfig
from robots.config import config
from robots.errors import HandoffError
from robots.seed_ranges import TRAINING


@config
class DppoFinetuneConfig:
    """Options of PPO over denoising steps (DPPO, arXiv 2409.00588)."""

    kind: Literal["dppo"] = "dppo"
    denoising: DppoConfig = field(default_factory=DppoConfig)
    """Steps, noise and frozen part of the denoising chain."""
    learning: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    """Losses, learning rates and epochs of PPO."""
    critic: tuple[int, ...] = (256, 256, 256)
    """Hidden units of the critic, with Mish activations as in the released code."""


@config
class BestOfNFinetuneConfig:
    """Options of best-of-N fine-tuning: critics choose among N sampled chunks, which the policy
    then imitates; see `policies.rl.finetuning.best_of_n`."""

    kind: Literal["best_of_n"] = "best_of_n"
    steps: int = 5
    """Sampler steps during fine-tuning; the fine-tuned policy keeps its original number."""
    samples: int = 16
    """Chunks N sampled per decision; 32 in Q-chunking [C], 8 in EXPO [P]."""
    backup_samples: int = 8
    """Random subset of the next state's chunks whose best value is the target, per update."""
    critics: int = 2
    """Members of the ensemble of critics."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu")
    """Widths of the critic's hidden layers."""
    discount: float = 0.99
    """Discount per action, not per chunk."""
    learning_rate: float = 3e-4
    """Learning rate of the critics."""
    tau: float = 0.01
    """Polyak coefficient of the target critics per update."""
    batch_size: int = 256
    """Transitions per update of the critics."""
    updates: int = 400
    """Updates of the critics after every rollout from the second on."""
    warm_up: int = 2
    """Rollouts at the start that choose chunks at random."""
    imitate_every: int = 25
    """Rollouts between two imitation phases, after which the updated policy acts. A last phase
    follows the last rollout."""
    imitation: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=3000, learning_rate=3e-4)
    )
    """Training on the best of the N chunks at every state visited since the last imitation phase,
    by the critics' current values."""


RL100_LAYERS = MlpSizes(hidden=(256, 256), activation="relu", layer_norm=True)


@config
class RL100FinetuneConfig:
    """Options of RL-100 (arXiv 2510.14830): offline iterations on demonstrations and rollouts, then
    online PPO."""

    kind: Literal["rl100"] = "rl100"
    iterations: int = 2
    """Offline iterations. Each improves the policy on all recorded data, collects rollouts, and
    retrains the policy by imitation."""
    offline_every: int = 5
    """Rollouts per iteration; the rollouts after all iterations train online."""
    discount: float = 0.99
    """Discount per action, not per chunk."""
    critics: IqlConfig = field(
        default_factory=lambda: IqlConfig(
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
    critic_updates: int = 5000
    """Updates of the critics per iteration."""
    critic_batch: int = 256
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
    critic: tuple[int, ...] = (256, 256, 256)
    """Hidden units of the online critic."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.offline_every < 1:
            raise HandoffError(
                f"rl100: iterations is {self.iterations}, offline_every {self.offline_every}; expected 1 or more each."
            )


@config
class VlaFinetuneConfig:
    """Options of PPO or GRPO of a language-conditioned policy with action tokens (RLinf-VLA, arXiv
    2510.06710) or a flow (pi_RL)."""

    kind: Literal["vla"] = "vla"
    group: GroupConfig | None = None
    """Options of groups, which select GRPO; None selects PPO."""
    log_prob_level: LogProbLevel = "token"
    """Unit with one log-probability and one ratio: token, action or chunk; see
    `policies.rl.on_policy.rollout`."""
    values: Literal["chunk", "action"] = "action"
    """Unit with one value: the chunk, or each of its actions, which RLinf found to be better. Used
    by PPO only."""
    critic: tuple[int, ...] = (512, 128)
    """Hidden units of the value head."""
    critic_trunk: Trunk = "shared"
    """Input of the value head: `shared` reads the policy's hidden states and trains them, as in
    RLinf; `detached` reads them without gradient; `own` reads a copy of the initial policy that is
    trained for values only."""
    temperature: float = 1.0
    """Temperature of the action tokens in rollouts."""
    flow: FlowNoiseConfig = field(default_factory=FlowNoiseConfig)
    """Noise that makes a flow-matching policy stochastic."""
    staleness: int = 0
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


FinetuneMethodConfig = Annotated[
    DppoFinetuneConfig | BestOfNFinetuneConfig | RL100FinetuneConfig | VlaFinetuneConfig,
    Discriminator("kind"),
]


@config
class FinetuneConfig:
    """Options of a fine-tuning run."""

    algorithm: FinetuneMethodConfig = field(default_factory=DppoFinetuneConfig)
    """Fine-tuning algorithm and its options."""
    reward: RewardShaping = field(default_factory=RewardShaping)
    """Reward shaping on top of the task reward."""
    rollouts: int = 40
    """Rollouts, each followed by updates on it."""
    decisions: int = 40
    """Decisions per environment and rollout."""
    first_seed: int = TRAINING.start
    """Seed of the first episode; seeds below are reserved for evaluation protocols."""
    seed: int = 0
    """Seed of initial weights, noise and minibatches."""
    save_every: int = 5
    """Rollouts between two saved states."""
    threads: int = 1
    """CPU threads of torch."""
