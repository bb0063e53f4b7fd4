"""Options of on-policy learning and of all practice of a pretrained policy. Imports without torch."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Discriminator

from policies.chain import ChainConfig
from policies.config import TrainingConfig
from policies.rl.config import IqlConfig, MlpSizes
from policies.rl.practice_reward import PracticeReward
from robots.config import config
from robots.errors import HandoffError


@config
class PpoConfig:
    """Of the loss. The defaults are PPO's own."""

    clip: float = 0.2
    """Below and above 1, of the ratio."""
    clip_high: float | None = None
    """Above 1, where it is another one; DAPO 0.28."""
    dual_clip: float | None = None
    """Greatest weight of a row with a negative advantage, above 1; 3 in Ye et al. None bounds nothing."""
    value_clip: float | None = None
    """Furthest that a value may move from that of the rollout and still be pulled; RL-100 0.2. None does not clip."""
    value_huber: float | None = None
    """Error of a value beyond which it counts linearly (Huber); RLinf 10. None counts its square throughout."""
    behaviour_cap: float | None = None
    """Greatest weight of a row for having been acted by another policy than the proximal one; AReaL 5."""

    def __post_init__(self) -> None:
        if not 0.0 < self.clip < 1.0 or (self.clip_high is not None and self.clip_high < self.clip):
            raise HandoffError(f"ppo: clip {self.clip} and {self.clip_high}, expected 0 to 1 and no less.")
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise HandoffError(f"ppo: dual_clip is {self.dual_clip}, expected more than 1.")


@config
class OnPolicyConfig:
    """How a rollout is learned from. The defaults are those of DPPO for state-based robomimic and gym [C]."""

    ppo: PpoConfig = field(default_factory=lambda: PpoConfig(clip=0.01))
    least_clip: float | None = 0.001
    """Clip of the noisiest part; rises to `ppo.clip` at the last. None gives all parts the same."""
    part_discount: float = 0.99
    """Per part: the advantage counts g^(K - 1 - k) at part k."""
    discount: float = 0.99
    """Per action, not per chunk."""
    trace: float = 0.95
    """lambda, per decision."""
    epochs: int = 5
    """Passes over a rollout."""
    batch_size: int = 7500
    """Rows per minibatch, of all workers."""
    actor_rate: float = 1e-4
    critic_rate: float = 1e-3
    target_kl: float | None = 1.0
    """Divergence above which no more epochs are made."""
    followed_kl: float | None = None
    """Divergence that the actor's rate is steered to; RL-100 .02. None leaves the rate."""
    critic_warm_up: int = 2
    """Rollouts at the start from which the critic alone learns."""
    value_weight: float = 0.5
    max_grad_norm: float | None = None
    """Of the actor and of the critic, each."""
    cloning: float = 0.0
    """Weight of staying likely to do what the policy did before; DiWA .05."""
    entropy: float = 0.0
    """Weight of staying undecided, per unit; of actors that tell how undecided they are."""
    decoupled: bool = False
    """Bounds ratios against the policy as it is when an update begins, and weighs rows by how likely it is to act as
    the one that acted did (AReaL), for rollouts of older policies."""
    cost_limit: float = float("inf")
    """Of an episode's cost; infinity is without a constraint."""
    cost_rate: float = 0.035
    """Of the multiplier's integral, per unit of cost beyond the limit and rollout."""
    cost_gain: float = 0.0
    """Of the multiplier, per unit of cost beyond the limit now; damps it."""


Level = Literal["token", "action", "chunk"]
"""For what a ratio is formed; see `policies.rl.experience`."""

Trunk = Literal["shared", "detached", "own"]
"""What a head of values reads; see `VlaPracticeConfig.critic_trunk`."""

Outcome = Literal["return", "success", "brevity"]
"""What a trajectory came to; see `GroupConfig.outcomes`."""


@config
class GroupConfig:
    """Advantages relative to a group of trajectories from one state; see `policies.rl.advantages`."""

    size: int = 8
    """Trajectories of a group."""
    drop_alike: bool = True
    """Leaves groups out in which all came to the same: they would count among the rows and teach nothing."""
    length_norm: bool = True
    """Whether every trajectory weighs the same, however long it is."""
    outcomes: tuple[Outcome, ...] = ("return",)
    """What a trajectory comes to, each a reward of its own: what it was paid, whether it solved the task, and if so how
    much of its time was left."""
    weights: tuple[float, ...] = ()
    """Of several outcomes; none are all 1."""


RELEASED = ChainConfig(
    min_std=0.1, min_log_prob_std=0.1, noise_clip=3.0, log_prob_min=-5.0, log_prob_max=2.0, reduce="mean"
)
"""Noise and log-probabilities of the released code."""


@config
class DppoConfig:
    """How a policy is walked while it learns."""

    steps: int = 5
    """K: of DDIM with the noise of DDPM, or of the flow-SDE. Released: 20 of DDPM, 5 of DDIM for pictures."""
    frozen_steps: int = 0
    """Of them, first, with the weights as they were: 10 of 20 in the released state-based ones, none of 5."""
    chain: ChainConfig = field(default_factory=lambda: RELEASED)
    flow_noise: float = 0.5
    """Of the flow-SDE."""


