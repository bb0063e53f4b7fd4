"""Everything a correction session can be told; each stage has a configuration of its own, so that
its cache key is."""

from __future__ import annotations

from dataclasses import field
from typing import Literal

from flows.session.config import HilOperator, HilWorld
from policies.distillation.config import DistilConfig
from policies.export.onnx import ExportConfig
from policies.imitation.config import PretrainConfig
from policies.policy_config import BehaviourCloningConfig, DiffusionPolicyConfig, MlpConfig
from policies.rewards.config import ClassifierConfig, TrainSuccessConfig
from policies.rl.hil.config import LearnerConfig
from policies.rl.off_policy.config import GripperConfig, SacConfig
from policies.rl.off_policy.online import OnlineConfig
from policies.rl.replay.buffer import ReplayConfig
from policies.training.config import TrainingConfig
from real.deploy.release_gate import GateConfig
from real.hil.actor import ActorConfig
from robots.config import config
from sim.evaluation.evaluate import EvaluateConfig


@config
class Difference:
    """An observed vector, or its difference from another, that the learner is shown at a scale of
    its own as well."""

    field: str
    other: str | None = None
    """What is subtracted; None takes the vector itself."""
    entries: int = 3
    """Leading entries."""
    scale: float = 0.1
    """What becomes 1 [unit of the field]."""


@config
class CloseUp(Difference):
    """Likewise, but through tanh."""

    scale: float = 0.01
    """At which tanh bends [unit of the field]."""


@config
class DemonstrateConfig:
    """Stage `demonstrations`."""

    world: HilWorld = field(default_factory=HilWorld)
    operator: HilOperator = field(default_factory=HilOperator)
    episodes: int = 20
    """Successful ones; SERL and HIL-SERL ask for 20 to 30 [C]."""
    first_seed: int = 0
    """Of the first attempt's start; the next attempt takes the next."""


@config
class ClassifyConfig:
    """Stage `classifier`: labelled states, the classifier, and what it is worth on states that a
    policy made."""

    world: HilWorld = field(default_factory=HilWorld)
    operator: HilOperator = field(default_factory=HilOperator)
    positives: int = 200
    """States of success from demonstrations, at least [C]."""
    linger: int = 10
    """Control periods that an episode goes on after its first success: states of success are what
    is short."""
    policy_episodes: int = 60
    """A quarter each of a policy cloned from the demonstrations, of the clone with corrections, of
    chance, and of the expert who leaves success, waits and returns. They give the hard negatives,
    and the held-out states on which the classifier is judged."""
    first_seed: int = 20_000
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


@config
class CorrectConfig:
    """Stage `train`: an actor that a person corrects, and a learner, side by side."""

    world: HilWorld = field(default_factory=HilWorld)
    operator: HilOperator = field(default_factory=HilOperator)
    reward: Literal["classifier", "task"] = "classifier"
    """What success is told by: the classifier's detector, or the simulated task itself."""
    differences: tuple[Difference, ...] = (Difference(field="grasp_pose", other="goal"),)
    """What must not have to be learned."""
    close_ups: tuple[CloseUp, ...] = ()
    """What must be seen more finely than its range."""
    steps: int = 20_000
    """Control steps of training."""
    speed: float = 1.0
    """Of the actor, in units of real time; 0 does not pace it."""
    sac: SacConfig = field(default_factory=SacConfig)
    replay: ReplayConfig = field(default_factory=ReplayConfig)
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
    actor: ActorConfig = field(default_factory=ActorConfig)
    seed: int = 0


@config
class RolloutConfig:
    """Stage `rollouts`: successful episodes of the learned policy, to learn from (RLDG, arXiv
    2412.09858)."""

    world: HilWorld = field(default_factory=HilWorld)
    episodes: int = 100
    """Successful ones that are kept."""
    least_success: float = 0.2
    """Success rate below which the stage gives up rather than go on for hours."""
    first_seed: int = 40_000


@config
class HilConfig:
    """A session from no data to a gated policy."""

    world: HilWorld = field(default_factory=HilWorld)
    """Of every stage; what the stages themselves say of it does not count, nor of the operator."""
    operator: HilOperator = field(default_factory=HilOperator)
    seed: int = 0
    """Of the whole session: added to the seeds of learners and worlds. The protocol's starts do not
    depend on it."""
    protocol: str | None = None
    """Of the evaluations, a name in `configs/protocol/` or a path; None takes that of the session's
    own name."""
    demonstrations: DemonstrateConfig = field(default_factory=DemonstrateConfig)
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
    """Of the demonstrations; its states are the classifier's hard negatives. Without
    `observation_fields` it sees what the learner sees; so does `pretrain`."""
    classifier: ClassifyConfig = field(default_factory=ClassifyConfig)
    train: CorrectConfig = field(default_factory=CorrectConfig)
    evaluation_episodes: int = 100
    """Of the protocol, for the learned policy and for the student."""
    evaluate: EvaluateConfig = field(default_factory=lambda: EvaluateConfig(videos=2))
    distilled: bool = True
    """Whether the session goes on to a distilled, exported and gated policy (RLDG)."""
    rollouts: RolloutConfig = field(default_factory=RolloutConfig)
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
    distil: DistilConfig = field(
        default_factory=lambda: DistilConfig(training=_short(), targets=131_072)
    )
    export: ExportConfig = field(
        default_factory=lambda: ExportConfig(action_interface="cartesian_delta")
    )
    gate: GateConfig = field(default_factory=GateConfig)


def _short() -> TrainingConfig:
    return TrainingConfig(steps=4_000, learning_rate=1e-3, decay_fraction=0.7)


def with_hand(sac: SacConfig) -> SacConfig:
    """The learner with a critic for the hand, unless it has one."""
    from dataclasses import replace

    return sac if sac.gripper is not None else replace(sac, gripper=GripperConfig())
