"""Defines all options of a HIL session, by stage, because each stage has its own cache key."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from flows.session.config import HilEnvConfig, HilOperator
from policies.distillation.config import DistilConfig
from policies.export.onnx import ExportConfig
from policies.imitation.config import PretrainConfig
from policies.networks.config import MlpConfig
from policies.policy_config import BehaviourCloningConfig, DiffusionPolicyConfig
from policies.rewards.config import ClassifierConfig, TrainSuccessConfig
from policies.rl.hil.config import LearnerConfig, RelativeFeature, ScaledTanhFeature
from policies.rl.off_policy.config import OnlineConfig, SacConfig
from policies.rl.replay.config import ReplayConfig
from policies.training.config import TrainingConfig
from real.deploy.release_gate import GateConfig
from real.hil.actor import ActorConfig
from robots.config import config
from robots.seed_ranges import CLASSIFIER, DEMONSTRATIONS, ROLLOUTS
from sim.evaluation.evaluate import EvaluateConfig


@config
class DemonstrateConfig:
    """Stage `demonstrations`: records successful demonstrations."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    """Task, observations and actions of the environment."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator who demonstrates."""
    episodes: int = 20
    """Number of successful demonstrations; SERL and HIL-SERL use 20 to 30 [C]."""
    first_seed: int = DEMONSTRATIONS.start
    """Seed of the first attempt's start; it increases by 1 per attempt."""


@config
class ClassifyConfig:
    """Stage `classifier`: labelled states, training of the success classifier, and its evaluation
    on policy states."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    """Task, observations and actions of the environment."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator whose episodes are labelled."""
    positives: int = 200
    """Minimum number of success states from demonstrations [C]."""
    linger: int = 10
    """Control periods that an episode continues after its first success, to record more success
    states."""
    policy_episodes: int = 60
    """Number of policy episodes: a quarter each of a policy cloned from the demonstrations, of the
    clone with corrections, of random actions, and of the expert, which leaves the success state,
    waits and returns. They provide the hard negatives, and the held-out states on which the
    classifier is evaluated."""
    first_seed: int = CLASSIFIER.start
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
class CorrectConfig:
    """Stage `train`: an actor that a person corrects, and a learner, in parallel."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    """Task, observations and actions of the environment."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator who corrects."""
    reward: Literal["classifier", "task"] = "classifier"
    """Source of the success signal: the success classifier, or the simulated task."""
    relative_features: tuple[RelativeFeature, ...] = (
        RelativeFeature(field="grasp_pose", other="goal"),
    )
    """Differences of observation fields that are added to the learner's input."""
    scaled_features: tuple[ScaledTanhFeature, ...] = ()
    """Fields that are added to the learner's input at a finer scale than their range."""
    steps: int = 20_000
    """Control steps of training."""
    speed: float = 1.0
    """Speed of the actor in units of real time; 0 runs at full speed."""
    sac: SacConfig = field(default_factory=SacConfig)
    """Options of the SAC learner."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Size, discount and sampling of the replay buffer."""
    demo_capacity: int = 50_000
    """Capacity of the buffer for demonstrations and corrections [steps]."""
    online: OnlineConfig = field(
        default_factory=lambda: OnlineConfig(minibatches=2, updates_per_step=4.0)
    )
    """Updates per environment step. Updates still due after the last step are made before training
    ends."""
    backlog: int | None = None
    """Number of overdue updates at which the actor pauses; None never pauses it, as an arm or a
    person requires. With a limit, a simulated session makes the same updates on any machine."""
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(port=0))
    """Port, updates per step and saving of the learner's process."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """Exploration and limits of the actor's process."""
    seed: int = 0
    """Seed of weights, exploration and starts."""


@config
class RolloutConfig:
    """Stage `rollouts`: successful episodes of the trained policy, as training data (RLDG, arXiv
    2412.09858)."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    """Task, observations and actions of the environment."""
    episodes: int = 100
    """Number of successful episodes to record."""
    least_success: float = 0.2
    """Success rate below which the stage stops with an error."""
    first_seed: int = ROLLOUTS.start
    """Seed of the first attempt's start."""


@config
class HilConfig:
    """A session from demonstrations to a gated policy."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    """Environment of every stage and of the operator; overrides the environments of the stages."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator of every stage."""
    seed: int = 0
    """Seed of the whole session, added to the seeds of learners and environments. The protocol's
    starts do not depend on it."""
    protocol: str | None = None
    """Protocol of the evaluations, a name in `configs/protocol/` or a path; None takes the one with
    the session's name."""
    demonstrations: DemonstrateConfig = field(default_factory=DemonstrateConfig)
    """Stage that records demonstrations."""
    clone: PretrainConfig = field(
        default_factory=lambda: PretrainConfig(
            policy=BehaviourCloningConfig(
                observation_fields=(),
                anchor_field=None,
                head="mse",
                hidden=(256, 256),
                horizon=1,
                n_action_steps=1,
            ),
            training=TrainingConfig(steps=1500, learning_rate=1e-3),
        )
    )
    """Policy cloned from the demonstrations; its states are hard negatives of the classifier.
    Without `observation_fields` it has the learner's observation, as does `pretrain`."""
    classifier: ClassifyConfig = field(default_factory=ClassifyConfig)
    """Stage that trains the success classifier."""
    train: CorrectConfig = field(default_factory=CorrectConfig)
    """Stage of RL with corrections."""
    evaluation_episodes: int = 100
    """Number of evaluation episodes, for the trained policy and for the student."""
    evaluate: EvaluateConfig = field(default_factory=lambda: EvaluateConfig(videos=2))
    """Environments, videos and interval of the evaluations."""
    distilled: bool = True
    """Whether the session continues to a distilled, exported and gated policy (RLDG)."""
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    """Stage that records rollouts of the trained policy."""
    pretrain: PretrainConfig = field(
        default_factory=lambda: PretrainConfig(
            policy=DiffusionPolicyConfig(
                observation_fields=(),
                anchor_field=None,
                horizon=8,
                n_action_steps=4,
                network=MlpConfig(width=256),
            ),
            training=TrainingConfig(steps=8_000, learning_rate=1e-3),
        )
    )
    """Training of the diffusion policy on these rollouts."""
    distil: DistilConfig = field(
        default_factory=lambda: DistilConfig(training=_distil_training(), targets=131_072)
    )
    """Distillation of that policy to one step."""
    export: ExportConfig = field(
        default_factory=lambda: ExportConfig(action_interface="cartesian_delta")
    )
    """Export of the student."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Thresholds of the release gate."""


def _distil_training() -> TrainingConfig:
    return TrainingConfig(steps=4_000, learning_rate=1e-3, decay_fraction=0.7)
