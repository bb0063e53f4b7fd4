"""The coordinates in which a policy's actions move a target, and what becomes of an action there.

`real.deploy.planar_space.Plane` is one such space, of targets on a board; `CartesianSteps` is the
other, of steps of a hand's pose. The loop streams what they ask for through one governor, whose
limits are Euclidean; so all coordinates are lengths.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

import numpy as np

from real.arm import ArmState, PoseTarget
from real.deploy.governor import GovernorConfig
from robots.contract import Contract
from robots.control.actions import AXES, Motion, checked_target
from robots.errors import HandoffError
from robots.franka import gripper
from robots.franka.kinematics import (
    batched_jacobian,
    batched_joint_frames,
    rotation_matrix,
    rotation_vector,
)
from robots.interfaces import Observation

LEVER = 0.1
"""A turn by one radian counts as this way [m]: that of the fingers' outer edges."""


class Reference(Protocol):
    """A moving point that obeys targets; `robots.control.actions.AgentReference` is one."""

    @property
    def target(self) -> np.ndarray:
        """(D,) the newest target [m]."""
        ...

    def push(self, target: np.ndarray) -> None:
        """Obeys `target` (D,) [m] from now on."""
        ...

    def sample(self, time: float) -> Motion:
        """Where the point is at `time` [s], which never goes back."""
        ...


