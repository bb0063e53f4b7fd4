"""Streams the reference of one episode to an arm: each tick judges the age of the newest action,
samples the point that moves towards the newest target, applies the governor and the joint limits,
and sends the result.

A stream runs in the process that drives the arm (`real.driver`); `Stream` is what the loop sees of
it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple, Protocol

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
from real.motion.watchdog import Freshness, Watchdog, WatchdogConfig
from robots.config import config
from robots.control.actions import Motion
from robots.errors import HandoffError
from robots.franka.robot import Robot
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


class Tick(NamedTuple):
    """One tick of a stream, once it has passed."""

    number: int
    """Number of the tick, from 1."""
    state: ArmState
    """State of the arm at the end of the tick."""
    now: float
    """Robot time at the end of the tick [s]."""
    asked: np.ndarray
    """(D,) position that was asked for [m]."""
    streamed: Motion
    """Reference that was sent."""
    sent_at: float
    """Time of this computer at which it was sent [s], `time.monotonic`."""
    target: np.ndarray
    """(D,) target in force at the end of the tick [m]."""
    measured: np.ndarray
    """(D,) position of the arm at the end of the tick [m]."""
    monitored: dict[str, np.ndarray]
    """What the guards found, per field of `StreamConfig.monitored`."""


@dataclass(frozen=True)
class ActionAge:
    """How old the newest action of a stream may become."""

    limits: WatchdogConfig
    """Age limits."""
    period: float
    """Policy period [s]."""


class Stream(Protocol):
    """The references of an arm, as those see them who set its targets."""

    @property
    def period(self) -> float:
        """Period of a tick [s]."""
        ...

    @property
    def last(self) -> Tick:
        """The last tick that has passed; before the first, where the arm is."""
        ...

    @property
    def target(self) -> np.ndarray:
        """(D,) the newest target [m]."""
        ...

    def clamp(self, target: np.ndarray) -> np.ndarray:
        """The point of the keep-in box nearest to a target (D,) [m].

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        ...

    def feed(self) -> None:
        """Notes that the arm has been given a valid action, or is held on purpose."""
        ...

    def set_target(self, target: np.ndarray) -> None:
        """Moves towards the target (D,) [m], or the point of the keep-in box nearest to it.

        Raises:
            SafetyError: wrong shape or a non-finite entry.
        """
        ...

    def send(self, *, brake: bool = False) -> None:
        """Lets the next tick begin; see `ReferenceStream.send`."""
        ...

    def pass_tick(self) -> Sequence[Tick]:
        """Waits until the tick has passed, and returns it; where the driver has not waited for
        those who set targets, with the ticks before it.

        Raises:
            SafetyError: a limit, the watchdog or the robot ended the stream.
        """
        ...


class StreamingArm(Protocol):
    """An arm that follows a stream of references; `real.driver.driven_arm.DrivenArm` is one."""

    @property
    def robot(self) -> Robot:
        """Model of the robot: its limits, kinematics and gripper."""
        ...

    def start(self) -> None:
        """Takes control and holds the present pose."""
        ...

    def stream(self, clock: Clock, space: Space, config: StreamConfig, age: ActionAge) -> Stream:
        """Begins the references from where the arm is, under control.

        Args:
            clock: clock of the robot.
            space: coordinates of the targets.
            config: rate and limits.
            age: age limits of the newest action.

        Raises:
            HandoffError: limits that contradict one another, or exceed the robot's.
            SafetyError: the arm is outside the keep-in box, or feels too large a force at rest.
        """
        ...

    def stop(self) -> None:
        """Brings the arm to rest and gives up control; has no effect without control."""
        ...


