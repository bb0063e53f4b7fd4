"""Options of on-policy learning and of all practice of a pretrained policy. Imports without
torch."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator

from policies.rl.collection.reward_shaping import PracticeReward
from policies.rl.networks.config import MlpSizes
from policies.rl.offline.config import RL100_CHAIN, DynamicsConfig, IqlConfig, OfflinePpoConfig
from policies.rl.on_policy.config import (
    DppoConfig,
    FlowNoiseConfig,
    GroupConfig,
    Level,
    OnPolicyConfig,
    PpoConfig,
    Trunk,
)
from policies.training.config import TrainingConfig
from robots.config import config
from robots.errors import HandoffError
from robots.seed_ranges import TRAINING


@config
class DppoPracticeConfig:
    """PPO over denoising steps (DPPO, arXiv 2409.00588)."""

    kind: Literal["dppo"] = "dppo"
    walk: DppoConfig = field(default_factory=DppoConfig)
    """Steps, noise and frozen part of the denoising chain."""
    learning: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    """Losses, rates and epochs of PPO."""
    critic: tuple[int, ...] = (256, 256, 256)
    """Hidden units; Mish, as released."""


@config
class BestOfNPracticeConfig:
    """Values of chunks choose among the policy's own, which then imitates the choice; see
    `policies.rl.finetuning.best_of_n`."""

    kind: Literal["best_of_n"] = "best_of_n"
    steps: int = 5
    """Sampler steps during fine-tuning; the resulting policy has its own number again."""
    samples: int = 16
    """N; 32 in Q-chunking [C], 8 in EXPO [P]."""
    backup_samples: int = 8
    """Chunks drawn anew for every update, the best of which gives the value of the next state."""
    critics: int = 2
    """Members of the ensemble of critics."""
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu")
    """Widths of the critic's hidden layers."""
    discount: float = 0.99
    """Discount per action, not per chunk."""
    learning_rate: float = 3e-4
    """Learning rate of the critics."""
    tau: float = 0.01
    """Share by which the slow critics follow at every update."""
    batch_size: int = 256
    """Transitions per update of the critics."""
    updates: int = 400
    """Updates of the critics after every rollout from the second on."""
    warm_up: int = 2
    """Rollouts at the start that choose at random."""
    imitate_every: int = 25
    """Rollouts after which the policy imitates; it practises on as what it has become. The last
    ones imitate, too."""
    imitation: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=3000, learning_rate=3e-4)
    )
    """Training on the best of the N chunks at every state visited since the last imitation, as the
    critics value them then."""


RL100_LAYERS = MlpSizes(hidden=(256, 256), activation="relu", layer_norm=True)


