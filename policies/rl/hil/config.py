"""Options of human-in-the-loop learning: algorithms and learner process. Imports no torch.

Every default names its source: [C] is the released code of the method, [P] its paper.
"""

from __future__ import annotations

from dataclasses import field, replace
from typing import Annotated, Literal

from pydantic import Discriminator, Field

from policies.rl.networks.config import MlpSizes
from policies.rl.off_policy.config import GuidedSacConfig, OnlineConfig, SacConfig
from policies.rl.off_policy.jsrl import JsrlCurriculum, JsrlSchedule
from policies.rl.off_policy.wsrl import WARM_UP_STEPS, wsrl_sac
from policies.rl.replay.config import ReplayConfig
from policies.training.config import LoggingConfig
from robots.config import Count, Delay, Port, Positive, config
from robots.spec import ActionSpec

RewardSignal = Literal["classifier", "task"]
"""Source of the reward, which is 1 at success: the success classifier among the stage's inputs, or
the simulated task itself."""


@config
class HilReplayConfig:
    """Replay buffer of the steps that the actor sends."""

    capacity: Count = 200_000
    """Capacity [steps]; the oldest steps are overwritten. 200k in HIL-SERL [C]."""
    discount: Annotated[float, Field(ge=0.0, le=1.0)] = 0.97
    """Discount per control period; .97 to .985 in HIL-SERL [C]."""
    n_step: Count = 1
    """Steps of the n-step return."""
    timeouts_end: bool = False
    """Whether truncation by a time limit counts as termination, as in the code of HIL-SERL, instead
    of bootstrapping from the value."""

    def replay(self, capacity: int | None = None) -> ReplayConfig:
        """Options of a replay buffer, with another capacity if given."""
        return ReplayConfig(
            capacity=self.capacity if capacity is None else capacity,
            discount=self.discount,
            n_step=self.n_step,
            timeouts_end=self.timeouts_end,
        )


@config
class HilUpdateConfig:
    """Ratio of updates to control steps, and size of the minibatches."""

    batch_size: Count = 256
    """Transitions per minibatch, including those from demonstrations."""
    updates_per_step: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Updates (each of `minibatches`) per control step; fractions accumulate exactly."""
    minibatches: Count = 1
    """Critic steps per update: 20 in RLPD, 2 in HIL-SERL [C]."""
    training_starts: Annotated[int, Field(ge=0)] = 100
    """Control steps before the first update; HIL-SERL 100, RLPD 5,000 [C]."""

    def online(self) -> OnlineConfig:
        """Options of the training loop, without demonstrations in the minibatches."""
        return OnlineConfig(
            batch_size=self.batch_size,
            demo_share=0.0,
            updates_per_step=self.updates_per_step,
            minibatches=self.minibatches,
            training_starts=self.training_starts,
        )


@config
class MixedUpdateConfig(HilUpdateConfig):
    """Ratio of updates to control steps, and composition of the minibatches."""

    minibatches: Count = 2
    """Critic steps per update: 20 in RLPD, 2 in HIL-SERL [C]."""
    updates_per_step: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 4.0
    """Updates (each of `minibatches`) per control step; fractions accumulate exactly."""
    demo_share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.5
    """Fraction of each minibatch from the buffer of demonstrations and corrections (RLPD, HIL-SERL
    [C]); 0 uses none."""

    def online(self) -> OnlineConfig:
        """Options of the training loop."""
        return replace(super().online(), demo_share=self.demo_share)


@config
class MixedSacConfig:
    """Options of SAC on steps, demonstrations and corrections."""

    reward: RewardSignal = "classifier"
    """Source of the reward, which is 1 at success and ends the episode."""
    replay: HilReplayConfig = field(default_factory=HilReplayConfig)
    """Size, discount and returns of the replay buffer."""
    demo_capacity: Count = 50_000
    """Capacity of the buffer for demonstrations and corrections [steps]."""
    online: MixedUpdateConfig = field(default_factory=MixedUpdateConfig)
    """Updates per control step. Updates still due after the last step are made before training
    ends."""


@config
class HilRlpdConfig(MixedSacConfig):
    """RLPD with corrections: SAC, half of whose minibatches are demonstrations and corrections
    (arXiv 2302.02948; with corrections and a classifier, HIL-SERL as published)."""

    kind: Literal["rlpd"] = "rlpd"
    sac: SacConfig = field(default_factory=SacConfig)
    """Options of the SAC learner."""


@config
class HilSerlConfig(MixedSacConfig):
    """HIL-SERL (arXiv 2410.21845): SAC with demonstrations and corrections in half of each
    minibatch, and, as an addition, guidance of the actor towards them."""

    kind: Literal["hil_serl"] = "hil_serl"
    sac: GuidedSacConfig = field(default_factory=GuidedSacConfig)
    """Options of the SAC learner."""


@config
class RlifConfig:
    """RLIF (arXiv 2311.12996): SAC whose only reward is negative, where a person intervenes.

    Success, by the classifier among the stage's inputs or else by the task, ends episodes and is
    not rewarded.
    """

    kind: Literal["rlif"] = "rlif"
    penalty: Annotated[float, Field(lt=0.0, allow_inf_nan=False)] = -1.0
    """Reward of the step just before an intervention begins; all other steps have 0 [P, C]."""
    keep_expert_steps: bool = True
    """Whether the person's steps are kept for training [P]; False drops all but the last step of
    each intervention [C]."""
    sac: SacConfig = field(
        default_factory=lambda: SacConfig(
            critic=MlpSizes(hidden=(256, 256, 256), activation="relu"),
            actor=MlpSizes(hidden=(256, 256, 256), activation="relu"),
            critics=10,
            subset=2,
        )
    )
    """Options of the SAC learner [C]."""
    replay: HilReplayConfig = field(default_factory=HilReplayConfig)
    """Size, discount and returns of the replay buffer, which begins with the demonstrations, at
    reward 0 [C]."""
    online: HilUpdateConfig = field(default_factory=lambda: HilUpdateConfig(minibatches=4))
    """Updates per control step; 1 to 15 critic steps by task [C]."""


@config
class HilWsrlConfig:
    """WSRL (arXiv 2412.07762): SAC that goes on from an actor and critics trained offline, without
    their data. A gripper stays a continuous entry, without a critic of its own."""

    kind: Literal["wsrl"] = "wsrl"
    reward: RewardSignal = "classifier"
    """Source of the reward, which is 1 at success and ends the episode."""
    sac: SacConfig = field(default_factory=wsrl_sac)
    """Options of the SAC learner; networks must have the sizes of the offline learner's."""
    replay: HilReplayConfig = field(default_factory=HilReplayConfig)
    """Size, discount and returns of the replay buffer, which begins empty."""
    online: HilUpdateConfig = field(
        default_factory=lambda: HilUpdateConfig(minibatches=4, training_starts=WARM_UP_STEPS)
    )
    """Updates per control step; before the first one the policy fills the replay buffer for
    `training_starts` steps [C: 5,000]."""


