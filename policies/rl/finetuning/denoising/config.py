"""Options of PPO over diffusion and flow policies; imports no torch.

Every default of FPO and ReinFlow names its source: [C] is the released code, [P] the paper.
"""

from __future__ import annotations

from dataclasses import field
from typing import ClassVar, Literal

from policies.rl.finetuning.base import FinetuneAlgorithm
from policies.rl.on_policy.config import DppoConfig, LearnedNoiseConfig, OnPolicyConfig, PpoConfig
from robots.config import Count, Positive, config
from robots.errors import HandoffError


@config
class DppoFinetuneConfig(FinetuneAlgorithm):
    """Options of PPO over denoising steps (DPPO, arXiv 2409.00588)."""

    kind: Literal["dppo"] = "dppo"
    denoising: DppoConfig = field(default_factory=DppoConfig)
    """Steps, noise and frozen part of the denoising chain."""
    learning: OnPolicyConfig = field(default_factory=OnPolicyConfig)
    """Losses, learning rates and epochs of PPO."""
    critic: tuple[Count, ...] = (256, 256, 256)
    """Hidden units of the critic, with Mish activations as in the released code."""

    def reward_discount(self) -> float:
        """See `FinetuneAlgorithm.reward_discount`."""
        return self.learning.discount


@config
class FpoFinetuneConfig(FinetuneAlgorithm):
    """Options of flow policy optimisation (FPO, arXiv 2507.21053): PPO whose ratio is that of
    flow-matching losses; see `policies.rl.finetuning.denoising.fpo_actor`. FPO++ (arXiv 2602.02481)
    is `per_sample: true`, `prediction: velocity` and `learning.ppo.negative: quadratic`."""

    trains_frozen_parts: ClassVar[bool] = True
    """Always True: adapters of the frozen backbone of a `vla` are trained further."""

    kind: Literal["fpo"] = "fpo"
    samples: Count = 8
    """Pairs of time and noise per decision, at which the flow-matching loss of its chunk is
    estimated before and after an update; 8 [C], 16 in FPO++."""
    per_sample: bool = False
    """Whether every pair has a ratio of its own, which is clipped by itself (FPO++), or a decision
    has one ratio, of the mean loss [C]."""
    times: Literal["sampler", "trained"] = "sampler"
    """Times of the pairs: drawn from those at which the sampler evaluates the velocity [C], or from
    all at which imitation trains it."""
    prediction: Literal["noise", "velocity"] = "noise"
    """Quantity whose squared error is the loss: the noise that follows from the predicted velocity,
    which weighs a velocity at time t by (1 - t)^2 [C], or the velocity itself (FPO++)."""
    reduce: Literal["mean", "sum"] = "mean"
    """Reduction of the squared error over the entries of a chunk; mean [C], sum [P]. Clip ranges
    do not transfer from one to the other."""
    loss_limit: Positive | None = None
    """Upper bound on the loss of a pair, beyond which it has no gradient, so that chunks with a
    negative advantage are not pushed away without end (FPO++). None sets no bound."""
    steps: Count | None = None
    """Sampler steps of the policy, during fine-tuning and afterwards; None keeps its own number. 10
    [C]."""
    learning: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            ppo=PpoConfig(clip=0.05),
            clip_min=None,
            denoising_discount=1.0,
            epochs=16,
            batch_size=7500,
            actor_learning_rate=3e-4,
            critic_learning_rate=3e-4,
            target_kl=None,
        )
    )
    """Losses, learning rates and epochs of PPO: clip, epochs and rates [C]."""
    critic: tuple[Count, ...] = (256, 256, 256)
    """Hidden units of the critic, with Mish activations; five layers of 256 [C]."""

    def __post_init__(self) -> None:
        _check_one_step("fpo", self.learning)
        if self.learning.entropy_coef > 0.0:
            raise HandoffError(
                f"fpo: learning.entropy_coef is {self.learning.entropy_coef:g}, expected 0. Flow-matching losses have "
                "no entropy; 'reinflow' and 'dppo' explore by noise."
            )

    def reward_discount(self) -> float:
        """See `FinetuneAlgorithm.reward_discount`."""
        return self.learning.discount


@config
class ReinFlowFinetuneConfig(FinetuneAlgorithm):
    """Options of ReinFlow (arXiv 2505.22094): PPO over a flow whose Euler steps have learned noise;
    see `policies.rl.finetuning.denoising.reinflow_actor`."""

    kind: Literal["reinflow"] = "reinflow"
    steps: Count = 4
    """Sampler steps during fine-tuning and afterwards [C]."""
    noise: LearnedNoiseConfig = field(default_factory=LearnedNoiseConfig)
    """Bounds and network of the learned noise."""
    reduce: Literal["mean", "sum"] = "mean"
    """Reduction of the log-probability over the entries and steps of a chain; mean [C], sum [P].
    Clip ranges do not transfer from one to the other."""
    learning: OnPolicyConfig = field(
        default_factory=lambda: OnPolicyConfig(
            ppo=PpoConfig(clip=0.01),
            clip_min=None,
            denoising_discount=1.0,
            epochs=10,
            batch_size=5600,
            actor_learning_rate=4.5e-5,
            critic_learning_rate=6.5e-4,
            target_kl=0.01,
            critic_warmup_rollouts=0,
            entropy_coef=0.03,
        )
    )
    """Losses, learning rates and epochs of PPO as in the Franka Kitchen [C]. `bc_weight` weighs the
    squared distance to chunks of the initial policy; 0.1 to 1 in the ablations [C]."""
    critic: tuple[Count, ...] = (256, 256, 256)
    """Hidden units of the critic, with Mish activations [C]."""

    def __post_init__(self) -> None:
        _check_one_step("reinflow", self.learning)

    def reward_discount(self) -> float:
        """See `FinetuneAlgorithm.reward_discount`."""
        return self.learning.discount


def _check_one_step(kind: str, learning: OnPolicyConfig) -> None:
    """Refuses options of single denoising steps, which a ratio of the whole sampler does not have.

    Raises:
        HandoffError: one of them is set.
    """
    if learning.clip_min is not None or learning.denoising_discount != 1.0:
        raise HandoffError(
            f"{kind}: learning.clip_min is {learning.clip_min} and learning.denoising_discount "
            f"{learning.denoising_discount:g}, expected null and 1: a decision has one ratio for all sampler steps, "
            "not one per step as in 'dppo'."
        )
