"""Lets a person supervise a policy on an arm: hold it still, steer it, label the episode, end the
session.

The loop polls the person at every stream tick. A hold brakes the arm from the next tick on. Taking
the arm over or giving it back cuts the policy's step short and begins another, so that the person
never waits for a slow policy. A device's deflection is a speed: the executed action is a target on
the board that moves on from the arm's reference at the takeover.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Annotated, Protocol

import numpy as np
from pydantic import Field

from real.deploy.planar_space import Plane
from real.teleop.takeover import TakeoverConfig
from robots.config import config
from robots.interfaces import Intervention, Label, Observation, Operator
from robots.spec import ActionSpec

STEPS = ActionSpec(
    low=(-1.0, -1.0), high=(1.0, 1.0), names=("x", "y"), unit="1", interface="board_steps"
)
"""Actions of an `Operator` in a plane: shares of `SupervisionConfig.speed` along x and y of the
base."""


@config
class SupervisionConfig:
    """Speed of takeovers and time limit of holds."""

    speed: Annotated[float, Field(gt=0.0, le=1.0)] = 0.15
    """Speed of the pusher at full deflection [m/s]; by default below a third of the governor's
    limit."""
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


class Supervision:
    """State of the person who supervises an arm, as the loop sees it.

    Args:
        operator: operator whose actions are `STEPS`.
        config: speed and time limit.
        plane: plane of the task.
        rate_hz: policy steps per second.
        on_step: called with every executed step, or None.
    """

    def __init__(
        self,
        operator: Operator,
        config: SupervisionConfig,
        plane: Plane,
        rate_hz: float,
        on_step: StepListener | None = None,
    ) -> None:
        self.operator = operator
        self.config = config
        self.on_step = on_step
        self._board_from_base = plane.velocity_axes()[:2].T
        self._step_length = config.speed / rate_hz
        """Distance that the target moves per policy step at full deflection [m]."""
        self._target: np.ndarray | None = None
        """(D,) the person's target on the board [m], during a takeover."""
        self.label = Label.NONE
        """The person's label of the running episode."""
        self.paused = True
        """Whether the arm must hold still."""
        self.stopped = False
        """Whether the session must end."""
        self.intervening = False
        """Whether the person had the arm at the last policy step."""
        self.engaged: bool | None = None
        """Whether the person holds the device at this moment; None if the device does not report it
        between steps."""

    def begin(self, seed: int) -> None:
        """Begins a new episode; a person who holds the arm begins a new takeover."""
        self.operator.reset([seed])
        self._target = None
        self.intervening = False
        self.label = Label.NONE

    def poll(self) -> None:
        """Reads the person's requests."""
        requests = self.operator.requests()
        # A label that is given while the arm holds still counts at the next step.
        self.label = requests.label or self.label
        self.paused = requests.paused
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
        self,
        proposed: np.ndarray,
        observation: Observation,
        at: np.ndarray,
        clamp: Callable[[np.ndarray], np.ndarray],
    ) -> Intervention:
        """The intervention at a policy step.

        Args:
            proposed: (D,) the policy's target on the board [m].
            observation: observation per field, without a leading dimension.
            at: (D,) the arm's present reference on the board [m].
            clamp: clips a point to the keep-in box.

        Returns:
            The intervention with (1, D) targets on the board [m].
        """
        batch = {name: np.asarray(value)[None] for name, value in observation.items()}
        intervention = self.operator.intervene(proposed[None], batch)
        self.intervening = bool(intervention.intervening[0])
        if not self.intervening:
            self._target = None
            return intervention
        target = at if self._target is None else self._target
        step = self._step_length * (self._board_from_base @ intervention.executed[0])
        self._target = clamp(target + step)
        return intervention._replace(executed=self._target[None].copy())