@config
class HilJsrlConfig(MixedSacConfig):
    """JSRL (arXiv 2204.02372): a guide policy acts in the first steps of each episode, fewer and
    fewer, and SAC learns from all steps."""

    kind: Literal["jsrl"] = "jsrl"
    schedule: JsrlSchedule = field(default_factory=JsrlCurriculum)
    """Number of steps for which the guide acts."""
    sac: SacConfig = field(default_factory=SacConfig)
    """Options of the SAC learner."""
    online: MixedUpdateConfig = field(default_factory=lambda: MixedUpdateConfig(demo_share=0.0))
    """Updates per control step; JSRL has no demonstrations in its minibatches [P]."""


@config
class HgDaggerConfig:
    """HG-DAgger (arXiv 1810.02890): imitation of demonstrations and corrections, without reward.

    Success, by the classifier among the stage's inputs or else by the task, ends episodes.
    """

    kind: Literal["hg_dagger"] = "hg_dagger"
    network: MlpSizes = MlpSizes(activation="relu")
    """Layers of the policy network."""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 3e-4
    """Learning rate of the policy (Adam)."""
    cloning_updates: Annotated[int, Field(ge=0)] = 1000
    """Updates on the demonstrations before the first control step [P: trained on them first]."""
    demo_capacity: Count = 50_000
    """Capacity of the buffer for demonstrations and corrections [steps]."""
    online: HilUpdateConfig = field(default_factory=lambda: HilUpdateConfig(training_starts=0))
    """Updates per control step, on demonstrations and corrections."""


HilAlgorithm = Annotated[
    HilSerlConfig | HilRlpdConfig | RlifConfig | HilWsrlConfig | HilJsrlConfig | HgDaggerConfig,
    Discriminator("kind"),
]
"""Union of the algorithms of a correction session, discriminated by `kind`."""


def commands_gripper(algorithm: HilAlgorithm, action: ActionSpec) -> bool:
    """Whether the learner's last entry is a command to the gripper: close, hold or open.

    WSRL goes on from an offline policy, to which the gripper is an entry like the others.
    """
    return action.names[-1:] == ("gripper",) and not isinstance(algorithm, HilWsrlConfig)


@config
class LearnerConfig(LoggingConfig):
    """Learner process (`policies.rl.hil.learner`)."""

    host: str = "127.0.0.1"
    """Address to listen on. Traffic is not encrypted; to other machines, use a tunnel or a TLS
    proxy."""
    port: Port = 8010
    """TCP port; 0 selects a free one."""
    actors: Count = 4
    """Maximum number of simultaneous actor connections."""
    publish_every: Count = 50
    """Updates between two publications of the actor's parameters; 50 in HIL-SERL, 30 in SERL
    [C]."""
    checkpoint_seconds: Delay = 60.0
    """Time between checkpoints [s]; a crash loses the updates since the last one."""
    metrics_every: Count = 100
    """Updates between two lines of `metrics.jsonl`."""
    log_bytes: Count = 32_000_000
    """Size above which the message log starts a new file [byte]."""


@config
class RelativeFeature:
    """Additional network input: an observation field, or its difference from another field,
    divided by a scale."""

    field: str
    """Observation field."""
    other: str | None = None
    """Observation field that is subtracted; None subtracts nothing."""
    entries: Count = 3
    """Number of leading entries of the field to use."""
    scale: Positive = 0.1
    """Value that is mapped to 1 [unit of the field]."""


@config
class ScaledTanhFeature(RelativeFeature):
    """Additional network input like `RelativeFeature`, passed through tanh."""

    scale: Positive = 0.01
    """Value that is mapped to tanh(1) [unit of the field]."""
