"""Computes rewards, observations and references of tasks by pure functions of arrays of N rows.

On the host NumPy runs them. Where worlds stay on a device, torch.compile traces the same functions
into that device's (`sim.device.arm`). Hence here, in `View` and in a task's terms: no branch on a
value, no loop over rows, no array whose size depends on a value.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robots.control.actions import CartesianDelta, JointDelta, JointTarget, gripper_target
from robots.control.impedance import posture_target
from robots.errors import HandoffError
from robots.franka.robot import Robot
from sim.scene.view import View
from sim.tasks.task import Task

SPEED_LIMIT = 1000.0
"""Generalised speed [rad/s or m/s] beyond which the physics has exploded: under random joint
targets, the roughest there are, no joint or body of any task was seen at a tenth of it."""


class TaskOutput(NamedTuple):
    """What N worlds show and are worth at present; each array has N rows."""

    observation: dict[str, np.ndarray]
    reward: np.ndarray
    """NaN where the physics broke down."""
    success: np.ndarray
    failure: np.ndarray
    info: dict[str, np.ndarray]


def told(task: Task, view: View, sparse: bool) -> TaskOutput:
    """Reads all terms of `task`; the reward is 1 where solved if `sparse`, else the weighted sum of
    its terms."""
    success = task.success(view)
    observation = {
        name: term.read(view).astype(term.spec.dtype) for name, term in task.observations.items()
    }
    info = {name: read(view) for name, read in task.info.items()}
    if sparse:
        reward = success.astype(np.float64)
    else:
        parts = {
            f"reward_{name}": term.weight * term.read(view) for name, term in task.rewards.items()
        }
        reward = np.sum(np.stack([*parts.values()]), axis=0)
        info |= parts
    # Numbers can explode and be finite for long: such a world has no reward, which a guard sees.
    reward = np.where(np.abs(view.qvel).max(axis=1) <= SPEED_LIMIT, reward, np.nan)
    return TaskOutput(observation, reward, success, task.failure(view), info)


def next_target(
    space: CartesianDelta | JointDelta | JointTarget,
    target: np.ndarray,
    measured: np.ndarray,
    width: np.ndarray | None,
    action: np.ndarray,
    period: float,
    robot: Robot,
) -> np.ndarray:
    """The controller's targets after an action.

    Args:
        space: of the arm's part of the action.
        target: (M, K + 1) the present ones, the arm's K and last the hand's.
        measured: (M, K) where the arm is, a pose or joints as `space` has it.
        width: (M,) opening of the hand [m]; None where actions have no entry for it.
        action: (M, A).
        period: until the next action [s].
        robot: its limits bound the targets.

    Raises:
        HandoffError: an action space of another kind.
    """
    arm = action if width is None else action[:, :-1]
    if isinstance(space, CartesianDelta):
        moved = space.target(target[:, :-1], measured, arm)
    elif isinstance(space, JointDelta):
        moved = space.target(target[:, :-1], measured, arm, robot.limits)
    elif isinstance(space, JointTarget):
        moved = space.target(target[:, :-1], measured, arm, period, robot.limits)
    else:
        raise HandoffError(f"actions: {type(space).__name__} moves an agent, not the arm's target.")
    hand = (
        target[:, -1]
        if width is None
        else gripper_target(target[:, -1], width, action[:, -1], period, robot.gripper)
    )
    return np.concatenate([moved, hand[:, None]], axis=1)


def control(
    target: np.ndarray, jacobian: np.ndarray | None, q: np.ndarray, posture: np.ndarray, hand: bool
) -> np.ndarray:
    """(M, nu) what the actuators are told for the controller's targets.

    Args:
        target: (M, K + 1), the arm's K and last the hand's.
        jacobian: (M, 6, J) where targets are poses, for the posture; None where they are joints.
        q: (M, J) joint positions [rad].
        posture: (J,) to which the redundant arm tends [rad].
        hand: whether there is one.
    """
    parts = [target[:, :-1]]
    if jacobian is not None:
        parts.append(posture_target(jacobian, q, posture))
    if hand:
        parts.append(np.repeat(target[:, -1:] / 2, 2, axis=1))
    return np.concatenate(parts, axis=1)
