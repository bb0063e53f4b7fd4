"""Bounds the velocity of a reference by the limits of the joints: by their velocities in the
present pose, and by the torques and torque rates with which the impedance law would answer.

A torque that a reference demands faster than the robot can change it is not refused: the client
cuts every joint's torque for itself, so that the arm pulls in another direction than the law says
and swings. Here the reference is slowed down instead.

Where the reference's acceleration is fed to the arm, too, it may jump in one tick. Then half of the
torque rate is for springs and dampers, and the other half for the fed acceleration, which follows
that of the reference at a bounded rate.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from real.arm import Arm, ArmState, TorqueResponse
from real.franka.joint_limits import (
    JointGuardConfig,
    VelocityBounds,
    joint_velocity,
    velocity_rows,
)
from real.motion.fence import Fence
from robots.control.actions import Motion

GEOMETRY_TICKS = 2
"""Stream ticks between two evaluations of the arm's Jacobian; at 2 rad/s a joint turns by 0.016 rad
in 8 ms."""


class CoordinateResponse(NamedTuple):
    """Forces with which the impedance law answers a reference, along the D coordinates of a
    task."""

    stiffness: np.ndarray
    """(D, D) force per distance of the reference from the arm [N/m]."""
    damping: np.ndarray
    """(D, D) force per velocity of the reference [Ns/m]."""


class ReferenceBounds:
    """The bounds of one reference, at one stream tick after another.

    Args:
        config: shares of the joints' limits.
        arm: the arm, whose impedance law follows the reference.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
        period: period of a tick [s].
        feeds_velocity: whether the law's targets carry the reference's velocity and acceleration.
        fence: places that the points of the arm keep out of; None for none.
    """

    def __init__(
        self,
        config: JointGuardConfig,
        arm: Arm,
        flange_T_ee: np.ndarray,
        period: float,
        *,
        feeds_velocity: bool,
        fence: Fence | None = None,
    ) -> None:
        self._config = config
        self._fence = fence
        self._arm = arm
        self._flange_T_ee = flange_T_ee
        self._period = period
        self._feeds_velocity = feeds_velocity
        self._ticks = 0
        limits = arm.robot.limits
        self._torque = config.torque_share * limits.tau_max
        self._rate = config.torque_rate_share * limits.dtau_max / (2.0 if feeds_velocity else 1.0)
        self._dq_per_speed = np.zeros((0, 0))
        self._response = TorqueResponse(*(np.zeros((0, 0)) for _ in range(5)))
        self._coordinates = CoordinateResponse(np.zeros((0, 0)), np.zeros((0, 0)))
        self._fed = np.zeros(0)
        self._rows = np.zeros((0, 0))

    def next(
        self,
        state: ArmState,
        axes: np.ndarray,
        reference: Motion,
        measured: np.ndarray,
        along: np.ndarray | None = None,
    ) -> VelocityBounds:
        """The bounds on the reference's velocity at the end of the tick that begins now.

        Args:
            state: state of the arm.
            axes: (6, D) twists in the base frame of unit velocities along the coordinates.
            reference: the reference now, at the end of the tick before.
            measured: (D,) measured position of the arm in the coordinates [m].
            along: (J, D) joint velocities [rad/s] of unit velocities along the coordinates; None
                takes the smallest that move the end effector so.

        Returns:
            Bounds in which the mean torque rate of the tick, and the torque at its end, follow from
            the law's response; the arm is taken to keep its velocity.

        Raises:
            SafetyError: a point of the arm is inside the fence.
        """
        if self._ticks % GEOMETRY_TICKS == 0:
            self._renew(state.q, axes, along)
        self._ticks += 1
        response, dt = self._response, self._period
        # The rate is `row @ v + rate` for the velocity v at the end of the tick, the torque
        # `torque` now.
        feed = response.damping if self._feeds_velocity else np.zeros_like(response.damping)
        row = response.stiffness / 2.0 + feed / dt
        rate = (response.stiffness / 2.0 - feed / dt) @ reference.velocity
        rate -= response.joint_stiffness @ state.dq
        torque = response.stiffness @ (reference.position - measured) + feed @ reference.velocity
        torque -= response.joint_damping @ state.dq
        rows = [self._rows, row / self._rate[:, None], row * (dt / self._torque)[:, None]]
        offsets = [
            np.zeros(len(self._rate)),
            rate / self._rate,
            (torque + rate * dt) / self._torque,
        ]
        if self._fence is not None:
            fenced = self._fence.bounds(reference.position - measured + reference.velocity * dt)
            rows.append(fenced.rows)
            offsets.append(fenced.offset)
        return VelocityBounds(np.concatenate(rows), np.concatenate(offsets))

    def fed(self, reference: Motion) -> Motion:
        """The reference with the acceleration that is to be fed to the arm in this tick, which has
        changed by no more than the torque rates allow."""
        if not self._feeds_velocity:
            return reference
        before = self._fed if self._fed.size else np.zeros_like(reference.acceleration)
        change = reference.acceleration - before
        torque = np.abs(self._response.inertia @ change) / (self._rate * self._period)
        self._fed = before + change / max(1.0, float(torque.max()))
        return reference._replace(acceleration=self._fed)

    def joint_velocity(self, velocity: np.ndarray) -> np.ndarray:
        """(J,) joint velocities [rad/s] of the reference's velocity (D,) [m/s], in the pose of the
        last evaluation."""
        return self._dq_per_speed @ velocity

    @property
    def coordinates(self) -> CoordinateResponse:
        """The impedance law's answer along the coordinates, in the pose of the last evaluation."""
        return self._coordinates

    def damping_loss(self, dq: np.ndarray) -> float:
        """Power that the impedance law's damping takes out of joints that move at `dq` (J,) [rad/s]
        [W]."""
        return float(dq @ self._response.joint_damping @ dq)

    def _renew(self, q: np.ndarray, axes: np.ndarray, along: np.ndarray | None) -> None:
        robot = self._arm.robot
        if along is None:
            along = joint_velocity(robot.chain, q, axes, self._flange_T_ee)
        self._dq_per_speed = along
        self._rows = velocity_rows(self._config, robot.limits, q, self._dq_per_speed)
        self._response = self._arm.torque_response(q, axes, along)
        # The power of a torque is that of a force along the coordinates.
        to_force = self._dq_per_speed.T
        self._coordinates = CoordinateResponse(
            to_force @ self._response.stiffness, to_force @ self._response.damping
        )
        if self._fence is not None:
            self._fence.renew(q, self._dq_per_speed)
