"""Turns the deflection of a person's device into actions of the running loop.

A device's deflection is a speed. At a board the executed action is a target that moves on from the
arm's reference at the takeover; with a gripper it is a step of the arm's target, as a policy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from real.motion.planar_space import Plane
from robots.control.gripper_commands import entry_from_command
from robots.interfaces import Intervention, Observation, Operator
from robots.spec import ActionSpec

STEPS = ActionSpec(
    low=(-1.0, -1.0), high=(1.0, 1.0), names=("x", "y"), unit="1", interface="board_steps"
)
"""Actions of an `Operator` at a board: shares of the largest speed along x and y of the base."""


class ReferenceAtStep(NamedTuple):
    """The loop's reference at a policy step, in the coordinates of its space."""

    target: np.ndarray
    """(D,) the target in force [m]."""
    position: np.ndarray
    """(D,) the reference's position [m]."""
    clamp: Callable[[np.ndarray], np.ndarray]
    """Clips a point (D,) to the keep-in box."""


class PersonMotion(Protocol):
    """The way in which a person's device moves an arm."""

    def begin(self) -> None:
        """Begins a new episode."""
        ...

    def intervene(
        self,
        operator: Operator,
        proposed: np.ndarray | None,
        observation: Observation,
        reference: ReferenceAtStep,
    ) -> Intervention:
        """The intervention at a policy step.

        Args:
            operator: the person.
            proposed: (A,) the policy's action; None if none is due.
            observation: observation per field, (1, ...).
            reference: the loop's reference.

        Returns:
            The intervention with (1, A) actions of the loop.
        """
        ...

    def still(self, observation: Observation, reference: ReferenceAtStep) -> np.ndarray:
        """(A,) the action that keeps the arm, and its gripper, as they are.

        Args:
            observation: observation per field, (1, ...).
            reference: the loop's reference.
        """
        ...


class BoardMotion:
    """Implements `PersonMotion` for targets on a board, by an operator whose actions are `STEPS`.

    Args:
        plane: plane of the task.
        speed: speed at full deflection [m/s].
        rate_hz: policy steps per second.
    """

    def __init__(self, plane: Plane, speed: float, rate_hz: float) -> None:
        self._board_from_base = plane.velocity_axes()[:2].T
        self._step_length = speed / rate_hz
        """Distance that the target moves per policy step at full deflection [m]."""
        self._target: np.ndarray | None = None
        """(2,) the person's target on the board [m], during a takeover."""

    def begin(self) -> None:
        """See `PersonMotion`."""
        self._target = None

    def intervene(
        self,
        operator: Operator,
        proposed: np.ndarray | None,
        observation: Observation,
        reference: ReferenceAtStep,
    ) -> Intervention:
        """See `PersonMotion`."""
        suggested = reference.target if proposed is None else reference.clamp(proposed)
        intervention = operator.intervene(suggested[None], observation)
        if not intervention.intervening[0]:
            self._target = None
            return intervention
        target = reference.position if self._target is None else self._target
        step = self._step_length * (self._board_from_base @ intervention.executed[0])
        self._target = reference.clamp(target + step)
        return intervention._replace(executed=self._target[None].copy())

    def still(self, observation: Observation, reference: ReferenceAtStep) -> np.ndarray:
        """See `PersonMotion`: the target stays."""
        return reference.target


class StepMotion:
    """Implements `PersonMotion` for steps of a gripper's pose, by an operator with the same
    actions.

    Args:
        size: number A of entries of an action.
        width_max: largest opening of the gripper [m], which the last entry moves; None if there is
            no such entry.
    """

    def __init__(self, size: int, width_max: float | None) -> None:
        self._size = size
        self._width_max = width_max

    def begin(self) -> None:
        """See `PersonMotion`: nothing is kept between steps."""

    def intervene(
        self,
        operator: Operator,
        proposed: np.ndarray | None,
        observation: Observation,
        reference: ReferenceAtStep,
    ) -> Intervention:
        """See `PersonMotion`."""
        suggested = self.still(observation, reference) if proposed is None else proposed
        return operator.intervene(suggested[None], observation)

    def still(
        self, observation: Observation, reference: ReferenceAtStep | None = None
    ) -> np.ndarray:
        """See `PersonMotion`: a step of zeros; `width_target` (1, 1) [m] is observed if there is an
        entry for a gripper."""
        action = np.zeros(self._size)
        if self._width_max is not None:
            target = np.asarray(observation["width_target"], dtype=np.float64).reshape(-1)[0]
            action[-1] = entry_from_command(np.array(0.0), target, self._width_max)
        return action