class ReferenceStream:
    """Implements `Stream` for an arm from where it is found, at rest and under control.

    Args:
        arm: an arm that is under control.
        clock: clock of the robot.
        space: coordinates of the targets.
        config: rate and limits.
        flange_T_ee: (4, 4) end effector in the flange frame [m].
        age: age limits of the newest action; None sets none, for steps that wait for one.

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
        age: ActionAge | None = None,
    ) -> None:
        period = 1.0 / config.stream_hz
        self.period = period
        """Period of a tick [s]."""
        self._state = arm.state()
        self._now = clock.now()
        self._arm = arm
        self._clock = clock
        self._space = space
        self._config = config
        self._guard = self._force_guard()
        start = space.measured(self._state)
        feeds_velocity = space.feeds_velocity
        braking = config.governor.max_acceleration / len(start) ** 0.5
        self._tank = (
            None
            if config.energy_tank.size is None
            else EnergyTank(config.energy_tank, period, braking, feeds_velocity=feeds_velocity)
        )
        self._governor = ReferenceGovernor(
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
        self._point = space.reference(start)
        """The point that moves towards the newest target."""
        self._watchdog = None if age is None else Watchdog(age.limits, age.period, self._now)
        rest = Motion(start, np.zeros_like(start), np.zeros_like(start))
        self.last = Tick(
            0,
            self._state,
            self._now,
            start,
            rest,
            time.monotonic(),
            self._point.target,
            start,
            self.monitored(),
        )
        """See `Stream`."""

    @property
    def target(self) -> np.ndarray:
        """See `Stream`."""
        return self._point.target

    def clamp(self, target: np.ndarray) -> np.ndarray:
        """See `Stream`."""
        return self._governor.box.clamp(target)

    def feed(self) -> None:
        """See `Stream`."""
        if self._watchdog is not None:
            self._watchdog.feed(self._now)

    def set_target(self, target: np.ndarray) -> None:
        """See `Stream`."""
        self._point.push(self.clamp(target))

    def send(self, *, brake: bool = False) -> None:
        """Sends the reference for the end of the tick that begins now.

        Args:
            brake: whether the reference comes to rest where it is, instead of moving on.

        Raises:
            SafetyError: the newest action is too old, or the reference, the arm or a joint is
                beyond a limit.
        """
        before, measured = self.last.streamed, self.last.measured
        number = self.last.number + 1
        end = number * self.period
        # An action that is too old brings the reference to rest where it is.
        if self._watchdog is not None and self._watchdog.judge(self._now) is Freshness.DECELERATE:
            self.set_target(before.position)
        axes = self._space.velocity_axes(self._state.q)
        along = self._space.joint_map()
        bounds = self._bounds.next(self._state, axes, before, measured, along)
        response = self._bounds.coordinates
        if self._tank is not None:
            loss = self._bounds.damping_loss(self._state.dq)
            self._tank.observe(before, measured, response, loss)
        if brake:
            asked = self._governor.brake(measured, bounds)
            streamed = asked
            self._point = self._space.reference(asked.position, end)
        else:
            asked = self._point.sample(end)
            limited = (
                asked
                if self._guard is None
                else self._guard.limited(asked, measured, response.stiffness, axes)
            )
            streamed = self._governor.step(limited, measured, bounds)
        if self._tank is not None:
            self._tank.spend(streamed.position - before.position)
        dq = self._bounds.joint_velocity(streamed.velocity)
        check_joints(self._config.joints, self._arm.robot, self._state.q, dq)
        self._arm.set_target(self._space.target(self._bounds.fed(streamed)))
        self._sent = (number, asked.position, streamed, time.monotonic())

    def pass_tick(self) -> tuple[Tick]:
        """See `Stream`: lets the tick pass, and reads the arm's state.

        Raises:
            SafetyError: the robot has stopped by itself, or an external force has lasted too long.
        """
        self._advance()
        if self._guard is not None:
            self._guard.observe(self._state)
        number, asked, streamed, sent_at = self._sent
        self.last = Tick(
            number,
            self._state,
            self._now,
            asked,
            streamed,
            sent_at,
            self._point.target,
            self._space.measured(self._state),
            self.monitored(),
        )
        return (self.last,)

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
        self._now = self._clock.advance(self.period)
        self._state = self._arm.state()
        return self._state

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
