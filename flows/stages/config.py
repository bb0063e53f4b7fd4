"""Options of the stages that simulate, beside those of what they call."""

from __future__ import annotations

from dataclasses import field

from policies.distillation.config import OnPolicyDistilConfig
from policies.rl.finetuning.config import FinetuneConfig, VlaPracticeConfig
from policies.rl.off_policy.fast_td3_config import ReinforceConfig
from robots.config import config
from robots.errors import HandoffError
from robots.franka import RobotName
from robots.seed_ranges import DEMONSTRATIONS, PLAY
from sim.evaluation.protocol import Protocol
from sim.processes.config import PlacementConfig
from sim.recording.play import ExpertDemonstrationsConfig, PlayConfig


@config
class ScriptedConfig:
    """Which task, and how often it is shown."""

    task: str = "reach"
    """Name of the task."""
    robot: RobotName = "fr3"
    """The arm that does the task."""
    episodes: int = 50
    """Attempts; those that fail are left out."""
    first_seed: int = DEMONSTRATIONS.start
    """Seed of the first start; those of protocols lie above."""
    demonstrate: ExpertDemonstrationsConfig = field(default_factory=ExpertDemonstrationsConfig)
    """Episodes, seeds and noise of the scripted expert."""


@config
class RecordPlayConfig:
    """With what, and for how long."""

    task: str = "open_drawer"
    """Name of the task."""
    robot: RobotName = "fr3"
    """The arm that plays."""
    episodes: int = 400
    """Episodes of play to record."""
    first_seed: int = PLAY.start
    """Seed of the first start; those of demonstrations and of protocols lie below."""
    play: PlayConfig = field(default_factory=lambda: PlayConfig(steps=250))
    """Length and behaviour of an episode of play."""


@config
class FinetunePolicyConfig:
    """Where a policy practises, and how."""

    protocol: Protocol | None = None
    """Its worlds, time limit and chunks; its seeds are not practised on, they are for evaluation.
    None takes that of the pipeline's evaluations. In dreams it gives the time limit."""
    worlds: int = 50
    """Stepped together."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """Where they are simulated, if they are not dreamt."""
    learning: FinetuneConfig = field(default_factory=FinetuneConfig)
    """Algorithm, rewards and rollouts of the fine-tuning."""

    def __post_init__(self) -> None:
        if self.placement.kind == "hybrid" and not isinstance(
            self.learning.practice, VlaPracticeConfig
        ):
            raise HandoffError(
                f"finetune: hybrid placement of a practice of the kind '{self.learning.practice.kind}', which decides "
                "for all worlds at once; expected 'vla', or disaggregated worlds."
            )


@config
class ReinforcePolicyConfig:
    """Where it is learned, and how."""

    protocol: Protocol | None = None
    """Its worlds and time limit; its seeds are not practised on, they are for evaluation. None
    takes that of the pipeline's evaluations."""
    worlds: int = 128
    """Stepped together; 128 in FastTD3's code for HumanoidBench, 4,096 in PQL's."""
    learning: ReinforceConfig = field(default_factory=ReinforceConfig)
    """Algorithm, environments and updates of RL from scratch."""


@config
class TeachConfig:
    """Where a student is taught, and how."""

    protocol: Protocol | None = None
    """Its worlds, time limit and chunks; its seeds are for evaluation alone. None takes that of the
    pipeline's evaluations."""
    worlds: int = 50
    """Stepped together."""
    learning: OnPolicyDistilConfig = field(default_factory=OnPolicyDistilConfig)
    """Loss, rollouts and updates of the distillation."""