@config
class DppoPracticeConfig:
    """PPO over denoising steps (DPPO, arXiv 2409.00588)."""

    kind: Literal["dppo"] = "dppo"
    walk: DppoConfig = field(default_factory=DppoConfig)
    learning: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    critic: tuple[int, ...] = (256, 256, 256)
    """Hidden units; Mish, as released."""


@config
class BestOfNPracticeConfig:
    """Values of chunks choose among the policy's own, which then imitates the choice; see `policies.rl.best_of_n`."""

    kind: Literal["best_of_n"] = "best_of_n"
    steps: int = 5
    """Of the sampler, in practice; the policy that comes out has its own again."""
    samples: int = 16
    """N; 32 in Q-chunking [C], 8 in EXPO [P]."""
    backup_samples: int = 8
    """Of them, drawn anew for every update, whose best is the value of the next state."""
    critics: int = 2
    critic: MlpSizes = MlpSizes(hidden=(256, 256, 256), activation="relu")
    discount: float = 0.99
    """Per action, not per chunk."""
    learning_rate: float = 3e-4
    tau: float = 0.01
    """Share by which the slow critics follow at every update."""
    batch_size: int = 256
    updates: int = 400
    """Of the critics, after every rollout from the second on."""
    warm_up: int = 2
    """Rollouts at the start that choose at random."""
    imitate_every: int = 25
    """Rollouts after which the policy imitates; it practises on as what it has become. The last ones imitate, too."""
    imitation: TrainingConfig = field(default_factory=lambda: TrainingConfig(steps=3000, learning_rate=3e-4))
    """Of the best of the N chunks at every state that was met since it last imitated, by the critics as they then
    are."""


@config
class DynamicsConfig:
    """Learned dynamics; RL-100's sizes [C of a fork]."""

    members: int = 7
    elites: int = 5
    network: MlpSizes = MlpSizes(hidden=(400, 400, 400, 400), activation="relu", layer_norm=False)
    learning_rate: float = 1e-3
    weight_decay: float = 1e-5
    batch_size: int = 256
    """Rows per member and update."""
    updates: int = 2000


RL100_CHAIN = ChainConfig(min_std=0.1, max_std=0.8, min_log_prob_std=0.1, reduce="sum")
"""Noise and log-probabilities of RL-100, but for the least deviation: .0067 there, .1 as in DPPO here. A step's
gradient grows with 1 / std, and the last step's noise at .0067 is too small to change what an action is worth."""


@config
class OfflinePpoConfig:
    """RL-100's offline stage (arXiv 2510.14830); defaults of the released fork unless said otherwise."""

    walk: DppoConfig = field(default_factory=lambda: DppoConfig(steps=10, chain=RL100_CHAIN))
    learning_rate: float = 1e-5
    """1e-6 to 1e-5."""
    updates: int = 5000
    """5,000 to 8,000."""
    batch_size: int = 512
    """Rows, of one denoising step each."""
    chains: int = 8192
    """Of one draw; ours. An advantage is mostly noise, so few chains teach their noise."""
    redraw_every: int = 100
    """Updates between two draws; ours. By chains of one draw the policy moves no further than the clip lets it."""
    clip: float = 0.25
    last_clip: float = 0.05
    """To which the clip falls linearly; the fork's decay is not told, ours."""
    max_grad_norm: float = 0.5
    gate: bool = True
    """Whether a policy that is not better is taken back; false is the ablation."""
    gate_every: int = 50
    """Updates."""
    margin: float = 0.05
    """d / |J|: by how much better it must be judged. What a period can gain hangs on `gate_every` times the rate: .05
    wants far longer periods than 50 updates at 1e-5."""
    judged_steps: int = 5
    """3 to 20 decisions in the learned dynamics."""
    judged_rows: int = 1000
    """States from which it is judged; ours."""


@config
class OneStepConfig:
    """A one-step student that follows its teacher; see `policies.rl.one_step`."""

    learning_rate: float = 3e-4
    batch_size: int = 256
    """Pairs of state and noise."""
    updates: int = 100
    """Behind every update of the teacher."""


RL100_LAYERS = MlpSizes(hidden=(256, 256), activation="relu", layer_norm=True)


