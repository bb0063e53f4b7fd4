"""Options of the reinforcement learners. Imports without torch.

Every default names its source. [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from typing import Literal

from policies.rl.networks.config import EncoderConfig, MlpSizes
from robots.config import config


@config
class GripperConfig:
    """A hand whose commands are learned by a critic of their own (HIL-SERL, arXiv 2410.21845)."""

    network: MlpSizes = MlpSizes()
    """Observation to one value per command: 0 close, 1 hold, 2 open."""
    toggle_penalty: float = -0.02
    """Added to the reward of this critic, and of no other, where the hand is told to turn round [C:
    USB task]."""
    learning_rate: float = 3e-4
    """Learning rate of the gripper's critic."""


@config
class GuidanceConfig:
    """Holds the actor near what people did, ever more loosely (`policies.rl.off_policy.sac_bc`);
    not in HIL-SERL."""

    first: float = 50.0
    """Weight of the squared distance at the first update."""
    last: float = 5.0
    """Weight from update `updates` on; it changes geometrically in between."""
    updates: int = 20_000
    """Updates of the actor until then."""
    margin: float = 0.1
    """Margin by which the gripper's critic should value a person's command above the others (DQfD,
    arXiv 1704.03732); 0 has no effect."""


@config
class SacConfig:
    """Soft actor-critic (Haarnoja et al. 2018) with the options of its family; the defaults are
    HIL-SERL's [C]."""

    kind: Literal["sac"] = "sac"
    critic: MlpSizes = MlpSizes()
    """Sizes of a critic."""
    actor: MlpSizes = MlpSizes()
    """Sizes of the actor."""
    critics: int = 2
    """Members of the ensemble. 10 in RLPD, SERL and WSRL [C]."""
    subset: int | None = None
    """Members, drawn anew for every minibatch, over which the target takes the minimum (REDQ); None
    takes all. 2 in RLPD, 1 on pixels [C]."""
    actor_value: Literal["mean", "min"] = "mean"
    """What the actor climbs: `mean` of all members (RLPD, HIL-SERL [C]), or their `min` (SAC
    [P])."""
    backup_entropy: bool = False
    """Whether the target holds the entropy of the next action. True in SAC [P] and RLPD's
    locomotion [C]."""
    learning_rate: float = 3e-4
    """Learning rate of the critics (Adam)."""
    actor_learning_rate: float = 3e-4
    """Learning rate of the actor (Adam)."""
    temperature_learning_rate: float = 3e-4
    """Learning rate of the temperature (Adam)."""
    tau: float = 0.005
    """Share of the critics that every critic update moves into their targets (Polyak)."""
    init_temperature: float = 0.01
    """1e-2 in HIL-SERL, 1 in RLPD [C]."""
    target_entropy: float | None = None
    """[nat]; None takes minus half the number of continuous entries of an action (RLPD, HIL-SERL
    [C])."""
    log_std_min: float = -11.5
    """exp(-11.5) = 1e-5: HIL-SERL bounds the deviation by 1e-5 and 5 [C]; RLPD its logarithm by -20
    and 2 [C]."""
    log_std_max: float = 1.6
    """Upper bound of the log standard deviation."""
    fixed_std: float | None = None
    """Deviation of a Gaussian before tanh that is not learned; None learns one per state."""
    gsde: int = 0
    """Steps for which exploration keeps its noise (gSDE, arXiv 2005.05719); 0 is not gSDE: a draw
    per step."""
    gsde_log_std_init: float = -2.0
    """Initial log standard deviation of gSDE per feature [C: -2 and -3]."""
    gsde_learn_features: bool = False
    """Whether the variance of gSDE's exploration shapes the features too; False in PPO and A2C,
    True in SAC [C]."""
    gsde_expln: bool = False
    """Deviations of gSDE grow like a logarithm above 1 rather than like an exponential [P]."""
    final_scale: float = 1.0
    """Factor on the initial weights of the actor's last layer; 1e-2 in WSRL [C]."""
    actor_ema: float | None = None
    """Bound on the share of itself that a running mean of the weights of actor and hand's critic
    keeps per update; the policy acts with that mean, the learner learns with the newest. None acts
    with the newest, as HIL-SERL."""
    gripper: GripperConfig | None = None
    """Makes the last entry of an action a command of the hand: -1 close, 0 hold, 1 open; None
    leaves it continuous."""
    guidance: GuidanceConfig | None = None
    """Holds the actor near demonstrations and corrections; None does not, as HIL-SERL."""
    encoder: EncoderConfig = EncoderConfig()
    """Encoder of images; has no effect without images."""


@config
class OnlineConfig:
    """How acting and learning take turns."""

    batch_size: int = 256
    """Transitions per minibatch, those of demonstrations among them."""
    demo_share: float = 0.5
    """Share of every minibatch from the demonstration buffer (RLPD, HIL-SERL [C]); 0 does
    without."""
    updates_per_step: float = 1.0
    """Updates (each of `minibatches`) per step of the environment; fractions add up exactly."""
    minibatches: int = 1
    """Critic steps per update: 20 in RLPD, 2 in HIL-SERL [C]."""
    training_starts: int = 100
    """Steps without an update at the start; HIL-SERL 100, RLPD 5,000 [C]."""
    random_steps: int = 0
    """Steps at the start whose actions are uniform; SERL 300, HIL-SERL 0 [C]."""
