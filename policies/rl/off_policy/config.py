"""Options of SAC, its variants and the online training loop. Imports no torch.

Every default names its source. [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from policies.rl.networks.config import EncoderConfig, MlpSizes
from robots.config import (
    Count,
    Finite,
    LearningRate,
    NonNegative,
    Positive,
    Share,
    ShareBelowOne,
    Whole,
    config,
)
from robots.errors import HandoffError


@config
class GripperConfig:
    """Discrete gripper commands, learned by a separate critic (HIL-SERL, arXiv 2410.21845)."""

    network: MlpSizes = MlpSizes()
    """Layers of the gripper's critic, which has one output per command: 0 close, 1 hold, 2 open."""
    toggle_penalty: Finite = -0.02
    """Reward added for each command that reverses the gripper, for this critic only [C: USB
    task]."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of the gripper's critic."""


@config
class GuidanceConfig:
    """Behaviour-cloning term of the actor, whose weight decays over training
    (`policies.rl.off_policy.sac_bc`); not part of HIL-SERL."""

    first: NonNegative = 50.0
    """Weight of the squared distance to the human action at the first update."""
    last: NonNegative = 5.0
    """Weight from update `updates` on; in between it decays geometrically."""
    updates: Whole = 20_000
    """Updates over which the weight decays."""
    margin: NonNegative = 0.1
    """Margin by which the gripper's critic should value the human command above the others (DQfD,
    arXiv 1704.03732); 0 disables this loss."""


@config
class SacOptions:
    """Options of soft actor-critic (Haarnoja et al. 2018) that do not depend on how it explores;
    the defaults are those of HIL-SERL [C]."""

    critic: MlpSizes = MlpSizes()
    """Layers of a critic."""
    actor: MlpSizes = MlpSizes()
    """Layers of the actor."""
    critics: Annotated[int, Field(ge=1)] = 2
    """Critics in the ensemble; 10 in RLPD, SERL and WSRL [C]."""
    subset: Annotated[int, Field(ge=1)] | None = None
    """Critics over which the Bellman target takes the minimum, sampled per minibatch (REDQ); None
    takes all. 2 in RLPD, 1 for images [C]."""
    actor_value: Literal["mean", "min"] = "mean"
    """Aggregate of the critics that the actor maximises: `mean` (RLPD, HIL-SERL [C]) or `min` (SAC
    [P])."""
    backup_entropy: bool = False
    """Whether the Bellman target includes the entropy of the next action; True in SAC [P] and in
    RLPD's locomotion tasks [C]."""
    learning_rate: LearningRate = 3e-4
    """Learning rate of the critics (Adam)."""
    actor_learning_rate: LearningRate = 3e-4
    """Learning rate of the actor (Adam)."""
    temperature_learning_rate: Annotated[float, Field(ge=0.0)] = 3e-4
    """Learning rate of the temperature (Adam); 0 keeps the initial one."""
    tau: Annotated[float, Field(gt=0.0, le=1.0)] = 0.005
    """Polyak step size of the target critics per critic update."""
    init_temperature: Annotated[float, Field(gt=0.0)] = 0.01
    """Initial temperature: 1e-2 in HIL-SERL, 1 in RLPD [C]."""
    target_entropy: Finite | None = None
    """Target entropy of the actor [nat]; None takes minus half the number of continuous entries of
    an action (RLPD, HIL-SERL [C])."""
    final_scale: NonNegative = 1.0
    """Factor on the initial weights of the actor's last layer; 1e-2 in WSRL [C]."""

    def __post_init__(self) -> None:
        check_subset("sac", self.subset, self.critics)


def check_subset(where: str, subset: int | None, critics: int) -> None:
    """Checks the number of critics over which a target takes the minimum.

    Raises:
        HandoffError: there are fewer critics.
    """
    if subset is not None and subset > critics:
        raise HandoffError(f"{where}: subset is {subset}, expected 1 to {critics} (critics).")


@config
class SacConfig(SacOptions):
    """SAC and its variants for demonstrations, corrections and images; the defaults are those of
    HIL-SERL [C]."""

    kind: Literal["sac"] = "sac"
    log_std_min: Finite = -11.5
    """Lower bound of the log standard deviation. HIL-SERL bounds the standard deviation by 1e-5 =
    exp(-11.5) and 5 [C]; RLPD bounds its logarithm by -20 and 2 [C]."""
    log_std_max: Finite = 1.6
    """Upper bound of the log standard deviation."""
    fixed_std: Positive | None = None
    """Fixed standard deviation of the Gaussian before tanh; None learns one per state."""
    actor_ema: ShareBelowOne | None = None
    """Upper bound of the decay of an exponential moving average of the weights of the actor and the
    gripper's critic. The policy acts with the average; training uses the current weights. None acts
    with the current weights, as in HIL-SERL."""
    gripper: GripperConfig | None = None
    """Options of discrete gripper commands as the last entry of an action: -1 close, 0 hold, 1
    open; None keeps all entries continuous."""
    encoder: EncoderConfig = EncoderConfig()
    """Image encoder; has no effect without images."""


@config
class GuidedSacConfig(SacConfig):
    """SAC with a behaviour-cloning term."""

    guidance: GuidanceConfig | None = None
    """Behaviour-cloning term towards demonstrations and corrections; None has none, as in
    HIL-SERL."""


@config
class GaussianExplorationConfig:
    """Exploration with independent noise at every step, whose standard deviation the actor learns
    per state."""

    kind: Literal["gaussian"] = "gaussian"
    log_std_min: Finite = -11.5
    """Lower bound of the log standard deviation before tanh; see `SacConfig.log_std_min`."""
    log_std_max: Finite = 1.6
    """Upper bound of the log standard deviation before tanh."""


@config
class GsdeConfig:
    """Generalised state-dependent exploration (gSDE, arXiv 2005.05719): noise that is a function of
    the state for several steps (`policies.rl.off_policy.gsde`)."""

    kind: Literal["gsde"] = "gsde"
    steps: Annotated[int, Field(ge=1)] = 8
    """Steps for which an environment keeps its exploration matrix [P: 4 to 64]."""
    log_std_init: Finite = -2.0
    """Initial log standard deviation per feature [C: -2 and -3]."""
    learn_features: bool = False
    """Whether gradients of the exploration variance reach the features; False in PPO and A2C, True
    in SAC [C]."""
    expln: bool = False
    """Whether standard deviations grow logarithmically instead of exponentially above 1 [P]."""


@config
class OnlineConfig:
    """Ratio of environment steps to updates, and composition of the minibatches."""

    batch_size: Count = 256
    """Transitions per minibatch, including those from demonstrations."""
    demo_share: Share = 0.5
    """Fraction of each minibatch from the demonstration buffer (RLPD, HIL-SERL [C]); 0 uses
    none."""
    updates_per_step: Positive = 1.0
    """Updates (each of `minibatches`) per environment step; fractions accumulate exactly."""
    minibatches: Count = 1
    """Critic steps per update: 20 in RLPD, 2 in HIL-SERL [C]."""
    training_starts: Whole = 100
    """Environment steps before the first update; HIL-SERL 100, RLPD 5,000 [C]."""


def updates_due(config: OnlineConfig, steps: int) -> int:
    """Number of updates due after `steps` environment steps in total.

    It depends only on the step count, so rounding and resumed runs add or lose no updates.
    """
    return math.floor(config.updates_per_step * max(0, steps - config.training_starts) + 1e-9)
