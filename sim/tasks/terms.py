"""Computes rewards, observations and controller targets of tasks with pure functions of arrays of N
rows.

On the host NumPy executes them. For environments on a device, torch.compile traces the same
functions (`sim.device.arm`). Code here, in `View` and in a task's terms must therefore not branch
on values, loop over rows or create arrays whose size depends on values.
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
"""Generalised speed [rad/s or m/s] above which the physics has diverged: under random joint
targets, the roughest actions, no joint or body of any task reached a tenth of it."""


class TaskOutput(NamedTuple):
    """Values of all terms in N environments; each array has N rows."""

    observation: dict[str, np.ndarray]
    reward: np.ndarray
    """NaN where the physics has diverged."""
    success: np.ndarray
    failure: np.ndarray
    info: dict[str, np.ndarray]


def read_terms(task: Task, view: View, sparse: bool) -> TaskOutput:
    """Evaluates all terms of `task`; the reward is 1 on success if `sparse`, otherwise the weighted
    sum of the reward terms."""
    success = task.success(view)
    observation = read_observation(task, view)
    info = {name: read(view) for name, read in task.info.items()}
    if sparse:
        reward = success.astype(np.float64)
    else:
        terms = {
            f"reward_{name}": term.weight * term.read(view) for name, term in task.rewards.items()
        }
        reward = np.sum(np.stack([*terms.values()]), axis=0)
        info |= terms
    # Diverging values can stay finite for a long time; NaN as the reward makes the guard detect
    # them.
    reward = np.where(np.abs(view.qvel).max(axis=1) <= SPEED_LIMIT, reward, np.nan)
    return TaskOutput(observation, reward, success, task.failure(view), info)


def read_observation(task: Task, view: View) -> dict[str, np.ndarray]:
    """Evaluates the observation terms of `task`, per field (N, ...)."""
    return {
        name: term.read(view).astype(term.spec.dtype) for name, term in task.observations.items()
    }


def next_target(
    space: CartesianDelta | JointDelta | JointTarget,
    target: np.ndarray,
    measured: np.ndarray,
    width: np.ndarray | None,
    action: np.ndarray,
    period: float,
    robot: Robot,
) -> np.ndarray:
    """Computes the controller's targets after an action.

    Args:
        space: action space of the arm's part of the action.
        target: (M, K + 1) current targets: K of the arm, then the gripper's opening.
        measured: (M, K) measured pose or joints of the arm, depending on `space`.
        width: (M,) opening of the gripper [m]; None if actions have no entry for it.
        action: (M, A).
        period: time until the next action [s].
        robot: robot whose limits bound the targets.

    Raises:
        HandoffError: an unsupported action space.
    """
    arm = action if width is None else action[:, :-1]
    if isinstance(space, CartesianDelta):
        moved = space.target(target[:, :-1], measured, arm)
    elif isinstance(space, JointDelta):
        moved = space.target(target[:, :-1], measured, arm, robot.limits)
    elif isinstance(space, JointTarget):
        moved = space.target(target[:, :-1], measured, arm, period, robot.limits)
    else:
        raise HandoffError(
            f"actions: {type(space).__name__} does not move the arm's target, expected CartesianDelta, "
            "JointDelta or JointTarget."
        )
    opening = (
        target[:, -1]
        if width is None
        else gripper_target(target[:, -1], width, action[:, -1], period, robot.gripper)
    )
    return np.concatenate([moved, opening[:, None]], axis=1)


def control(
    target: np.ndarray,
    jacobian: np.ndarray | None,
    q: np.ndarray,
    posture: np.ndarray,
    gripper: bool,
) -> np.ndarray:
    """Computes the actuator controls (M, nu) for the controller's targets.

    Args:
        target: (M, K + 1) targets: K of the arm, then the gripper's opening.
        jacobian: (M, 6, J) for pose targets, to control the posture; None for joint targets.
        q: (M, J) joint positions [rad].
        posture: (J,) preferred posture of the redundant arm [rad].
        gripper: whether the robot has a gripper.
    """
    columns = [target[:, :-1]]
    if jacobian is not None:
        columns.append(posture_target(jacobian, q, posture))
    if gripper:
        columns.append(np.repeat(target[:, -1:] / 2, 2, axis=1))
    return np.concatenate(columns, axis=1)
