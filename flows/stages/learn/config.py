"""Defines the options of the stages that learn, as far as they are not those of the learner."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from flows.config.protocols import push_t_published
from flows.session.config import HilEnvConfig, HilOperator
from policies.distillation.config import DistilConfig, OnPolicyDistilConfig, ShortcutConfig
from policies.rewards.config import (
    ClassifierConfig,
    RecordedRewardConfig,
    RewardSource,
    TrainSuccessConfig,
)
from policies.rl.finetuning.config import FinetuneConfig, VlaFinetuneConfig
from policies.rl.from_scratch.config import FromScratchConfig
from policies.rl.offline.config import IqlConfig, OfflineAlgorithm, OfflineRunConfig
from policies.training.config import TrainingConfig
from policies.world_model.config import ImaginationConfig
from robots.config import Count, Seed, Whole, config
from robots.errors import HandoffError
from robots.seed_ranges import CLASSIFIER
from sim.evaluation.protocol import Protocol
from sim.identification.config import TuneStoreConfig
from sim.processes.config import PlacementConfig

TRAINING_TELEMETRY = ("*.jsonl", "preflight.json", "logs/*")
"""Files of a training that hold times: curves, the estimate of its cost, and logs for viewers."""


@config
class FinetunePolicyConfig(FinetuneConfig):
    """Environments and method of RL fine-tuning."""

    protocol: Protocol = field(default_factory=push_t_published)
    """Protocol that defines environments, time limit and chunks; its seeds are used for evaluation
    only. In imagination it defines the time limit alone."""
    num_envs: Count = 50
    """Number of parallel environments."""
    placement: PlacementConfig = field(default_factory=PlacementConfig)
    """Processes in which the environments are simulated; unused in imagination."""
    imagination: ImaginationConfig = field(default_factory=ImaginationConfig)
    """Reward of imagined rollouts, for a stage with the input `world_model`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.placement.kind == "hybrid" and not isinstance(self.algorithm, VlaFinetuneConfig):
            raise HandoffError(
                f"finetune: hybrid placement with the method '{self.algorithm.kind}', which runs inference "
                "for all environments at once; expected the method 'vla', or disaggregated placement."
            )


@config
class ReinforcePolicyConfig(FromScratchConfig):
    """Environments and algorithm of RL from scratch."""

    protocol: Protocol = field(default_factory=push_t_published)
    """Protocol that defines environments and time limit; its seeds are used for evaluation only."""
    num_envs: Count = 128
    """Number of parallel environments; 128 in FastTD3's code for HumanoidBench, 4,096 in PQL's. The
    algorithm stream_ac takes 1 and refuses more."""


@config
class DistilOnPolicyConfig(OnPolicyDistilConfig):
    """On-policy distillation in simulated environments."""

    kind: Literal["on_policy"] = "on_policy"
    protocol: Protocol = field(default_factory=push_t_published)
    """Protocol that defines environments, time limit and chunks; its seeds are used for evaluation
    only."""
    num_envs: Count = 50
    """Number of parallel environments."""


DistilAlgorithmConfig = Annotated[
    DistilConfig | ShortcutConfig | DistilOnPolicyConfig, Field(discriminator="kind")
]


@config
class DistilPolicyConfig:
    """Distillation of a teacher to a student."""

    algorithm: DistilAlgorithmConfig = field(default_factory=DistilConfig)
    """Way of the distillation: to one step by regression (`one_step`) or by self-distillation of a
    flow (`shortcut`), or on the student's own states (`on_policy`)."""


@config
class TuneArmConfig(TuneStoreConfig):
    """Tuning of the simulated arm to motions of the pipeline, or to a store from outside it."""

    store: str | None = None
    """Path of the episode store of a real arm's motions; None takes the input `demos`."""


@config
class ClassifyConfig:
    """Labelled states, training of the success classifier, and its evaluation
    on policy states."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    """Task, observations and actions of the environment. Its `arm` is left aside: these states are
    collected in simulation."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator whose episodes are labelled. A person has `operator.seconds` for
    each, and their labels of success count beside the simulator's own success."""
    positives: Whole = 200
    """Minimum number of success states from demonstrations [C]."""
    linger: Whole = 10
    """Control periods that an episode continues after its first success, or after a person's label
    of success with the arm at rest, to record more success states."""
    policy_episodes: Whole = 60
    """Number of policy episodes: a quarter each of a policy cloned from the demonstrations, of the
    clone with corrections, of random actions, and of the expert, which leaves the success state,
    waits and returns. They provide the hard negatives, and the held-out states on which the
    classifier is evaluated."""
    first_seed: Seed = CLASSIFIER.start
    """Seed of the first episode's start."""
    train: TrainSuccessConfig = field(
        default_factory=lambda: TrainSuccessConfig(
            classifier=ClassifierConfig(
                fields=("grasp_pose", "goal", "dq"),
                relative_features=(("grasp_pose", "goal"),),
                relative_only=True,
            ),
            training=TrainingConfig(steps=1500, learning_rate=1e-3),
            precision=0.9,
            lowest_threshold=0.9,
        )
    )
    """The classifier and its training."""


@config
class OfflinePolicyConfig:
    """Offline RL on a recorded store."""

    algorithm: OfflineAlgorithm = field(default_factory=IqlConfig)
    """Algorithm and its options."""
    reward: RewardSource = field(default_factory=RecordedRewardConfig)
    """Source of the reward of the recorded steps."""
    training: OfflineRunConfig = field(default_factory=OfflineRunConfig)
    """Seed, threads, curve and checkpoints of the training."""
