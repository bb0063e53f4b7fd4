"""An arm that another process drives, as the process of the policy sees it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np

from real.arm import ArmState, note_failed_stop
from real.driver.driven_stream import DrivenStream
from real.driver.driver import Driver, DriverLostError
from real.franka.config import FrankaConfig, check_data_sheet, flange_T_tool
from real.franka.kept_faults import try_to_keep
from real.franka.slot import held_slot, robot_slot
from real.franka.state_recorder import StateRecorder, reserve
from real.motion.action_space import Space
from real.motion.fence import FenceConfig
from real.motion.hand_guiding import HandGuidingConfig
from real.motion.stream import ActionAge, StreamConfig
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.franka.robot import Robot
from robots.interfaces import Clock


class DrivenArm:
    """Implements `real.motion.stream.StreamingArm`; a context manager, which always brings the arm
    to rest before it disconnects. While it is connected, no other process of this computer can use
    the arm.

    Faults latch in the driver as `real.franka.arm.FrankaArm` describes.

    Args:
        driver: the process that drives.
        config: connection, controller and collision behaviour.
        clock: clock of robot time that passes on request, as that of a lockstep twin; None follows
            the robot's own (hardware).
        await_motion: called after every start of a motion with such a clock; a lockstep twin waits
            in it for the first command.
        delay: delay of every target on its way to a simulated arm [s].

    Raises:
        HandoffError: an option exceeds a figure of the robot's data sheet, or is for a twin.
    """

    def __init__(
        self,
        driver: Driver,
        config: FrankaConfig,
        clock: Clock | None = None,
        await_motion: Callable[[], None] = lambda: None,
        delay: float = 0.0,
    ) -> None:
        self.config = config
        self.robot: Robot = find_robot(config.robot)
        check_data_sheet(config, self.robot)
        self.flange_T_ee = flange_T_tool(config, self.robot)
        """(4, 4) end effector in the flange frame [m]."""
        self.recorder: StateRecorder | None = None
        """Every state of the robot since it was last under control; stays readable if the driver is
        lost."""
        self._driver = driver
        self._await_motion = await_motion
        self._own_clock = clock
        self._delay = delay
        self.clock: Clock = _DriverClock(self) if clock is None else clock
        self._streamed_clock: Clock = self.clock
        self._moving = False
        self._asked_state: ArmState | None = None
        """The newest state while the driver waits for an answer."""
        self._answer: Callable[[], bool] = lambda: False
        """Answers whether a motion has to end, or goes on."""
        self._held = ExitStack()

    def __enter__(self) -> DrivenArm:
        config = self.config
        with ExitStack() as stack:
            stack.enter_context(robot_slot(config.host, config.robot))
            held = held_slot(config.host)
            on_request = self._own_clock is not None
            self.call("connect", config, on_request, self._delay, descriptor=held)
            self._held = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if self._driver.running:
                self.call("disconnect")
        except Exception as second:  # noqa: BLE001  noted or raised
            note_failed_stop(error, second)
        finally:
            self._moving = False
            self._held.close()

    def state(self) -> ArmState:
        """The newest state.

        Raises:
            ArmFaultError: the robot has stopped by itself; the fault is latched.
            ConnectionLostError: it no longer sends states, or the driver is lost.
        """
        return self.call("state") if self._asked_state is None else self._asked_state

    def preflight(self) -> ArmState:
        """Checks that the arm is ready; see `FrankaArm.preflight`."""
        return self.call("preflight")

    def move_to_joints(self, q: np.ndarray, halted: Callable[[], bool] = lambda: False) -> bool:
        """Moves to joint positions; see `FrankaArm.move_to_joints`."""
        return self._asked_meanwhile(halted, "move_to_joints", q)

    def guide(
        self, config: HandGuidingConfig, fence: FenceConfig, wanted: Callable[[], bool]
    ) -> None:
        """Lets the arm yield to a hand; see `real.motion.hand_guiding.guide`. `wanted` is called
        every 10 ms, and may take the `state`."""
        self._asked_meanwhile(wanted, "guide", config, fence)

    def keep_time(self, clock: Clock) -> None:
        """Takes another clock of a simulated arm for motions to joint positions and hand guiding,
        such as one that runs in real time, until the arm has streamed or the connection ends."""
        self._streamed_clock = clock

    def _asked_meanwhile(self, answer: Callable[[], bool], what: str, *arguments: Any) -> Any:
        """The result of a call that moves the arm and asks meanwhile whether it goes on."""
        self._answer = answer
        self._moving = True
        try:
            return self.call(what, *arguments)
        finally:
            self._answer = lambda: False
            self._moving = False

    def start(self) -> None:
        """Takes control under impedance, holds the present pose, and starts a new `recorder`."""
        seconds, joints = self.config.record_seconds, self.robot.num_joints
        memory = reserve(seconds, joints)
        try:
            self.recorder = StateRecorder(seconds, joints, memory)
            self._moving = True
            self.call("start", descriptor=memory)
        finally:
            os.close(memory)

    def stream(
        self, clock: Clock, space: Space, config: StreamConfig, age: ActionAge | None
    ) -> DrivenStream:
        """See `StreamingArm`.

        Args:
            clock: clock of the robot; that of a real arm is its own.
            space: coordinates of the targets.
            config: rate and limits.
            age: age limits of the newest action; None sets none, for steps that wait for one.

        Raises:
            HandoffError: see `StreamingArm`; or another clock for an arm that has its own.
        """
        if self._own_clock is None and clock is not self.clock:
            raise HandoffError(
                "arm: a real arm is streamed to on its own clock, `DrivenArm.clock`."
            )
        self._streamed_clock = clock
        on_request = self._own_clock is not None
        return DrivenStream(self._driver, space, config, age, self.answer, on_request=on_request)

    def stop(self) -> None:
        """Ramps the torque into pure damping, and waits until the arm rests; has no effect without
        control, nor where the driver has ended, which leaves no arm moving."""
        try:
            if self._driver.running:
                self.call("stop")
        except DriverLostError as error:
            if not error.orderly:
                raise
        self._moving = False
        self._streamed_clock = self.clock

    def recover(self) -> None:
        """Clears a latched fault; to be called by a person who has found its cause.

        Raises:
            SafetyError: the robot refuses, e.g. because the user stop is still pressed.
        """
        self.call("recover")

    def recover_unconnected(self, person: str, cause: str) -> None:
        """Clears the errors of the arm while nobody is connected to it; see
        `real.franka.recovery.recover_arm`."""
        config = self.config
        with robot_slot(config.host, config.robot):
            held = held_slot(config.host)
            self.call("recover_unconnected", config, person, cause, descriptor=held)

    def call(self, what: str, *arguments: Any, descriptor: int | None = None) -> Any:
        """The result of a call to the driver; see `Driver.call`."""
        self._driver.when_lost = self._keep_loss
        return self._driver.call(what, *arguments, answers=self.answer, descriptor=descriptor)

    def answer(self, what: str, *arguments: Any) -> Any:
        """Answers what the driver asks while it works for a call."""
        match what:
            case "advance":
                return self._streamed_clock.advance(*arguments)
            case "now":
                return self._streamed_clock.now()
            case "await_motion":
                return self._await_motion()
            case "halted" | "wanted":
                (self._asked_state,) = arguments
                try:
                    return self._answer()
                finally:
                    self._asked_state = None
        raise HandoffError(f"driver: asked '{what}', which nobody can answer.")

    def _keep_loss(self, error: DriverLostError) -> None:
        """Keeps the loss of the driver while the arm moves, as other faults of it are kept."""
        if self._moving and self.config.latch == "kept" and not error.orderly:
            cause = str(error).partition(". ")[0]
            try_to_keep(error, self.config.host, self.config.robot, cause)
        self._moving = False


class _DriverClock:
    """Implements `robots.interfaces.Clock` by that of the robot, in the driver."""

    def __init__(self, arm: DrivenArm) -> None:
        self._arm = arm

    def now(self) -> float:
        """See `Clock`."""
        return self._arm.call("now")

    def advance(self, seconds: float) -> float:
        """See `Clock`."""
        return self._arm.call("advance", seconds)
