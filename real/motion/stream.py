"""Streams the reference of one episode to an arm: each tick samples the point that moves towards
the newest target, applies the governor and the joint limits, and sends the result."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

import numpy as np
from pydantic import Field

from real.arm import Arm
from real.franka.joint_limits import JointGuardConfig, check_joints
from real.motion.action_space import Space
from real.motion.fence import Fence, FenceConfig
from real.motion.governor import GovernorConfig, ReferenceGovernor
from real.motion.reference_bounds import ReferenceBounds
from robots.config import config
from robots.control.actions import Motion
from robots.errors import HandoffError
from robots.interfaces import Clock


@config
class StreamConfig:
    """Rate and limits of a stream of references."""

    stream_hz: Annotated[float, Field(gt=0.0, le=1000.0)] = 250.0
    """Targets per second [1/s]."""
    governor: GovernorConfig = field(default_factory=GovernorConfig)
    """Limits of the reference."""
    joints: JointGuardConfig = field(default_factory=JointGuardConfig)
    """Limits of the joints."""
    fence: FenceConfig = field(default_factory=FenceConfig)
    """Places that the arm keeps out of."""


class ReferenceStream:
    """The references of an arm from where it is found, at rest and under control.

    Args:
        arm: an arm that is under control.
        clock: clock of the robot.
        space: coordinates of the targets.
        governor: limits of the reference.
        joints: limits of the joints.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
        period: period of a tick [s].
        fence: places that the arm keeps out of; None for none.

    Raises:
        HandoffError: limits that contradict one another, or exceed the robot's.
        SafetyError: the arm is outside the keep-in box.
    """

    def __init__(
        self,
        arm: Arm,
        clock: Clock,
        space: Space,
        governor: GovernorConfig,
        joints: JointGuardConfig,
        flange_T_ee: np.ndarray,
        period: float,
        *,
        fence: FenceConfig | None = None,
    ) -> None:
        self.period = period
        """Period of a tick [s]."""
        self.ticks = 0
        """Number of ticks so far."""
        self.state = arm.state()
        """State of the arm at the end of the last tick."""
        self.now = clock.now()
        """Robot time at the end of the last tick [s]."""
        self._arm = arm
        self._clock = clock
        self._space = space
        self._joints = joints
        start = space.position(self.state.base_T_ee)
        feeds_velocity = space.feeds_velocity
        self.governor = ReferenceGovernor(
            governor, period, start, arm.robot, feeds_velocity=feeds_velocity
        )
        braking = governor.max_acceleration / len(start) ** 0.5
        self._bounds = ReferenceBounds(
            joints,
            arm,
            flange_T_ee,
            period,
            feeds_velocity=feeds_velocity,
            fence=None
            if fence is None or fence.empty
            else Fence(fence, arm.robot, flange_T_ee, braking),
        )
        self.point = space.reference(start)
        """The point that moves towards the newest target."""
        self.streamed = Motion(start, np.zeros_like(start), np.zeros_like(start))
        """The reference that was sent last."""

    @property
    def measured(self) -> np.ndarray:
        """(D,) position of the arm in the coordinates of the space [m]."""
        return self._space.position(self.state.base_T_ee)

    def set_target(self, target: np.ndarray) -> None:
        """Moves towards the target (D,) [m], or the point of the keep-in box nearest to it."""
        self.point.push(self.governor.clamp(target))

    def send(self, *, brake: bool = False) -> np.ndarray:
        """Sends the reference for the end of the tick that begins now; returns the position (D,)
        that was asked for [m].

        Args:
            brake: whether the reference comes to rest where it is, instead of moving on.

        Raises:
            SafetyError: the reference, the arm or a joint is beyond a limit.
        """
        self.ticks += 1
        time, measured = self.ticks * self.period, self.measured
        axes = self._space.velocity_axes()
        bounds = self._bounds.next(self.state, axes, self.streamed, measured)
        if brake:
            asked = self.governor.brake(measured, bounds)
            self.streamed = asked
            self.point = self._space.reference(asked.position, time)
        else:
            asked = self.point.sample(time)
            self.streamed = self.governor.step(asked, measured, bounds)
        dq = self._bounds.joint_velocity(self.streamed.velocity)
        check_joints(self._joints, self._arm.robot, self.state.q, dq)
        self._arm.set_target(self._space.target(self._bounds.fed(self.streamed)))
        return asked.position

    def pass_tick(self) -> None:
        """Lets the tick pass, and reads the arm's state.

        Raises:
            SafetyError: the robot has stopped by itself.
        """
        self.now = self._clock.advance(self.period)
        self.state = self._arm.state()


def ticks_per_step(stream_hz: float, rate_hz: float) -> int:
    """Number of stream ticks per policy step.

    Args:
        stream_hz: targets per second [1/s].
        rate_hz: policy steps per second [1/s].

    Raises:
        HandoffError: the one is no multiple of the other, or a tick no whole number of
            milliseconds.
    """
    ticks = round(stream_hz / rate_hz)
    milliseconds = 1000.0 / stream_hz
    if (
        ticks < 1
        or abs(ticks * rate_hz - stream_hz) > 1e-9
        or abs(milliseconds - round(milliseconds)) > 1e-9
    ):
        raise HandoffError(
            f"loop: {stream_hz} Hz targets for a policy at {rate_hz} Hz, expected a whole multiple with a period of "
            "whole milliseconds, e.g. 250 or 1000."
        )
    return ticks
