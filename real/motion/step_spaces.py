"""Chooses the coordinates in which a policy's actions move an arm with a gripper."""

from __future__ import annotations

from dataclasses import replace
from typing import TypeVar

import numpy as np

from real.arm import ArmState
from real.franka.config import FrankaConfig
from real.motion.action_space import CartesianSteps
from real.motion.joint_space import JointSpace
from real.motion.stream import StreamConfig
from robots.contract import Contract
from robots.control.actions import AXES, CartesianDelta
from robots.errors import HandoffError
from robots.franka.kinematics import inverse_kinematics
from robots.franka.robot import Robot

T = TypeVar("T", bound=StreamConfig)

NEGLIGIBLE = 1e-3
"""Distance outside a workspace at which an arm counts as inside [m]."""


def step_space(
    contract: Contract, state: ArmState, robot: Robot, flange_T_ee: np.ndarray, config: T
) -> tuple[CartesianSteps | JointSpace, T]:
    """The coordinates of a policy's actions, and the options of the stream with the workspace that
    belongs to them.

    Args:
        contract: contract of the policy.
        state: state of the arm at the beginning of the episode.
        robot: the arm with its gripper.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
        config: rate and limits.

    Raises:
        HandoffError: the contract does not define the actions.
    """
    if moves_joints(contract):
        space = JointSpace(contract, robot, flange_T_ee)
        governor = space.governed(config.governor, config.joints, state.q)
        return space, replace(config, governor=governor)
    steps = CartesianSteps(contract, state.base_T_ee, robot)
    return steps, replace(config, governor=steps.governed(config.governor))


def start_within(
    steps: CartesianDelta, robot: Robot, flange_T_ee: np.ndarray, q: np.ndarray
) -> np.ndarray:
    """The joint positions (J,) [rad] nearest to `q` (J,) at which the end effector is inside the
    workspace of the steps; `q` itself where it is outside by less than `NEGLIGIBLE`.

    An arm that begins an episode outside is led in by the first steps, whatever these are. Where
    nobody expects a motion, it has to begin inside.

    Args:
        steps: steps of the gripper's pose, whose box counts along their axes x, y and z.
        robot: the arm with its gripper.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
        q: (J,) joint positions [rad].

    Raises:
        HandoffError: the arm does not reach the nearest place of the workspace.
    """
    base_T_ee = robot.chain.forward_kinematics(q) @ flange_T_ee
    inside = base_T_ee.copy()
    for axis, (low, high) in enumerate(zip(steps.low, steps.high, strict=True)):
        if AXES[axis] in steps.axes:
            inside[axis, 3] = np.clip(inside[axis, 3], low, high)
    if np.abs(inside - base_T_ee).max() < NEGLIGIBLE:
        return q
    return inverse_kinematics(robot, inside @ np.linalg.inv(flange_T_ee), q)


def moves_joints(contract: Contract) -> bool:
    """Whether a policy's actions move the joints, instead of the gripper's pose."""
    return contract.steps is not None and not isinstance(contract.steps, CartesianDelta)


def num_coordinates(contract: Contract, robot: Robot) -> int:
    """Number D of coordinates that a policy's actions move, without the gripper's opening.

    Raises:
        HandoffError: the contract does not define the actions.
    """
    if contract.steps is None:
        raise HandoffError(
            f"deploy: the contract of {contract.task} does not define the action steps. Export the policy again; a "
            "task's own steps are then part of it."
        )
    return len(contract.steps.spec(robot).names)


def has_gripper(contract: Contract, robot: Robot) -> bool:
    """Whether an action has an entry for the gripper."""
    if contract.steps is None:
        return False
    return contract.action.shape[0] > num_coordinates(contract, robot)


def with_law(config: FrankaConfig, contract: Contract) -> FrankaConfig:
    """The options of an arm with the impedance law that follows a policy's actions.

    Raises:
        HandoffError: the options name the other law, which cannot follow them.
    """
    chosen = config.impedance.controller
    if not moves_joints(contract):
        return config
    if chosen == "cartesian":
        raise HandoffError(
            f"arm.impedance.controller is 'cartesian', but actions of the policy of {contract.task} are "
            f"'{contract.action_interface}', which the joint law follows. Leave it out, or set it to joint."
        )
    return replace(config, impedance=replace(config.impedance, controller="joint"))
