"""Defines the coordinates in which a policy's actions move a target, and converts actions to
targets.

`real.motion.planar_space.Plane` is one such space, of targets on a board; `CartesianSteps` is
another, of steps of a gripper's pose; `real.motion.joint_space.JointSpace` is that of the joints.
The loop sends targets of all through one governor, whose limits are Euclidean; therefore all
coordinates are lengths.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from real.arm import ArmState, JointPositionTarget, PoseTarget
from real.motion.governor import GovernorConfig
from robots.contract import Contract
from robots.control.actions import AXES, CartesianDelta, Motion
from robots.control.agent_reference import checked_target
from robots.errors import HandoffError
from robots.franka.chain import KinematicChain
from robots.franka.kinematics import batched_jacobian, rotation_matrix, rotation_vector
from robots.franka.robot import Robot
from robots.interfaces import Observation

LEVER = 0.1
"""Length that stands for a rotation by one radian [m]: the distance that the fingers' outer edges
move."""

SETTLING = 0.005
"""Distance by which an arm may settle, once it is under control, beyond the pose from which its
workspace was made [m]; an assumption, of which a simulated arm takes 0.1 mm."""


class Reference(Protocol):
    """A point that moves towards targets; `robots.control.agent_reference.AgentReference` is
    one."""

    @property
    def target(self) -> np.ndarray:
        """(D,) newest target [m]."""
        ...

    def push(self, target: np.ndarray) -> None:
        """Sets the target (D,) [m]."""
        ...

    def sample(self, time: float) -> Motion:
        """Motion of the point at `time` [s], which must not decrease."""
        ...


class Space(Protocol):
    """A space of D coordinates [m] of an arm's end effector."""

    interface: str
    """Action interface that the space implements, see `robots.control.actions`."""
    feeds_velocity: bool
    """Whether targets carry the reference's velocity and acceleration, which the impedance law then
    feeds forward."""

    def measured(self, state: ArmState) -> np.ndarray:
        """(D,) coordinates [m] of an arm in that state."""
        ...

    def target(self, motion: Motion) -> PoseTarget | JointPositionTarget:
        """Target of the impedance law for a motion in these coordinates."""
        ...

    def velocity_axes(self, q: np.ndarray) -> np.ndarray:
        """(6, D) twists in the base frame of unit velocities along the coordinates, of an arm at
        joint positions `q` (J,) [rad]."""
        ...

    def joint_map(self) -> np.ndarray | None:
        """(J, D) joint velocities [rad/s] of unit velocities along the coordinates; None where they
        follow from `velocity_axes` as the smallest ones."""
        ...

    def reference(self, position: np.ndarray, time: float = 0.0) -> Reference:
        """A point that has been at rest at `position` (D,) [m] since `time` [s]."""
        ...

    def next_target(
        self, action: np.ndarray, target: np.ndarray, measured: np.ndarray
    ) -> np.ndarray:
        """(D,) target [m] of the action (A,), given the present target and the arm's measured
        position (D,) [m]."""
        ...

    def executed_action(self, action: np.ndarray | None, target: np.ndarray) -> np.ndarray:
        """(A,) the action to be recorded, given the action (A,), None if none was due, and the
        target (D,) [m] in force after it."""
        ...

    def proprioception(self, state: ArmState, target: np.ndarray) -> Observation:
        """Observation of the arm itself, per field without a leading dimension.

        Args:
            state: state of the arm.
            target: (D,) the present target [m].
        """
        ...


