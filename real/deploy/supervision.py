"""Lets a person supervise a policy on an arm: hold it still, steer it, label the episode, end the
session.

The loop polls the person at every stream tick. A hold brakes the arm from the next tick on. Taking
the arm over or giving it back cuts the policy's step short and begins another, so that the person
never waits for a slow policy. How a person's device moves the arm is in
`real.deploy.person_motion`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from real.deploy.person_motion import PersonMotion, ReferenceAtStep
from real.teleop.takeover import TakeoverConfig
from robots.config import config
from robots.interfaces import Intervention, Label, Observation, Operator, ResetMotion


@config
class SupervisionConfig:
    """Speed of takeovers and time limit of holds."""

    speed: Annotated[float, Field(gt=0.0, le=1.0)] = 0.15
    """Speed of a pusher at full deflection [m/s]; by default below a third of the governor's limit.
    A gripper moves by the steps of its actions."""
    hold_seconds: Annotated[float, Field(gt=0.0, le=600.0)] = 60.0
    """Longest robot time for which one episode may be held still under control [s]. After it the
    episode ends and the arm returns to its own hold, because memory for the robot's states is
    reserved before the episode."""
    takeover: TakeoverConfig = field(default_factory=TakeoverConfig)
    """Scaling and axes of the person's motion."""


class StepListener(Protocol):
    """A function that is called with every executed step;
    `real.console.console_operator.ConsoleOperator.report_step` is one."""

    def __call__(
        self,
        observation: Observation,
        intervention: Intervention,
        *,
        reward: float,
        success: bool,
        probability: float | None,
        label: Label,
        last: bool,
    ) -> None:
        """Takes a step.

        Args:
            observation: observation before the step, per field (1, ...).
            intervention: proposed and executed actions.
            reward: reward of the step.
            success: whether the step ended the episode in success.
            probability: probability of success by a classifier; None without one.
            label: the person's label of the episode.
            last: whether the episode ended with the step.
        """
        ...


class StepHints(Protocol):
    """Hints to the person at every step; `real.deploy.hints.DeployHints` is one."""

    def step(self, observation: Observation, *, person: bool) -> Mapping[str, Any]:
        """Takes a step before its target is sent, and returns its further fields; `person` is
        whether the person acts."""
        ...


class Supervision:
    """State of the person who supervises an arm, as the loop sees it.

    Args:
        operator: operator with the actions that `motion` takes.
        config: time limit.
        motion: the way in which the person's device moves the arm.
        on_step: called with every executed step, or None.
    """

    def __init__(
        self,
        operator: Operator,
        config: SupervisionConfig,
        motion: PersonMotion,
        on_step: StepListener | None = None,
    ) -> None:
        self.operator = operator
        self.config = config
        self.on_step = on_step
        self._motion = motion
        self.label = Label.NONE
        """The person's label of the running episode."""
        self.paused = True
        """Whether the arm must hold still."""
        self.stopped = False
        """Whether the session must end."""
        self.reset_motion = ResetMotion.NONE
        """Motion of the arm between two episodes that the person asks for."""
        self.intervening = False
        """Whether the person had the arm at the last policy step."""
        self.labelled_by = ""
        """Name of the person who labelled the running episode; empty if nobody did."""
        self.hints: StepHints | None = None
        """Hints to the person; None gives none."""
        self.shadow = False
        """Whether the policy only thinks: without the person the arm stays where it is."""
        self.engaged: bool | None = None
        """Whether the person holds the device at this moment; None if the device does not report it
        between steps."""

    def begin(self, seed: int) -> None:
        """Begins a new episode; a person who holds the arm begins a new takeover."""
        self.operator.reset([seed])
        self._motion.begin()
        self.intervening = False
        self.label = Label.NONE
        self.labelled_by = ""

    def poll(self) -> None:
        """Reads the person's requests."""
        requests = self.operator.requests()
        # A label that is given while the arm holds still counts at the next step.
        if requests.label:
            self.label = requests.label
            self.labelled_by = requests.labelled_by
        self.paused = requests.paused
        self.reset_motion = requests.reset_motion
        self.engaged = requests.engaged
        self.stopped |= requests.stop

    @property
    def episode_ended(self) -> bool:
        """Whether the person has ended the episode."""
        return self.stopped or self.label is not Label.NONE

    @property
    def must_hold(self) -> bool:
        """Whether the reference must come to rest."""
        return self.paused or self.episode_ended

    @property
    def interrupts(self) -> bool:
        """Whether the running policy step must be cut short, for a hold or because the arm changes
        hands."""
        return self.must_hold or (self.engaged is not None and self.engaged != self.intervening)

    def step(
        self, proposed: np.ndarray | None, observation: Observation, reference: ReferenceAtStep
    ) -> Intervention:
        """The intervention at a policy step.

        Args:
            proposed: (A,) the policy's action; None if none is due.
            observation: observation per field, without a leading dimension.
            reference: the loop's reference.

        Returns:
            The intervention with (1, A) actions; those that keep the arm still if the policy only
            thinks.
        """
        batch = {name: np.asarray(value)[None] for name, value in observation.items()}
        intervention = self._motion.intervene(self.operator, proposed, batch, reference)
        self.intervening = bool(intervention.intervening[0])
        if self.shadow and not self.intervening:
            still = self._motion.still(batch, reference)
            return intervention._replace(executed=still[None])
        return intervention
