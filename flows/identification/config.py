"""Defines the options of the stages that identify a robot behind its network protocol."""

from __future__ import annotations

from dataclasses import field, replace

from flows.session.simulated_arm import twin_arm
from real.franka.config import FrankaConfig
from real.franka.impedance import ImpedanceConfig
from robots.config import Delay, OpenShare, Seed, config
from robots.errors import HandoffError
from sim.identification.config import MotionsConfig
from sim.scene.deviations import Deviations
from sim.twin.twin import TwinConfig


def _joint_arm() -> FrankaConfig:
    return replace(twin_arm(), impedance=ImpedanceConfig(controller="joint"))


@config
class ExciteArmConfig(MotionsConfig):
    """Exciting motions of the twin under the joint law of the arm's driver."""

    twin: TwinConfig = field(default_factory=TwinConfig)
    """The simulated robot and its network."""
    arm: FrankaConfig = field(default_factory=_joint_arm)
    """Joint law, limits and connection of the arm's driver; the address is the twin's."""
    settle: Delay = 2.0
    """Time before a recording in which the arm comes to rest under its load [s]."""

    def __post_init__(self) -> None:
        law = self.arm.impedance.controller or "left to the policy's actions"
        if law != "joint":
            raise HandoffError(
                f"excite_arm: arm.impedance.controller is '{law}', expected 'joint', the law that tuning replays."
            )


@config
class CompareDeploymentsConfig:
    """Comparison of deployments from the same starts, and of tuned parameters with true ones."""

    deviations: Deviations = Deviations()
    """Values of the twin at which the deployments ran, with which tuned ones are compared; without
    any, the table of parameters is left out."""
    confidence: OpenShare = 0.95
    """Two-sided confidence of the intervals."""
    seed: Seed = 0
    """Seed of the intervals' resampling."""
