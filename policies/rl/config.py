"""Options of the reinforcement learners. Imports without torch.

Every default names its source. [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from typing import Literal

from robots.config import config


@config
class MlpSizes:
    """A plain network: layers of Linear, LayerNorm if wanted, activation."""

    hidden: tuple[int, ...] = (256, 256)
    """Units of every hidden layer."""
    activation: Literal["tanh", "relu"] = "tanh"
    """tanh in HIL-SERL [C], relu in RLPD [C]."""
    layer_norm: bool = True
    """LayerNorm before the activation; without it a critic overestimates what the demonstrations do not cover
    (RLPD, arXiv 2302.02948)."""


@config
class GripperConfig:
    """A hand whose commands are learned by a critic of their own (HIL-SERL, arXiv 2410.21845)."""

    network: MlpSizes = MlpSizes()
    """Observation to one value per command: 0 close, 1 hold, 2 open."""
    toggle_penalty: float = -0.02
    """Added to the reward of this critic, and of no other, where the hand is told to turn round [C: USB task]."""
    learning_rate: float = 3e-4


@config
class SacConfig:
    """Soft actor-critic (Haarnoja et al. 2018) with the options of its family; the defaults are HIL-SERL's [C]."""

    kind: Literal["sac"] = "sac"
    critic: MlpSizes = MlpSizes()
    actor: MlpSizes = MlpSizes()
    critics: int = 2
    """Members of the ensemble. 10 in RLPD, SERL and WSRL [C]."""
    subset: int | None = None
    """Members, drawn anew for every minibatch, over which the target takes the minimum (REDQ); None takes all.
    2 in RLPD, 1 on pixels [C]."""
    actor_value: Literal["mean", "min"] = "mean"
    """What the actor climbs: `mean` of all members (RLPD, HIL-SERL [C]), or their `min` (SAC [P])."""
    backup_entropy: bool = False
    """Whether the target holds the entropy of the next action. True in SAC [P] and RLPD's locomotion [C]."""
    learning_rate: float = 3e-4
    """Of the critics (Adam)."""
    actor_learning_rate: float = 3e-4
    temperature_learning_rate: float = 3e-4
    tau: float = 0.005
    """Share of the critics that every critic update moves into their targets (Polyak)."""
    init_temperature: float = 0.01
    """1e-2 in HIL-SERL, 1 in RLPD [C]."""
    target_entropy: float | None = None
    """[nat]; None takes minus half the number of continuous entries of an action (RLPD, HIL-SERL [C])."""
    log_std_min: float = -11.5
    """exp(-11.5) = 1e-5: HIL-SERL bounds the deviation by 1e-5 and 5 [C]; RLPD its logarithm by -20 and 2 [C]."""
    log_std_max: float = 1.6
    fixed_std: float | None = None
    """Deviation of a Gaussian before tanh that is not learned; None learns one per state."""
    gsde: int = 0
    """Steps for which exploration keeps its noise (gSDE, arXiv 2005.05719); 0 is not gSDE: a draw per step."""
    gsde_log_std_init: float = -2.0
    """Of gSDE's deviations per feature [C: -2 and -3]."""
    final_scale: float = 1.0
    """Factor on the initial weights of the actor's last layer; 1e-2 in WSRL [C]."""
    gripper: GripperConfig | None = None
    """Makes the last entry of an action a command of the hand: -1 close, 0 hold, 1 open; None leaves it continuous."""


@config
class Sizes:
    """What the data give a learner."""

    observation: int
    """O, entries of the observation vector."""
    action: int
    """A, entries of an action, the hand's among them; for chunks entries of all actions of a chunk."""
    differences: tuple[tuple[int, int, int, float], ...] = ()
    """(begin, other, count, scale): entries `begin..begin+count` minus `other..other+count`, divided by `scale`, are
    shown to the networks beside the vector: where the hand is, seen from the cube, must not have to be learned."""
    pictures: tuple[tuple[str, int, int], ...] = ()
    """(name, height, width) of every camera."""