@config
class RL100PracticeConfig:
    """RL-100 (arXiv 2510.14830): offline iterations on demonstrations and own rollouts, then online PPO."""

    kind: Literal["rl100"] = "rl100"
    iterations: int = 2
    """Offline ones. Each improves the policy on all that is recorded, rolls it out, and imitates anew."""
    offline_every: int = 5
    """Rollouts of an iteration; those that remain after all iterations are learned from online."""
    discount: float = 0.99
    """Per action, not per chunk."""
    critics: IqlConfig = field(
        default_factory=lambda: IqlConfig(
            level=0.7, critics=4, critic=RL100_LAYERS, value_network=RL100_LAYERS, learning_rate=1e-3, tau=0.05
        )
    )
    """Of the data. RL-100: expectile .7, 512 x 2, tau .005; here for thousands of updates, so values follow faster,
    and the least of four, with layer norm, is less often too high where no data are."""
    critic_updates: int = 5000
    critic_batch: int = 256
    dynamics: DynamicsConfig = field(default_factory=DynamicsConfig)
    offline: OfflinePpoConfig = field(
        default_factory=lambda: OfflinePpoConfig(
            walk=DppoConfig(steps=5, chain=RL100_CHAIN),
            learning_rate=1e-4,
            updates=2000,
            batch_size=1024,
            gate_every=500,
        )
    )
    """Fewer and longer steps than published, for a small network; its walk is also that of the rollouts. The margin is
    the published one: demonstrations that all succeed teach critics nothing of failure, and a gate that opened at a
    tenth of it let a policy through that picked up no cube any more (docs/results.md)."""
    imitation: TrainingConfig = field(
        default_factory=lambda: TrainingConfig(steps=10_000, learning_rate=1e-3, schedule="cosine")
    )
    """From scratch, of the demonstrations and of the rollouts that solved the task."""
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
    """As published; the actor's rate follows the divergence from its small beginning. Its discount is the one above."""
    critic: tuple[int, ...] = (256, 256, 256)
    """Hidden units of the online critic."""

    def __post_init__(self) -> None:
        if self.iterations < 1 or self.offline_every < 1:
            raise HandoffError(
                f"rl100: {self.iterations} iterations of {self.offline_every} rollouts, expected at least one of one."
            )


@config
class FlowNoiseConfig:
    """Noise by which the steps of a flow become random in practice; see `policies.rl.flow_actor`."""

    kind: Literal["sde", "learned"] = "sde"
    steps: int = 4
    """K, in practice and at inference after it."""
    level: float = 0.5
    """Of the SDE; .2 was found to be unstable."""
    one_step: bool = True
    """Of the SDE: whether one step of every decision is random, and an update half as long."""
    low: float = 0.08
    high: float = 0.16
    """Bounds of learned deviations [normalised units]."""
    hidden: int = 128
    """Units of the network that answers it."""

    def __post_init__(self) -> None:
        if self.steps < 1 or not 0.0 < self.low <= self.high or (self.kind == "sde" and not self.level > 0.0):
            raise HandoffError(
                f"practice: noise of level {self.level} or from {self.low} to {self.high} in {self.steps} steps, "
                "expected more than none, rising, in at least one."
            )


@config
class VlaPracticeConfig:
    """PPO or GRPO of a policy that reads: with action tokens (RLinf-VLA, arXiv 2510.06710), or a flow (pi_RL)."""

    kind: Literal["vla"] = "vla"
    group: GroupConfig | None = None
    """GRPO's; None is PPO."""
    log_prob: Level = "token"
    """For what a ratio is formed; see `policies.rl.experience`."""
    values: Literal["chunk", "action"] = "action"
    """Whether a chunk is valued as a whole or every action of it, which RLinf found to be better; read for PPO."""
    critic: tuple[int, ...] = (512, 128)
    """Hidden units of the value head."""
    critic_trunk: Trunk = "shared"
    """What the head reads: `shared` the policy's hidden states, which then learn to value, too, as in RLinf; `detached`
    these as they are; `own` those of a copy of the policy as it was, which learns nothing but values."""
    temperature: float = 1.0
    """Of the tokens in practice."""
    flow: FlowNoiseConfig = field(default_factory=FlowNoiseConfig)
    """Of a policy that flows."""
    staleness: int = 0
    """Updates that the policy of a rollout may lie behind the one that learns from it (AReaL's eta). From 1 on a
    rollout is made while the one before is learned from; more than 1 brings no more. Wants `learning.decoupled`."""
    learning: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            ppo=PpoConfig(clip=0.2, clip_high=0.28, dual_clip=3.0, value_clip=0.2, value_huber=10.0),
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
    """As in RLinf's ManiSkill configurations of OpenVLA [C]."""

    def __post_init__(self) -> None:
        if self.staleness < 0 or (self.staleness > 0 and not self.learning.decoupled):
            raise HandoffError(
                f"practice: a staleness of {self.staleness} without learning.decoupled; expected 0, or ratios that are "
                "bounded against another policy than the one that acted."
            )


PracticeConfig = Annotated[
    DppoPracticeConfig | BestOfNPracticeConfig | RL100PracticeConfig | VlaPracticeConfig, Discriminator("kind")
]


@config
class FinetuneConfig:
    """How a policy practises."""

    practice: PracticeConfig = field(default_factory=DppoPracticeConfig)
    reward: PracticeReward = field(default_factory=PracticeReward)
    rollouts: int = 40
    decisions: int = 40
    """Of every world in a rollout."""
    first_seed: int = 1_000_000
    """Of the first start; protocols' starts lie below."""
    seed: int = 0
    save_every: int = 5
    """Rollouts between two states on the disk."""
    threads: int = 1
    """Of torch."""