@config
class RL100PracticeConfig:
    """RL-100 (arXiv 2510.14830): offline iterations on demonstrations and own rollouts, then online
    PPO."""

    kind: Literal["rl100"] = "rl100"
    iterations: int = 2
    """Offline ones. Each improves the policy on all that is recorded, rolls it out, and imitates
    anew."""
    offline_every: int = 5
    """Rollouts of an iteration; those that remain after all iterations are learned from online."""
    discount: float = 0.99
    """Discount per action, not per chunk."""
    critics: IqlConfig = field(
        default_factory=lambda: IqlConfig(
            level=0.7,
            critics=4,
            critic=RL100_LAYERS,
            value_network=RL100_LAYERS,
            learning_rate=1e-3,
            tau=0.05,
        )
    )
    """Options of IQL's critics on the data. RL-100: expectile .7, 512 x 2, tau .005; here values
    follow faster, since updates are few, and the least of four critics with layer norm
    overestimates less often where there are no data."""
    critic_updates: int = 5000
    """Updates of the critics per iteration."""
    critic_batch: int = 256
    """Transitions per update of the critics."""
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    """Dynamics ensemble of the offline updates."""
    offline: OfflinePpoConfig = field(
        default_factory=lambda: OfflinePpoConfig(
            walk=DppoConfig(steps=5, chain=RL100_CHAIN),
            learning_rate=1e-4,
            updates=2000,
            batch_size=1024,
            gate_every=500,
        )
    )
    """Fewer and longer steps than published, for a small network; its walk is also that of the
    rollouts. The margin is the published one: demonstrations that all succeed teach critics nothing
    of failure, and a gate that opened at a tenth of it let a policy through that picked up no cube
    any more (docs/results/manipulation.md)."""
    imitation: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=10_000, learning_rate=1e-3, schedule="cosine")
    )
    """Training from scratch on the demonstrations and the successful rollouts."""
    online: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            ppo=PpoConfig(clip=0.2, value_clip=0.2),
            least_clip=None,
            part_discount=1.0,
            batch_size=2048,
            epochs=10,
            critic_rate=3e-4,
            actor_rate=3e-6,
            target_kl=None,
            followed_kl=0.02,
            max_grad_norm=0.5,
        )
    )
    """Options of online PPO as published; the actor's rate follows the divergence from its small
    initial value. Its discount is the one above."""
    critic: tuple[int, ...] = (256, 256, 256)
    """Hidden units of the online critic."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.offline_every < 1:
            raise HandoffError(
                f"rl100: {self.iterations} iterations of {self.offline_every} rollouts, expected at least one of one."
            )


@config
class VlaPracticeConfig:
    """PPO or GRPO of a policy that reads: with action tokens (RLinf-VLA, arXiv 2510.06710), or a
    flow (pi_RL)."""

    kind: Literal["vla"] = "vla"
    group: GroupConfig | None = None
    """GRPO's; None is PPO."""
    log_prob: Level = "token"
    """Unit for which a ratio is formed: token, action or chunk; see
    `policies.rl.on_policy.rollout`."""
    values: Literal["chunk", "action"] = "action"
    """Whether a chunk is valued as a whole or every action of it, which RLinf found to be better;
    read for PPO."""
    critic: tuple[int, ...] = (512, 128)
    """Hidden units of the value head."""
    critic_trunk: Trunk = "shared"
    """What the head reads: `shared` the policy's hidden states, which then learn to value, too, as
    in RLinf; `detached` these as they are; `own` those of a copy of the policy as it was, which
    learns nothing but values."""
    temperature: float = 1.0
    """Temperature of the action tokens in rollouts."""
    flow: FlowNoiseConfig = field(default_factory=FlowNoiseConfig)
    """Noise that makes a flow-matching policy stochastic."""
    staleness: int = 0
    """Updates that the policy of a rollout may lie behind the one that learns from it (AReaL's
    eta). From 1 on a rollout is made while the one before is learned from; more than 1 brings no
    more. Wants `learning.decoupled`."""
    learning: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            ppo=PpoConfig(
                clip=0.2, clip_high=0.28, dual_clip=3.0, value_clip=0.2, value_huber=10.0
            ),
            least_clip=None,
            part_discount=1.0,
            epochs=1,
            batch_size=640,
            actor_rate=1e-4,
            critic_rate=3e-3,
            target_kl=None,
            critic_warm_up=0,
            max_grad_norm=1.0,
        )
    )
    """Losses, rates and epochs, as in RLinf's ManiSkill configurations of OpenVLA [C]."""

    def __post_init__(self) -> None:
        if self.staleness < 0 or (self.staleness > 0 and not self.learning.decoupled):
            raise HandoffError(
                f"practice: a staleness of {self.staleness} without learning.decoupled; expected 0, or ratios that are "
                "bounded against another policy than the one that acted."
            )


PracticeConfig = Annotated[
    DppoPracticeConfig | BestOfNPracticeConfig | RL100PracticeConfig | VlaPracticeConfig,
    Discriminator("kind"),
]


@config
class FinetuneConfig:
    """How a policy practises."""

    practice: PracticeConfig = field(default_factory=DppoPracticeConfig)
    """Fine-tuning algorithm and its options."""
    reward: PracticeReward = field(default_factory=PracticeReward)
    """Reward shaping on top of the task reward."""
    rollouts: int = 40
    """Rollouts, each followed by updates on it."""
    decisions: int = 40
    """Decisions per environment and rollout."""
    first_seed: int = TRAINING.start
    """Seed of the first start; protocols' starts lie below."""
    seed: int = 0
    """Seed of noise and minibatches."""
    save_every: int = 5
    """Rollouts between two states on the disk."""
    threads: int = 1
    """Processor threads of torch."""
