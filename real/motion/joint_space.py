"""Defines the coordinates of actions that move the joints, one by one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from real.arm import ArmState, JointPositionTarget
from real.franka.joint_limits import JointGuardConfig, tool_jacobian
from real.motion.action_space import StepReference, arm_observation, grasp_pose
from real.motion.governor import GovernorConfig
from robots.contract import Contract
from robots.control.actions import JointDelta, JointTarget, Motion
from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.interfaces import Observation

LEVER = 0.2
"""Length that stands for a turn of a joint by one radian [m], so that the governor's limits, which
are lengths, hold for joints as well: 0.8 m/s are 4 rad/s, a lag of 60 mm is 0.3 rad."""
OVERSHOOT = 0.02
"""Distance that targets keep from the joint positions at which an episode ends with a fault
[rad]."""
SETTLING = 0.002
"""Turn by which a joint may settle, once the arm is under control, beyond the position from which
its workspace was made [rad]."""


class JointSpace:
    """Implements `real.motion.action_space.Space` for the interfaces `joint_delta` and
    `joint_target`: the coordinates are the joints' positions times `LEVER`.

    As in simulation, the damping acts against rest: targets carry no velocity.

    Args:
        contract: contract of the policy.
        robot: the arm with its gripper.
        flange_T_ee: (4, 4) end effector in the flange frame [m].

    Raises:
        HandoffError: the contract does not define the actions.
    """

    feeds_velocity = False

    def __init__(self, contract: Contract, robot: Robot, flange_T_ee: np.ndarray) -> None:
        steps = contract.steps
        if not isinstance(steps, JointDelta | JointTarget):
            raise HandoffError(
                f"contract: interface '{contract.action_interface}' of {contract.task}, which does not say what an "
                "action of the joints is. Export the policy again."
            )
        self.interface = steps.kind
        """See `Space`."""
        self._steps = steps
        self._robot = robot
        self._flange_T_ee = flange_T_ee
        self._period = 1.0 / contract.rate_hz
        self._size = int(np.prod(contract.action.shape))

    def governed(
        self, config: GovernorConfig, guard: JointGuardConfig, q: np.ndarray
    ) -> GovernorConfig:
        """Limits of `config` with the box of the joints' positions, which is widened to contain the
        arm's first ones, `q` (J,) [rad], and what is nearer to them than `SETTLING`."""
        limits = self._robot.limits
        margin = max(self._steps.margin, guard.position_margin + OVERSHOOT)
        low = np.minimum(limits.q_min + margin, q - SETTLING) * LEVER
        high = np.maximum(limits.q_max - margin, q + SETTLING) * LEVER
        return replace(config, low=tuple(low.tolist()), high=tuple(high.tolist()))

    def measured(self, state: ArmState) -> np.ndarray:
        """See `Space`."""
        return state.q * LEVER

    def target(self, motion: Motion) -> JointPositionTarget:
        """See `Space`."""
        return JointPositionTarget(motion.position / LEVER, np.zeros_like(motion.position))

    def velocity_axes(self, q: np.ndarray) -> np.ndarray:
        """See `Space`."""
        return tool_jacobian(self._robot.chain, q, self._flange_T_ee) / LEVER

    def joint_map(self) -> np.ndarray:
        """See `Space`."""
        return np.eye(self._robot.num_joints) / LEVER

    def reference(self, position: np.ndarray, time: float = 0.0) -> StepReference:
        """See `Space`."""
        return StepReference(position, self._period, time)

    def next_target(
        self, action: np.ndarray, target: np.ndarray, measured: np.ndarray
    ) -> np.ndarray:
        """See `Space`."""
        limits, arm = self._robot.limits, np.asarray(action[: len(target)], dtype=np.float64)
        present = (target / LEVER, measured / LEVER, arm)
        if isinstance(self._steps, JointDelta):
            return LEVER * self._steps.target(*present, limits)
        return LEVER * self._steps.target(*present, self._period, limits)

    def executed_action(self, action: np.ndarray | None, target: np.ndarray) -> np.ndarray:
        """See `Space`: without an action a step of zeros, or the target in force and a gripper that
        keeps half open."""
        if isinstance(self._steps, JointDelta):
            return np.zeros(self._size) if action is None else np.clip(action, -1.0, 1.0)
        if action is not None:
            return action
        still = np.zeros(self._size)
        still[: len(target)] = target / LEVER
        return still

    def proprioception(self, state: ArmState, target: np.ndarray) -> Observation:
        """See `Space`: the offset of the target is that of its pose."""
        chain, gripper = self._robot.chain, self._robot.gripper
        aimed = chain.forward_kinematics(target / LEVER) @ self._flange_T_ee
        pose = grasp_pose(aimed, gripper.flange_R_grasp)
        return arm_observation(state, pose, chain, gripper.flange_R_grasp)
