"""Options of this package."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from policies.samplers.chain import ChainConfig
from robots.config import config
from robots.errors import HandoffError


@config
class PpoConfig:
    """Of the loss. The defaults are PPO's own."""

    clip: float = 0.2
    """Clip range of the ratio below and above 1."""
    clip_high: float | None = None
    """Upper clip range; None uses `clip` for both sides (DAPO: 0.28)."""
    dual_clip: float | None = None
    """Greatest weight of a row with a negative advantage, above 1; 3 in Ye et al. None bounds
    nothing."""
    value_clip: float | None = None
    """Furthest that a value may move from that of the rollout and still be pulled; RL-100 0.2. None
    does not clip."""
    value_huber: float | None = None
    """Error of a value beyond which it counts linearly (Huber); RLinf 10. None counts its square
    throughout."""
    behaviour_cap: float | None = None
    """Greatest weight of a row for having been acted by another policy than the proximal one; AReaL
    5."""

    def __post_init__(self) -> None:
        if not 0.0 < self.clip < 1.0 or (self.clip_high is not None and self.clip_high < self.clip):
            raise HandoffError(
                f"ppo: clip {self.clip} and {self.clip_high}, expected 0 to 1 and no less."
            )
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise HandoffError(f"ppo: dual_clip is {self.dual_clip}, expected more than 1.")


@config
class OnPolicyConfig:
    """How a rollout is learned from. The defaults are those of DPPO for state-based robomimic and
    gym [C]."""

    ppo: PpoConfig = field(default_factory=lambda: PpoConfig(clip=0.01))
    """Clipping and value loss."""
    least_clip: float | None = 0.001
    """Clip of the noisiest part; rises to `ppo.clip` at the last. None gives all parts the same."""
    part_discount: float = 0.99
    """Discount per denoising step: the advantage counts g^(K - 1 - k) at step k."""
    discount: float = 0.99
    """Discount per action, not per chunk."""
    trace: float = 0.95
    """lambda, per decision."""
    epochs: int = 5
    """Passes over a rollout."""
    batch_size: int = 7500
    """Rows per minibatch, of all workers."""
    actor_rate: float = 1e-4
    """Learning rate of the actor."""
    critic_rate: float = 1e-3
    """Learning rate of the critic."""
    target_kl: float | None = 1.0
    """Divergence above which no more epochs are made."""
    followed_kl: float | None = None
    """Divergence that the actor's rate is steered to; RL-100 .02. None leaves the rate."""
    critic_warm_up: int = 2
    """Rollouts at the start from which the critic alone learns."""
    value_weight: float = 0.5
    """Weight of the value loss."""
    max_grad_norm: float | None = None
    """Norm to which the gradients of actor and critic are clipped, each on its own; None does not
    clip."""
    cloning: float = 0.0
    """Weight of staying likely to do what the policy did before; DiWA .05."""
    entropy: float = 0.0
    """Weight of staying undecided, per unit; of actors that tell how undecided they are."""
    decoupled: bool = False
    """Bounds ratios against the policy as it is when an update begins, and weighs rows by how
    likely it is to act as the one that acted did (AReaL), for rollouts of older policies."""
    cost_limit: float = float("inf")
    """Limit on the cost of an episode; infinity means no constraint."""
    cost_rate: float = 0.035
    """Integral gain of the multiplier, per unit of cost beyond the limit and rollout."""
    cost_gain: float = 0.0
    """Proportional gain of the multiplier, per unit of cost beyond the limit; damps it."""


Level = Literal["token", "action", "chunk"]
"""For what a ratio is formed; see `policies.rl.on_policy.rollout`."""


Trunk = Literal["shared", "detached", "own"]
"""What a head of values reads; see `VlaPracticeConfig.critic_trunk`."""


Outcome = Literal["return", "success", "brevity"]
"""What a trajectory came to; see `GroupConfig.outcomes`."""


@config
class GroupConfig:
    """Advantages relative to a group of trajectories from one state; see
    `policies.rl.on_policy.advantages`."""

    size: int = 8
    """Trajectories of a group."""
    drop_alike: bool = True
    """Leaves groups out in which all came to the same: they would count among the rows and teach
    nothing."""
    length_norm: bool = True
    """Whether every trajectory weighs the same, however long it is."""
    outcomes: tuple[Outcome, ...] = ("return",)
    """What a trajectory comes to, each a reward of its own: what it was paid, whether it solved the
    task, and if so how much of its time was left."""
    weights: tuple[float, ...] = ()
    """Weights of several outcomes; empty weighs all by 1."""


RELEASED = ChainConfig(
    min_std=0.1,
    min_log_prob_std=0.1,
    noise_clip=3.0,
    log_prob_min=-5.0,
    log_prob_max=2.0,
    reduce="mean",
)
"""Noise and log-probabilities of the released code."""


@config
class DppoConfig:
    """How a policy is walked while it learns."""

    steps: int = 5
    """K: of DDIM with the noise of DDPM, or of the flow-SDE. Released: 20 of DDPM, 5 of DDIM for
    pictures."""
    frozen_steps: int = 0
    """First denoising steps that keep the initial weights: 10 of 20 in the released state-based
    configurations, none of 5."""
    chain: ChainConfig = field(default_factory=lambda: RELEASED)
    """Noise of the chain and the measure of its log-probability."""
    flow_noise: float = 0.5
    """Noise level of the flow-SDE."""


@config
class FlowNoiseConfig:
    """Noise by which the steps of a flow become random in practice; see
    `policies.rl.on_policy.flow_actor`."""

    kind: Literal["sde", "learned"] = "sde"
    steps: int = 4
    """K, in practice and at inference after it."""
    level: float = 0.5
    """Noise level of the SDE; .2 was unstable."""
    one_step: bool = True
    """Whether one step per decision is stochastic for the SDE, which halves the length of an
    update."""
    low: float = 0.08
    """Lower bound of the learned noise."""
    high: float = 0.16
    """Bounds of learned deviations [normalised units]."""
    hidden: int = 128
    """Units of the network that answers it."""

    def __post_init__(self) -> None:
        if (
            self.steps < 1
            or not 0.0 < self.low <= self.high
            or (self.kind == "sde" and not self.level > 0.0)
        ):
            raise HandoffError(
                f"practice: noise of level {self.level} or from {self.low} to {self.high} in {self.steps} steps, "
                "expected more than none, rising, in at least one."
            )
