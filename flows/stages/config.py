"""Defines the options of the stages that simulate."""

from __future__ import annotations

from dataclasses import field

from policies.distillation.config import OnPolicyDistilConfig
from policies.rl.finetuning.config import FinetuneConfig, VlaFinetuneConfig
from policies.rl.off_policy.fast_td3_config import RlFromScratchConfig
from robots.config import config
from robots.errors import HandoffError
from robots.franka import RobotName
from robots.seed_ranges import DEMONSTRATIONS, PLAY
from sim.evaluation.protocol import Protocol
from sim.processes.config import PlacementConfig
from sim.recording.config import ExpertDemonstrationsConfig, PlayConfig


@config
class ScriptedConfig:
    """Demonstrations by the scripted expert of a simulated task."""

    task: str = "reach"
    """Name of the simulated task."""
    robot: RobotName = "fr3"
    """Arm that performs the task."""
    episodes: int = 50
    """Number of attempts; failed ones are not recorded."""
    first_seed: int = DEMONSTRATIONS.start
    """Seed of the first start; the seeds of protocols are higher."""
    demonstrate: ExpertDemonstrationsConfig = field(default_factory=ExpertDemonstrationsConfig)
    """Episodes, seeds and noise of the scripted expert."""


@config
class RecordPlayConfig:
    """Recording of play for a world model."""

    task: str = "open_drawer"
    """Name of the simulated task."""
    robot: RobotName = "fr3"
    """Arm that plays."""
    episodes: int = 400
    """Number of play episodes."""
    first_seed: int = PLAY.start
    """Seed of the first start; the seeds of demonstrations and protocols are lower."""
    play: PlayConfig = field(default_factory=lambda: PlayConfig(steps=250))
    """Length and behaviour of a play episode."""


@config
class FinetunePolicyConfig:
    """Environments and method of RL fine-tuning."""

    protocol: Protocol | None = None
    """Protocol that defines environments, time limit and chunks; its seeds are used for evaluation
    only. None takes the protocol of the pipeline's evaluations. In imagination it defines the time
    limit alone."""
    num_envs: int = 50
    """Number of parallel environments."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """Processes in which the environments are simulated; unused in imagination."""
    learning: FinetuneConfig = field(default_factory=FinetuneConfig)
    """Algorithm, rewards and rollouts of the fine-tuning."""

    def __post_init__(self) -> None:
        if self.placement.kind == "hybrid" and not isinstance(
            self.learning.algorithm, VlaFinetuneConfig
        ):
            raise HandoffError(
                f"finetune: hybrid placement with the method '{self.learning.algorithm.kind}', which runs inference "
                "for all environments at once; expected the method 'vla', or disaggregated placement."
            )


@config
class ReinforcePolicyConfig:
    """Environments and method of RL from scratch."""

    protocol: Protocol | None = None
    """Protocol that defines environments and time limit; its seeds are used for evaluation only.
    None takes the protocol of the pipeline's evaluations."""
    num_envs: int = 128
    """Number of parallel environments; 128 in FastTD3's code for HumanoidBench, 4,096 in PQL's."""
    learning: RlFromScratchConfig = field(default_factory=RlFromScratchConfig)
    """Algorithm, environments and updates of RL from scratch."""


@config
class DistilOnPolicyConfig:
    """Environments and loss of on-policy distillation."""

    protocol: Protocol | None = None
    """Protocol that defines environments, time limit and chunks; its seeds are used for evaluation
    only. None takes the protocol of the pipeline's evaluations."""
    num_envs: int = 50
    """Number of parallel environments."""
    learning: OnPolicyDistilConfig = field(default_factory=OnPolicyDistilConfig)
    """Loss, rollouts and updates of the distillation."""
