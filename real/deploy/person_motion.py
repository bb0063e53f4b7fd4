"""Turns the deflection of a person's device into actions of the running loop.

A device's deflection is a speed. Where actions move the joints, a person still leads the gripper's
pose. At a board the executed action is a target that moves on from the
arm's reference at the takeover; with a gripper it is a step of the arm's target, as a policy's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import numpy as np

from real.franka.joint_limits import joint_velocity
from real.motion.joint_space import LEVER
from real.motion.planar_space import Plane
from robots.contract import Contract
from robots.control.actions import AXES, CartesianDelta, JointDelta
from robots.control.gripper_commands import entry_from_command
from robots.franka.robot import Robot
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


class JointMotion:
    """Implements `PersonMotion` for a policy whose actions move the joints, by an operator whose
    actions are steps of the gripper's pose: the joints' motion is the smallest one that moves the
    gripper so.

    Args:
        contract: contract of the policy.
        steps: steps of the person.
        robot: the arm with its gripper.
        width_max: largest opening of the gripper [m], which the last entry moves; None if there is
            no such entry.
    """

    def __init__(
        self,
        contract: Contract,
        steps: CartesianDelta,
        robot: Robot,
        width_max: float | None,
    ) -> None:
        self._actions = contract.steps
        self._robot = robot
        self._flange_T_ee = np.eye(4)
        self._flange_T_ee[2, 3] = robot.gripper.tcp_offset
        index = [AXES.index(axis) for axis in steps.axes]
        scale = [steps.translation if i < 3 else steps.rotation for i in index]
        self._twist = np.eye(6)[:, index] * scale
        self._axes = len(index)
        self._person = StepMotion(self._axes + (width_max is not None), width_max)

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
        # What the person does in the policy's place; a policy's own action is none of a pose.
        intervention = self._person.intervene(operator, None, observation, reference)
        still = self._person.still(observation)
        acted = self._joints(intervention.executed[0], reference)
        suggested = self._joints(still, reference) if proposed is None else np.asarray(proposed)
        executed = acted if intervention.intervening[0] else suggested
        return intervention._replace(proposed=suggested[None], executed=executed[None])

    def still(self, observation: Observation, reference: ReferenceAtStep) -> np.ndarray:
        """See `PersonMotion`: the joints' targets stay."""
        return self._joints(self._person.still(observation), reference)

    def _joints(self, action: np.ndarray, reference: ReferenceAtStep) -> np.ndarray:
        """(A,) the policy's kind of action for a step of the gripper's pose."""
        q = reference.target / LEVER
        twist = self._twist @ np.clip(action[: self._axes], -1.0, 1.0)
        step = joint_velocity(self._robot.chain, q, twist, self._flange_T_ee)
        if isinstance(self._actions, JointDelta):
            share = step / self._actions.step
            arm = share / max(1.0, float(np.abs(share).max()))
        else:
            arm = q + step
        return np.concatenate([arm, action[self._axes :]])
