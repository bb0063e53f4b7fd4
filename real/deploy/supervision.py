"""A person beside a policy on an arm: holds it still, leads it by hand, judges the episode, ends
the session.

The loop looks at the person at every stream tick: to hold brakes the arm with the next tick, and to
take it or give it back cuts the policy's step short and begins another, so that nobody waits for a
slow policy's next look. A device's deflection is a speed: what is executed is a target on the board
that moves on from where the arm's reference is when they take it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Protocol

import numpy as np

from real.deploy.planar_space import Plane
from real.teleop.takeover import TakeoverConfig
from robots.config import config
from robots.interfaces import Intervention, Label, Observation, Operator
from robots.spec import ActionSpec

STEPS = ActionSpec(
    low=(-1.0, -1.0), high=(1.0, 1.0), names=("x", "y"), unit="1", interface="board_steps"
)
"""What an `Operator` beside a plane is asked for: shares of `OversightConfig.speed` along x and y
of the base."""


@config
class OversightConfig:
    """What a person may ask of the arm."""

    speed: float = 0.15
    """Of the pusher at full deflection [m/s]; half of what the governor allows."""
    hold_seconds: float = 60.0
    """Robot time in which one episode may be held under control [s]. After it the episode ends as
    it is and the arm goes back to its own hold: memory for its states is reserved before it
    moves."""
    takeover: TakeoverConfig = field(default_factory=TakeoverConfig)


class Tell(Protocol):
    """Who wants to know what became of a step; `real.console.console_operator.ConsoleOperator.told`
    is one."""

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
        """One step was executed."""
        ...


class Oversight:
    """What the loop knows of the person.

    Args:
        operator: made for `STEPS`.
        config: see there.
        plane: of the task.
        rate_hz: of the policy's steps.
        tell: told every step; None tells nobody.
    """

    def __init__(
        self,
        operator: Operator,
        config: OversightConfig,
        plane: Plane,
        rate_hz: float,
        tell: Tell | None = None,
    ) -> None:
        self.operator, self.config, self.tell = operator, config, tell
        self._board_from_base = plane.velocity_axes()[:2].T
        self._way = config.speed / rate_hz
        self._target: np.ndarray | None = None
        self.label = Label.NONE
        """Said of the running episode."""
        self.paused = True
        """The arm is to stand still."""
        self.stopped = False
        """The session is to end."""
        self.leading = False
        """The person has had the arm since the last policy step."""
        self.wants: bool | None = None
        """Whether they hold the device at this moment; None where it does not say between steps."""

    def begin(self, seed: int) -> None:
        """A new episode; whoever holds the arm must take it anew."""
        self.operator.reset([seed])
        self._target, self.leading, self.label = None, False, Label.NONE

    def look(self) -> None:
        """Asks what the person wants."""
        asked = self.operator.requests()
        # What is said while the arm stands still counts with the next step.
        self.label = asked.label or self.label
        self.paused, self.wants = asked.paused, asked.engaged
        self.stopped |= asked.stop

    @property
    def over(self) -> bool:
        """The person has ended the episode."""
        return self.stopped or self.label is not Label.NONE

    @property
    def still(self) -> bool:
        """The reference must come to rest now."""
        return self.paused or self.over

    @property
    def interrupts(self) -> bool:
        """The running policy step must not go on: stillness, or somebody else has the arm from now
        on."""
        return self.still or (self.wants is not None and self.wants != self.leading)

    def step(
        self,
        proposed: np.ndarray,
        observation: Observation,
        at: np.ndarray,
        clamp: Callable[[np.ndarray], np.ndarray],
    ) -> Intervention:
        """Who acts at this policy step.

        Args:
            proposed: (D,) the policy's target [m], board.
            observation: per field, without a leading dimension.
            at: (D,) the arm's reference now [m], board.
            clamp: into the keep-in box.

        Returns:
            Of one world, (1, D) targets [m], board.
        """
        said = self.operator.intervene(
            proposed[None], {name: np.asarray(it)[None] for name, it in observation.items()}
        )
        self.leading = bool(said.intervening[0])
        if not self.leading:
            self._target = None
            return said
        before = at if self._target is None else self._target
        self._target = clamp(before + self._way * (self._board_from_base @ said.executed[0]))
        return said._replace(executed=self._target[None].copy())
