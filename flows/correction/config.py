"""Defines the options of RL with corrections."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

from pydantic import Field

from flows.session.config import HilEnvConfig, HilOperator
from policies.networks.config import TrunkConfig
from policies.rewards.config import RefreshConfig
from policies.rl.hil.config import (
    HilAlgorithm,
    HilSerlConfig,
    LearnerConfig,
    RelativeFeature,
    ScaledTanhFeature,
)
from real.hil.actor import ActorConfig
from real.hints.config import CorrectionHints
from robots.config import Repetitions, Seed, config


@config
class CorrectConfig:
    """RL with corrections: an actor that a person corrects, and a learner, in parallel."""

    env: HilEnvConfig = field(default_factory=HilEnvConfig)
    """Task, observations and actions of the environment."""
    operator: HilOperator = field(default_factory=HilOperator)
    """Person or simulated operator who corrects."""
    algorithm: HilAlgorithm = field(default_factory=HilSerlConfig)
    """Algorithm that learns, with its options."""
    relative_features: tuple[RelativeFeature, ...] = (
        RelativeFeature(field="grasp_pose", other="goal"),
    )
    """Differences of observation fields that are added to the learner's input."""
    scaled_features: tuple[ScaledTanhFeature, ...] = ()
    """Fields that are added to the learner's input at a finer scale than their range."""
    trunk: TrunkConfig = field(default_factory=TrunkConfig)
    """Frozen trunk of the pictures `actor.pictures`, which the actor runs once per picture; the
    learner gets and keeps its feature maps."""
    blind: bool = False
    """Whether the trunk gets black pictures, a control of what a policy learns without them."""
    steps: Repetitions = 20_000
    """Control steps of training. Updates still due after the last step are made before training
    ends."""
    speed: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 1.0
    """Speed of the actor in units of real time; 0 runs at full speed."""
    backlog: Annotated[int, Field(ge=0)] | None = None
    """Number of overdue updates at which the actor pauses, as it then also does while two versions
    of a classifier that is trained further are overdue; None never pauses it, as an arm or a person
    requires. With a limit, a simulated session makes the same updates on any machine."""
    learner: LearnerConfig = field(default_factory=lambda: LearnerConfig(port=0))
    """Port, updates per step and saving of the learner's process."""
    actor: ActorConfig = field(default_factory=ActorConfig)
    """Exploration and limits of the actor's process."""
    refresh: RefreshConfig | None = None
    """Further training of the success classifier on the states that the policy visits; None keeps
    the classifier as it is."""
    hints: CorrectionHints = field(default_factory=CorrectionHints)
    """Hints to the person when the policy is likely to fail; without a source there are none."""
    seed: Seed = 0
    """Seed of weights, exploration and starts."""
