"""Everything a correction session can be told; each stage has a configuration of its own, so that
its cache key is."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from flows.session.config import HilOperator, HilWorld
from policies.distillation.config import DistilConfig
from policies.export.onnx import ExportConfig
from policies.imitation.config import PretrainConfig
from policies.networks.config import MlpConfig
from policies.policy_config import BehaviourCloningConfig, DiffusionPolicyConfig
from policies.rewards.config import ClassifierConfig, TrainSuccessConfig
from policies.rl.hil.config import Difference, LearnerConfig, ScaledTanhFeature
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
    """Stage `demonstrations`."""

    world: HilWorld = field(default_factory=HilWorld)
    """Task, observations and actions of the environment."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator who demonstrates."""
    episodes: int = 20
    """Successful ones; SERL and HIL-SERL ask for 20 to 30 [C]."""
    first_seed: int = DEMONSTRATIONS.start
    """Seed of the first attempt's start; the next attempt takes the next."""


@config
class ClassifyConfig:
    """Stage `classifier`: labelled states, the classifier, and what it is worth on states that a
    policy made."""

    world: HilWorld = field(default_factory=HilWorld)
    """Task, observations and actions of the environment."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator whose episodes are labelled."""
    positives: int = 200
    """States of success from demonstrations, at least [C]."""
    linger: int = 10
    """Control periods that an episode goes on after its first success: states of success are what
    is short."""
    policy_episodes: int = 60
    """A quarter each of a policy cloned from the demonstrations, of the clone with corrections, of
    chance, and of the expert who leaves success, waits and returns. They give the hard negatives,
    and the held-out states on which the classifier is judged."""
    first_seed: int = CLASSIFIER.start
    """Seed of the first episode's start."""
    train: TrainSuccessConfig = field(
        default_factory=lambda: TrainSuccessConfig(
            classifier=ClassifierConfig(
                fields=("grasp_pose", "goal", "dq"),
                differences=(("grasp_pose", "goal"),),
                differences_only=True,
            ),
            training=TrainingConfig(steps=1500, learning_rate=1e-3),
            precision=0.9,
            lowest_threshold=0.9,
        )
    )
    """Classifier and its training."""


@config
class CorrectConfig:
    """Stage `train`: an actor that a person corrects, and a learner, side by side."""

    world: HilWorld = field(default_factory=HilWorld)
    """Task, observations and actions of the environment."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator who corrects."""
    reward: Literal["classifier", "task"] = "classifier"
    """What success is told by: the classifier's detector, or the simulated task itself."""
    differences: tuple[Difference, ...] = (Difference(field="grasp_pose", other="goal"),)
    """What must not have to be learned."""
    close_ups: tuple[ScaledTanhFeature, ...] = ()
    """What must be seen more finely than its range."""
    steps: int = 20_000
    """Control steps of training."""
    speed: float = 1.0
    """Speed of the actor in units of real time; 0 does not pace it."""
    sac: SacConfig = field(default_factory=SacConfig)
    """Options of the SAC learner."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """Size, discount and sampling of the replay buffer."""
    demo_capacity: int = 50_000
    """Steps of demonstrations and corrections that are kept."""
    online: OnlineConfig = field(
        default_factory=lambda: OnlineConfig(minibatches=2, updates_per_step=4.0)
    )
    """Updates that are owed when the steps are made are still made, so their number is finite."""
    backlog: int | None = None
    """Updates that the learner may be behind before the actor holds still; None never stops the
    actor, as must be with an arm or a person. A simulated session then learns the same amount on
    any machine."""
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(port=0))
    """Port, updates per step and saving of the learner's process."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """Exploration and limits of the actor's process."""
    seed: int = 0
    """Seed of weights, exploration and starts."""


@config
class RolloutConfig:
    """Stage `rollouts`: successful episodes of the learned policy, to learn from (RLDG, arXiv
    2412.09858)."""

    world: HilWorld = field(default_factory=HilWorld)
    """Task, observations and actions of the environment."""
    episodes: int = 100
    """Successful ones that are kept."""
    least_success: float = 0.2
    """Success rate below which the stage gives up rather than go on for hours."""
    first_seed: int = ROLLOUTS.start
    """Seed of the first attempt's start."""


@config
class HilConfig:
    """A session from no data to a gated policy."""

    world: HilWorld = field(default_factory=HilWorld)
    """Environment of every stage and of the operator; it replaces what they state themselves."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator of every stage."""
    seed: int = 0
    """Seed of the whole session, added to the seeds of learners and environments. The protocol's
    starts do not depend on it."""
    protocol: str | None = None
    """Protocol of the evaluations, a name in `configs/protocol/` or a path; None takes that of the
    session's own name."""
    demonstrations: DemonstrateConfig = field(default_factory=DemonstrateConfig)
    """Stage in which the operator demonstrates."""
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
    """Policy cloned from the demonstrations, whose states are the classifier's hard negatives.
    Without `observation_fields` it observes what the learner does; so does `pretrain`."""
    classifier: ClassifyConfig = field(default_factory=ClassifyConfig)
    """Stage in which success is labelled."""
    train: CorrectConfig = field(default_factory=CorrectConfig)
    """Stage in which the learner is corrected."""
    evaluation_episodes: int = 100
    """Episodes of the protocol, for the learned policy and for the student."""
    evaluate: EvaluateConfig = field(default_factory=lambda: EvaluateConfig(videos=2))
    """Environments, videos and interval of the evaluations."""
    distilled: bool = True
    """Whether the session goes on to a distilled, exported and gated policy (RLDG)."""
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
    """Stage that records rollouts of the learned policy."""
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
        default_factory=lambda: DistilConfig(training=_short(), targets=131_072)
    )
    """Distillation of that policy to one step."""
    export: ExportConfig = field(
        default_factory=lambda: ExportConfig(action_interface="cartesian_delta")
    )
    """Export of the student."""
    gate: GateConfig = field(default_factory=GateConfig)
    """Thresholds of the release gate."""


def _short() -> TrainingConfig:
    return TrainingConfig(steps=4_000, learning_rate=1e-3, decay_fraction=0.7)
