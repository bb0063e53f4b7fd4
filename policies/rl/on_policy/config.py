"""Options of on-policy learning: losses, rollouts, groups and the noise of denoising steps."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from policies.samplers.chain import ChainConfig
from robots.config import Count, Finite, LearningRate, NonNegative, Positive, Share, Whole, config
from robots.errors import HandoffError


@config
class PpoConfig:
    """Options of the PPO loss, with the defaults of PPO."""

    clip: Positive = 0.2
    """Clip range of the ratio below and above 1."""
    clip_high: Positive | None = None
    """Upper clip range; None uses `clip` for both sides (DAPO: 0.28)."""
    dual_clip: Positive | None = None
    """Bound on the ratio of rows with a negative advantage, above 1 (Ye et al.: 3). None sets no
    bound."""
    negative: Literal["clip", "quadratic"] = "clip"
    """Trust region of rows with a negative advantage: `clip` is PPO's; `quadratic` takes SPO's
    penalty |advantage| * (ratio - 1)^2 / (2 clip), which also pulls back a ratio that has left the
    clip range (FPO++)."""
    log_ratio_limit: Positive | None = None
    """Bound on the size of the logarithm of a ratio, beyond which it has no gradient (FPO with a
    ratio per sample: 3). None sets no bound."""
    value_clip: Positive | None = None
    """Clip range of a value around its value in the rollout (RL-100: 0.2). None does not clip."""
    value_huber: Positive | None = None
    """Delta of the Huber loss of the values (RLinf: 10). None uses the squared error."""
    behaviour_cap: Positive | None = None
    """Cap on the importance weight between the proximal and the acting policy (AReaL: 5)."""

    def __post_init__(self) -> None:
        if not 0.0 < self.clip < 1.0 or (self.clip_high is not None and self.clip_high < self.clip):
            raise HandoffError(
                f"ppo: clip is {self.clip} and clip_high {self.clip_high}, expected clip between 0 and 1, and "
                "clip_high at least clip."
            )
        if self.dual_clip is not None and self.dual_clip <= 1.0:
            raise HandoffError(f"ppo: dual_clip is {self.dual_clip}, expected more than 1.")
        if self.dual_clip is not None and self.negative == "quadratic":
            raise HandoffError(
                "ppo: dual_clip bounds rows with a negative advantage, which negative: quadratic bounds otherwise. "
                "Set one of the two."
            )


@config
class OnPolicyConfig:
    """Options of learning from a rollout, with the defaults of DPPO for state-based robomimic and
    gym [C]."""

    ppo: PpoConfig = field(default_factory=lambda: PpoConfig(clip=0.01))
    """Clipping and value loss."""
    clip_min: NonNegative | None = 0.001
    """Clip range of the noisiest denoising step, from which it rises to `ppo.clip` at the last.
    None uses `ppo.clip` for all steps."""
    denoising_discount: Share = 0.99
    """Discount per denoising step; the advantage of step k is weighted by g^(K - 1 - k)."""
    discount: Share = 0.99
    """Discount per action, not per chunk."""
    gae_lambda: Share = 0.95
    """Lambda of generalised advantage estimation, per decision."""
    epochs: Count = 5
    """Passes over a rollout."""
    batch_size: Count = 7500
    """Rows per minibatch over all workers."""
    actor_learning_rate: LearningRate = 1e-4
    """Learning rate of the actor."""
    critic_learning_rate: LearningRate = 1e-3
    """Learning rate of the critic."""
    target_kl: Positive | None = 1.0
    """KL divergence above which no further epoch runs. None runs all epochs."""
    adaptive_kl_target: Positive | None = None
    """KL divergence that the actor's learning rate is adapted to (RL-100: 0.02). None keeps the
    rate."""
    critic_warmup_rollouts: Whole = 2
    """Rollouts at the start that train only the critic."""
    value_weight: NonNegative = 0.5
    """Weight of the value loss."""
    max_grad_norm: Positive | None = None
    """Norm to which the gradients of actor and critic are clipped separately; None does not
    clip."""
    bc_weight: NonNegative = 0.0
    """Weight of the behaviour cloning loss towards the initial policy (DiWA: 0.05)."""
    entropy_coef: NonNegative = 0.0
    """Entropy bonus coefficient; ignored by actors without an entropy."""
    decoupled: bool = False
    """Whether ratios are clipped against the policy at the start of the update, with importance
    weights for the policy that acted (AReaL's decoupled objective, for stale rollouts)."""


@config
class CostConstraint:
    """Constraint on the mean cost of an episode, kept by a Lagrange multiplier
    (`policies.rl.on_policy.ppo_loss.Lagrangian`)."""

    limit: Annotated[float, Field(ge=0.0)]
    """Limit on the mean cost of an episode."""
    rate: Annotated[float, Field(gt=0.0)] = 0.035
    """Integral gain of the multiplier, per unit of cost beyond the limit and rollout."""
    gain: Annotated[float, Field(ge=0.0)] = 0.0
    """Proportional gain of the multiplier, per unit of cost beyond the limit; damps it."""


LogProbLevel = Literal["token", "action", "chunk"]
"""Unit that has a log-probability and a ratio; see `policies.rl.on_policy.rollout`."""


Trunk = Literal["shared", "detached", "own"]
"""Input of a value head; see `VlaFinetuneConfig.critic_trunk`."""


Outcome = Literal["return", "success", "brevity"]
"""Outcome of a trajectory; see `GroupConfig.outcomes`."""


@config
class GroupConfig:
    """Options of group-relative advantages (GRPO); see `policies.rl.on_policy.advantages`."""

    size: Count = 8
    """Trajectories per group, all from one initial state."""
    drop_alike: bool = True
    """Whether groups with equal outcomes are dropped; they count as rows but carry no gradient."""
    length_norm: bool = True
    """Whether every trajectory has the same weight regardless of its length."""
    outcomes: tuple[Outcome, ...] = ("return",)
    """Outcomes of a trajectory, normalised one by one: `return` is its summed reward, `success` 1
    if it solved the task, `brevity` the remaining share of its time limit if it did."""
    weights: tuple[NonNegative, ...] = ()
    """Weights of the outcomes; empty gives each the weight 1."""


RELEASED_CHAIN = ChainConfig(
    min_std=0.1,
    min_log_prob_std=0.1,
    noise_clip=3.0,
    log_prob_min=-5.0,
    log_prob_max=2.0,
    reduce="mean",
)
"""Noise and log-probabilities as in the released code of DPPO."""


@config
class DppoConfig:
    """Options of the denoising chain that DPPO trains."""

    steps: Count = 5
    """Denoising steps K: DDIM steps with DDPM's noise, or flow-SDE steps. Released: 20 DDPM steps,
    5 DDIM steps for images."""
    frozen_steps: Whole = 0
    """Number of first denoising steps that keep the initial weights. Released: 10 of 20 for
    state-based tasks, 0 of 5."""
    chain: ChainConfig = field(default_factory=lambda: RELEASED_CHAIN)
    """Noise of the chain and the definition of its log-probability."""
    flow_noise: NonNegative = 0.5
    """Noise level of the flow-SDE."""


@config
class LearnedNoiseConfig:
    """Options of the noise that ReinFlow learns (arXiv 2505.22094); see
    `policies.rl.on_policy.learned_noise`. The defaults are those of the Franka Kitchen in the
    released code, whose actions are in [-1, 1]."""

    low: Positive = 0.1
    """Lower bound of the standard deviation [normalised units]."""
    high: Positive = 0.24
    """Upper bound of the standard deviation [normalised units]."""
    clip: Positive = 3.0
    """Bound on each standard normal number drawn for a step."""
    hidden: tuple[Count, ...] = (64, 64)
    """Hidden units of the network that predicts the standard deviation from observation and
    step."""

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise HandoffError(
                f"reinflow: noise.low is {self.low:g} and noise.high {self.high:g}, expected low up to high. Are the "
                "two swapped?"
            )


@config
class FlowNoiseConfig:
    """Options of the noise that makes flow steps stochastic during fine-tuning; see
    `policies.rl.on_policy.flow_actor`."""

    kind: Literal["sde", "learned"] = "sde"
    """Source of the noise: `sde` is Flow-SDE at the level `sde_noise`, `learned` is Flow-Noise,
    whose standard deviation a network predicts (pi_RL)."""
    steps: Count = 4
    """Sampler steps K during fine-tuning and at inference afterwards."""
    sde_noise: NonNegative = 0.5
    """Noise level of the SDE; 0.2 was unstable."""
    one_step: bool = True
    """Whether only one SDE step per decision is stochastic, which halves the time of an update."""
    low: Finite = 0.08
    """Lower bound of the learned standard deviation [normalised units]."""
    high: Finite = 0.16
    """Upper bound of the learned standard deviation [normalised units]."""
    hidden: Count = 128
    """Hidden units of the network that predicts the standard deviation."""

    def __post_init__(self) -> None:
        if (
            self.steps < 1
            or not 0.0 < self.low <= self.high
            or (self.kind == "sde" and not self.sde_noise > 0.0)
        ):
            raise HandoffError(
                f"finetune: flow noise has sde_noise {self.sde_noise}, low {self.low}, high {self.high} and "
                f"{self.steps} steps; expected sde_noise > 0, 0 < low <= high, and at least 1 step."
            )