class Space(Protocol):
    """D coordinates [m] of an arm's end effector."""

    interface: str
    """Of `robots.control.actions`, whose actions are understood here."""

    def position(self, base_T_ee: np.ndarray) -> np.ndarray:
        """(D,) coordinates [m] of the end effector at `base_T_ee` (4, 4)."""
        ...

    def target(self, motion: Motion) -> PoseTarget:
        """What the impedance law is to follow, for a motion in these coordinates."""
        ...

    def velocity_axes(self) -> np.ndarray:
        """(6, D) twists in the base frame of unit velocities along the coordinates."""
        ...

    def reference(self, position: np.ndarray, time: float = 0.0) -> Reference:
        """A point at rest at `position` (D,) [m] since `time` [s]."""
        ...

    def asked(self, action: np.ndarray, target: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """(D,) target [m] that the action (A,) asks for, given the present one and the arm's
        position (D,) [m]."""
        ...

    def taken(self, action: np.ndarray | None, target: np.ndarray) -> np.ndarray:
        """(A,) the action that was executed where `action` was proposed and `target` (D,) [m] came
        of it."""
        ...

    def shown(self, state: ArmState, target: np.ndarray) -> Observation:
        """What a policy may be shown of the arm itself, per field without a leading dimension."""
        ...


class CartesianSteps:
    """Implements `Space` for the interface `cartesian_delta`: steps of the frame "grasp"
    (`robots.franka.gripper`), base axes.

    Coordinates are those of the steps' axes, turns (entries of the rotation vector) times `LEVER`.
    The other axes stay as the episode found them. As in the simulated worlds the law's dampers act
    against rest: no velocity goes ahead.
    """

    interface = "cartesian_delta"

    def __init__(self, contract: Contract, base_T_ee: np.ndarray) -> None:
        """Begins an episode.

        Args:
            contract: of the policy.
            base_T_ee: (4, 4) where the end effector is [m]; its axes are the flange's.

        Raises:
            HandoffError: the contract does not say what a step is.
        """
        steps = contract.steps
        if contract.action_interface != self.interface or steps is None:
            raise HandoffError(
                f"contract: interface '{contract.action_interface}' of {contract.task}, which does not say what a step "
                "is. Export the policy again; a task's own steps are then part of it."
            )
        self._steps, self._period = steps, 1.0 / contract.rate_hz
        self._index = np.array([AXES.index(axis) for axis in steps.axes])
        self._scale = np.where(self._index < 3, 1.0, LEVER)
        self._size = int(np.prod(contract.action.shape))
        self._pose = self._grasp(base_T_ee)

    def governed(self, config: GovernorConfig) -> GovernorConfig:
        """The limits of `config` with the box that the steps lead in, widened to where the episode
        begins: as in the simulated worlds an arm that starts outside is led in."""
        limit = np.full(3, self._steps.rotation_limit)
        low, high = np.array([*self._steps.low, *-limit]), np.array([*self._steps.high, *limit])
        low, high = np.minimum(low, self._pose), np.maximum(high, self._pose)
        corners = ((corner[self._index] * self._scale).tolist() for corner in (low, high))
        lowest, highest = (tuple(corner) for corner in corners)
        return replace(config, low=lowest, high=highest)

    def position(self, base_T_ee: np.ndarray) -> np.ndarray:
        """See `Space`."""
        return self._grasp(base_T_ee)[self._index] * self._scale

    def target(self, motion: Motion) -> PoseTarget:
        """See `Space`."""
        pose = self._whole(motion.position)
        base_T_ee = np.eye(4)
        base_T_ee[:3, :3] = rotation_matrix(pose[3:]) @ gripper.FLANGE_R_GRASP.T
        base_T_ee[:3, 3] = pose[:3]
        return PoseTarget(base_T_ee, np.zeros(6), np.zeros(6))

    def velocity_axes(self) -> np.ndarray:
        """See `Space`."""
        return np.eye(6)[:, self._index] / self._scale

    def reference(self, position: np.ndarray, time: float = 0.0) -> StepReference:
        """See `Space`."""
        return StepReference(position, self._period, time)

    def asked(self, action: np.ndarray, target: np.ndarray, measured: np.ndarray) -> np.ndarray:
        """See `Space`."""
        moved = self._steps.target(
            self._whole(target), self._whole(measured), action[: len(self._index)]
        )
        return moved[self._index] * self._scale

    def taken(self, action: np.ndarray | None, target: np.ndarray) -> np.ndarray:
        """See `Space`: none is a step of nothing."""
        return np.zeros(self._size) if action is None else np.clip(action, -1.0, 1.0)

    def shown(self, state: ArmState, target: np.ndarray) -> Observation:
        """See `Space`: the fields of `sim.tasks.task.proprioception` but the hand's, and what tasks
        derive of them."""
        pose = self._grasp(state.base_T_ee)
        positions, rotations = batched_joint_frames(state.q[None])
        jacobian = batched_jacobian(positions, rotations, state.base_T_ee[None, :3, 3])[0]
        fields = {
            "q": state.q,
            "dq": state.dq,
            "grasp_pose": pose,
            "target_offset": self._whole(target) - pose,
            "hand_turn": pose[3:],
            "hand_velocity": jacobian[:3] @ state.dq,
        }
        return {name: value.astype(np.float32) for name, value in fields.items()}

    def _grasp(self, base_T_ee: np.ndarray) -> np.ndarray:
        """(6,) position [m] and rotation vector [rad] of the frame "grasp"."""
        turned = rotation_vector(base_T_ee[:3, :3] @ gripper.FLANGE_R_GRASP)
        return np.concatenate([base_T_ee[:3, 3], turned])

    def _whole(self, position: np.ndarray) -> np.ndarray:
        """(6,) pose of the frame "grasp" at coordinates (D,)."""
        pose = self._pose.copy()
        pose[self._index] = position / self._scale
        return pose


class StepReference:
    """Implements `Reference`: straight from target to target, each reached one policy period after
    it was told."""

    def __init__(self, position: np.ndarray, period: float, time: float = 0.0) -> None:
        """At rest at `position` (D,) [m] since `time` [s]; `period` is the policy's [s]."""
        self._from = self._to = self._at = np.array(position, dtype=np.float64)
        self._period, self._began, self._now = period, time, time

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
        self._from, self._to, self._began = self._at, target, self._now

    def sample(self, time: float) -> Motion:
        """See `Reference`; between two targets the velocity is constant, so it has no
        acceleration."""
        share = min(max((time - self._began) / self._period, 0.0), 1.0)
        way = self._to - self._from
        self._now, self._at = time, self._from + share * way
        velocity = way / self._period if share < 1.0 else np.zeros_like(way)
        return Motion(self._at.copy(), velocity, np.zeros_like(way))
