"""Defines the options of the stages that make data."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

from pydantic import Field

from flows.config.protocols import push_t_published
from flows.session.config import HilEnvConfig, HilOperator
from robots.config import Count, Seed, Whole, config
from robots.episodes.curation.choose import FilterConfig
from robots.episodes.curation.examination import ExamineConfig
from robots.errors import HandoffError
from robots.franka import RobotName
from robots.seed_ranges import DEMONSTRATIONS, PLAY, ROLLOUTS
from sim.evaluation.protocol import Protocol
from sim.make import TaskName
from sim.recording.config import ExpertDemonstrationsConfig, PlayConfig


@config
class ScriptedConfig:
    """Demonstrations by the scripted expert of a simulated task."""

    task: TaskName = "reach"
    """Name of the simulated task."""
    robot: RobotName = "fr3"
    """Arm that performs the task."""
    instruction: str | None = None
    """Instruction of all episodes; None draws one per episode where the task has several."""
    phrasing: str | None = None
    """Name of the set of sentences from which every episode's instruction is drawn, see
    `sim.phrasings`; None takes the task's own sentences."""
    gripper_entry: bool = False
    """Whether actions have an entry for the gripper, and observations its opening, also in a task
    that does not need it."""
    episodes: Count = 50
    """Number of attempts; failed ones are recorded with `demonstrate.keep: all` only."""
    first_seed: Seed = DEMONSTRATIONS.start
    """Seed of the first start; the seeds of protocols are higher."""
    demonstrate: ExpertDemonstrationsConfig = field(default_factory=ExpertDemonstrationsConfig)
    """Episodes, seeds and noise of the scripted expert."""


@config
class RecordPlayConfig:
    """Recording of play for a world model."""

    task: TaskName = "open_drawer"
    """Name of the simulated task."""
    robot: RobotName = "fr3"
    """Arm that plays."""
    episodes: Count = 400
    """Number of play episodes."""
    first_seed: Seed = PLAY.start
    """Seed of the first start; the seeds of demonstrations and protocols are lower."""
    play: PlayConfig = field(default_factory=lambda: PlayConfig(steps=250))
    """Length and behaviour of a play episode."""


@config
class DemonstrateConfig:
    """Successful demonstrations by a person or a simulated operator."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    """Task, observations and actions of the environment."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator who demonstrates."""
    episodes: Count = 20
    """Number of successful demonstrations; SERL and HIL-SERL use 20 to 30 [C]."""
    first_seed: Seed = DEMONSTRATIONS.start
    """Seed of the first attempt's start; it increases by 1 per attempt."""


@config
class RolloutConfig:
    """Episodes of a trained policy: successful ones as training data (RLDG, arXiv 2412.09858), or
    all as golden examples of an export."""

    protocol: Protocol = field(default_factory=push_t_published)
    """Protocol that defines environments, time limit, chunks and success; its seeds are used for
    evaluation only."""
    episodes: Count = 100
    """Number of episodes to record."""
    keep: Literal["successes", "all"] = "successes"
    """Recorded episodes."""
    num_envs: Count = 16
    """Number of environments stepped together."""
    least_success: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    """Success rate below which the stage stops with an error."""
    first_seed: Seed = ROLLOUTS.start
    """Seed of the first attempt's start."""

    def __post_init__(self) -> None:
        if self.keep == "successes" and self.least_success <= 0.0:
            raise HandoffError(
                "rollouts: least_success is 0 with keep: successes, so a policy that never succeeds would be run "
                "for ever; expected more than 0."
            )


@config
class ExamineEpisodesConfig:
    """Search for faults in recorded episodes."""

    limits: ExamineConfig = field(default_factory=ExamineConfig)
    """Limits of the checks."""
    max_errors: Whole | None = 0
    """Number of findings of the severity error above which the run fails; None reports them."""
    max_warnings: Whole | None = None
    """Number of warnings above which the run fails; None reports them."""


@config
class FilterEpisodesConfig(FilterConfig):
    """Choice of the episodes that are kept."""

    faulty: Literal["keep", "errors", "warnings"] = "keep"
    """Episodes that are left out for what the input `examination` found in them: those with errors,
    or those with errors and warnings."""


@config
class MergeConfig:
    """One store of several, such as the successes of several specialists (RLDG)."""

    task: str | None = None
    """Name of the task in the merged store; None takes the stores', which must agree."""
    fields: tuple[str, ...] = ()
    """Names of the fields that are kept, in every stream that has them; the stores may disagree
    about the others. Empty keeps all."""
    missing: Literal["refuse", "drop", "pad"] = "refuse"
    """Treatment of fields that not every store has. refuse: an error names them. drop: the merged
    store has the common fields alone. pad: zeros where a store lacks the field."""
    successes: bool = True
    """Whether only episodes are taken whose metadata record success, or record nothing about it."""
    episodes_each: Count | None = None
    """Largest number of episodes of each store, the first ones; None takes all."""
