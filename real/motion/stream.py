"""Streams the reference of one episode to an arm: each tick samples the point that moves towards
the newest target, applies the governor and the joint limits, and sends the result."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated

import numpy as np
from pydantic import Field

from real.arm import Arm, ArmState
from real.franka.joint_limits import JointGuardConfig, check_joints
from real.motion.action_space import Space
from real.motion.energy_tank import EnergyTank, EnergyTankConfig
from real.motion.fence import Fence, FenceConfig
from real.motion.force_guard import ForceGuard, ForceGuardConfig
from real.motion.governor import GovernorConfig, ReferenceGovernor
from real.motion.reference_bounds import ReferenceBounds
from robots.config import config
from robots.control.actions import Motion
from robots.errors import HandoffError
from robots.interfaces import Clock
from robots.spec import FieldSpec


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
    """Places that elbow, wrist, flange and tool keep out of."""
    force: ForceGuardConfig = field(default_factory=ForceGuardConfig)
    """Limits of what the robot feels from outside."""
    energy_tank: EnergyTankConfig = field(default_factory=EnergyTankConfig)
    """Energy that the reference may put into the arm."""

    def monitored(self) -> dict[str, FieldSpec]:
        """Fields that the guards add to the record of every tick; see
        `ReferenceStream.monitored`."""
        fields = {}
        if not self.force.empty:
            fields["wrench_ext"] = FieldSpec(
                shape=(6,),
                unit="N, Nm",
                frame="base",
                about="external force and moment, filtered and without bias, see loop.force",
            )
        if self.energy_tank.size is not None:
            fields["tank_energy"] = FieldSpec(
                shape=(),
                unit="J",
                about="energy in the tank of the reference, see loop.energy_tank",
            )
        return fields


class ReferenceStream:
    """The references of an arm from where it is found, at rest and under control.

    Args:
        arm: an arm that is under control.
        clock: clock of the robot.
        space: coordinates of the targets.
        config: rate and limits.
        flange_T_ee: (4, 4) end effector in the flange frame [m].

    Raises:
        HandoffError: limits that contradict one another, or exceed the robot's.
        SafetyError: the arm is outside the keep-in box, or feels too large a force at rest.
    """

    def __init__(
        self,
        arm: Arm,
        clock: Clock,
        space: Space,
        config: StreamConfig,
        flange_T_ee: np.ndarray,
    ) -> None:
        period = 1.0 / config.stream_hz
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
        self._config = config
        self._guard = self._force_guard()
        start = space.position(self.state.base_T_ee)
        feeds_velocity = space.feeds_velocity
        braking = config.governor.max_acceleration / len(start) ** 0.5
        self._tank = (
            None
            if config.energy_tank.size is None
            else EnergyTank(config.energy_tank, period, braking, feeds_velocity=feeds_velocity)
        )
        self.governor = ReferenceGovernor(
            config.governor,
            period,
            start,
            arm.robot,
            feeds_velocity=feeds_velocity,
            velocity_filter=self._tank,
        )
        fence = config.fence
        self._bounds = ReferenceBounds(
            config.joints,
            arm,
            flange_T_ee,
            period,
            feeds_velocity=feeds_velocity,
            fence=None if fence.empty else Fence(fence, arm.robot, flange_T_ee, braking),
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
        axes, before = self._space.velocity_axes(), self.streamed
        bounds = self._bounds.next(self.state, axes, before, measured)
        response = self._bounds.coordinates
        if self._tank is not None:
            loss = self._bounds.damping_loss(self.state.dq)
            self._tank.observe(before, measured, response, loss)
        if brake:
            asked = self.governor.brake(measured, bounds)
            self.streamed = asked
            self.point = self._space.reference(asked.position, time)
        else:
            asked = self.point.sample(time)
            limited = (
                asked
                if self._guard is None
                else self._guard.limited(asked, measured, response.stiffness, axes)
            )
            self.streamed = self.governor.step(limited, measured, bounds)
        if self._tank is not None:
            self._tank.spend(self.streamed.position - before.position)
        dq = self._bounds.joint_velocity(self.streamed.velocity)
        check_joints(self._config.joints, self._arm.robot, self.state.q, dq)
        self._arm.set_target(self._space.target(self._bounds.fed(self.streamed)))
        return asked.position

    def pass_tick(self) -> None:
        """Lets the tick pass, and reads the arm's state.

        Raises:
            SafetyError: the robot has stopped by itself, or an external force has lasted too long.
        """
        self._advance()
        if self._guard is not None:
            self._guard.observe(self.state)

    def monitored(self) -> dict[str, np.ndarray]:
        """What the guards found at the end of the last tick, per field of
        `StreamConfig.monitored`."""
        found: dict[str, np.ndarray] = {}
        if self._guard is not None:
            found["wrench_ext"] = self._guard.wrench
        if self._tank is not None:
            found["tank_energy"] = np.array(self._tank.level)
        return found

    def _advance(self) -> ArmState:
        self.now = self._clock.advance(self.period)
        self.state = self._arm.state()
        return self.state

    def _force_guard(self) -> ForceGuard | None:
        """The guard of the episode, which has looked at the arm at rest; None without limits."""
        config = self._config.force
        if config.empty:
            return None
        guard = ForceGuard(config, self._arm.robot, self.period)
        guard.rest([self._advance() for _ in range(guard.rest_ticks)])
        return guard


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