class CartesianSteps:
    """Implements `Space` for the interface `cartesian_delta`: steps of the frame "grasp"
    (`robots.franka.robot.Gripper`), base axes.

    The coordinates are the axes of the steps; rotations (entries of the rotation vector) count
    times `LEVER`. The other axes keep their values from the beginning of the episode. As in
    simulation, the damping acts against rest: targets carry no velocity.

    Args:
        contract: contract of the policy.
        base_T_ee: (4, 4) pose of the end effector at the beginning of the episode [m]; its axes are
            the flange's.
        robot: the arm with its gripper.

    Raises:
        HandoffError: the contract does not define a step.
    """

    interface = "cartesian_delta"
    feeds_velocity = False

    def __init__(self, contract: Contract, base_T_ee: np.ndarray, robot: Robot) -> None:
        steps = contract.steps
        if contract.action_interface != self.interface or not isinstance(steps, CartesianDelta):
            raise HandoffError(
                f"contract: interface '{contract.action_interface}' of {contract.task}, which does not say what a step "
                "is. Export the policy again; a task's own steps are then part of it."
            )
        self._chain = robot.chain
        self._flange_R_grasp = robot.gripper.flange_R_grasp
        self._steps = steps
        self._period = 1.0 / contract.rate_hz
        self._index = np.array([AXES.index(axis) for axis in steps.axes])
        self._scale = np.where(self._index < 3, 1.0, LEVER)
        self._size = int(np.prod(contract.action.shape))
        self._pose = self._grasp(base_T_ee)

    def governed(self, config: GovernorConfig) -> GovernorConfig:
        """Limits of `config` with the steps' box, which is widened to contain the arm's first pose,
        and what is nearer to it than `SETTLING`: as in simulation, an arm that starts outside is
        led in."""
        limit = np.full(3, self._steps.rotation_limit)
        low, high = np.array([*self._steps.low, *-limit]), np.array([*self._steps.high, *limit])
        first = self._pose[self._index] * self._scale
        lowest = np.minimum(low[self._index] * self._scale, first - SETTLING)
        highest = np.maximum(high[self._index] * self._scale, first + SETTLING)
        return replace(config, low=tuple(lowest.tolist()), high=tuple(highest.tolist()))

    def position(self, base_T_ee: np.ndarray) -> np.ndarray:
        """(D,) coordinates [m] of the end effector at `base_T_ee` (4, 4)."""
        return self._grasp(base_T_ee)[self._index] * self._scale

    def pose(self, position: np.ndarray) -> np.ndarray:
        """(6,) position [m] and rotation vector [rad] of the frame "grasp" at coordinates (D,)
        [m]."""
        pose = self._pose.copy()
        pose[self._index] = position / self._scale
        return pose

    def target(self, motion: Motion) -> PoseTarget:
        """See `Space`."""
        pose = self.pose(motion.position)
        base_T_ee = np.eye(4)
        base_T_ee[:3, :3] = rotation_matrix(pose[3:]) @ self._flange_R_grasp.T
        base_T_ee[:3, 3] = pose[:3]
        return PoseTarget(base_T_ee, np.zeros(6), np.zeros(6))

    def measured(self, state: ArmState) -> np.ndarray:
        """See `Space`."""
        return self.position(state.base_T_ee)

    def velocity_axes(self, q: np.ndarray) -> np.ndarray:
        """See `Space`: the same for all joint positions."""
        return np.eye(6)[:, self._index] / self._scale

    def joint_map(self) -> None:
        """See `Space`: none."""

    def reference(self, position: np.ndarray, time: float = 0.0) -> StepReference:
        """See `Space`."""
        return StepReference(position, self._period, time)

    def next_target(
        self, action: np.ndarray, target: np.ndarray, measured: np.ndarray
    ) -> np.ndarray:
        """See `Space`."""
        moved = self._steps.target(
            self.pose(target), self.pose(measured), action[: len(self._index)]
        )
        return moved[self._index] * self._scale

    def executed_action(self, action: np.ndarray | None, target: np.ndarray) -> np.ndarray:
        """See `Space`: without an action a step of zeros."""
        return np.zeros(self._size) if action is None else np.clip(action, -1.0, 1.0)

    def proprioception(self, state: ArmState, target: np.ndarray) -> Observation:
        """See `Space`: the fields of `sim.tasks.task.proprioception` without the gripper's, and
        those that tasks derive from them."""
        return arm_observation(state, self.pose(target), self._chain, self._flange_R_grasp)

    def _grasp(self, base_T_ee: np.ndarray) -> np.ndarray:
        """(6,) position [m] and rotation vector [rad] of the frame "grasp"."""
        return grasp_pose(base_T_ee, self._flange_R_grasp)


def grasp_pose(base_T_ee: np.ndarray, flange_R_grasp: np.ndarray) -> np.ndarray:
    """(6,) position [m] and rotation vector [rad] of the frame "grasp" of an end effector at
    `base_T_ee` (4, 4), whose axes are the flange's."""
    rotation = rotation_vector(base_T_ee[:3, :3] @ flange_R_grasp)
    return np.concatenate([base_T_ee[:3, 3], rotation])


def arm_observation(
    state: ArmState, target: np.ndarray, chain: KinematicChain, flange_R_grasp: np.ndarray
) -> Observation:
    """The fields of `sim.tasks.task.proprioception` without the gripper's, and those that tasks
    derive from them.

    Args:
        state: state of the arm.
        target: (6,) position [m] and rotation vector [rad] of the frame "grasp" at the target.
        chain: kinematic chain of the robot.
        flange_R_grasp: (3, 3) frame "grasp" in the flange frame.
    """
    pose = grasp_pose(state.base_T_ee, flange_R_grasp)
    positions, rotations = chain.batched_joint_frames(state.q[None])
    jacobian = batched_jacobian(positions, rotations, state.base_T_ee[None, :3, 3])[0]
    fields = {
        "q": state.q,
        "dq": state.dq,
        "grasp_pose": pose,
        "target_offset": target - pose,
        "hand_turn": pose[3:],
        "hand_velocity": jacobian[:3] @ state.dq,
    }
    return {name: value.astype(np.float32) for name, value in fields.items()}


class StepReference:
    """Implements `Reference` by straight lines from target to target, each reached one policy
    period after it was set.

    Args:
        position: (D,) position at which the point rests at first [m].
        period: policy period [s].
        time: time of the beginning [s].
    """

    def __init__(self, position: np.ndarray, period: float, time: float = 0.0) -> None:
        start = np.array(position, dtype=np.float64)
        self._from = start
        self._to = start
        self._at = start
        self._period = period
        self._began = time
        self._now = time

    @property
    def target(self) -> np.ndarray:
        """(D,) [m]."""
        return self._to.copy()

    def push(self, target: np.ndarray) -> None:
        """See `Reference`.

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        target = checked_target(target, self._to.shape)
        self._from = self._at
        self._to = target
        self._began = self._now

    def sample(self, time: float) -> Motion:
        """See `Reference`; between two targets the velocity is constant and the acceleration 0."""
        share = min(max((time - self._began) / self._period, 0.0), 1.0)
        distance = self._to - self._from
        self._now = time
        self._at = self._from + share * distance
        velocity = distance / self._period if share < 1.0 else np.zeros_like(distance)
        return Motion(self._at.copy(), velocity, np.zeros_like(distance))
