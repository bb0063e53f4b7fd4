"""The process that drives an arm: it holds the connection, streams the references, and brings the
arm to rest on every way out.

| what ends the motion | what the arm does |
|---|---|
| a limit, the watchdog, the robot, an error here | soft stop, before anybody is told of it |
| SIGTERM, SIGINT or SIGHUP to this process | soft stop, then the process ends |
| the process of the policy ends for any reason, SIGKILL included | the pipe closes: soft stop |
| the process of the policy stands still | its actions grow old: the watchdog's ladder |
| SIGKILL to this process | its connection closes, and the robot brakes by itself |

At a real arm the stream waits for nobody: where the command for a tick is late, the tick begins
without it. A simulated arm whose time passes on request is asked through the process that owns it.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from real.arm import ArmState
from real.driver.channel import CalledError, DriverChannel, LeftError
from real.driver.messages import Call, CallResult, Failing, Passed, sendable
from real.franka.arm import FrankaArm
from real.franka.config import FrankaConfig
from real.franka.kept_faults import try_to_keep
from real.franka.late_arm import new_arm
from real.franka.recovery import recover_arm
from real.franka.slot import adopted_slot
from real.motion.action_space import Space
from real.motion.fence import FenceConfig
from real.motion.hand_guiding import HandGuidingConfig, guide
from real.motion.stream import ActionAge, ReferenceStream, StreamConfig
from robots.errors import HandoffError, SafetyError, error_text
from robots.interfaces import Clock
from robots.signals import delayed_signals

ANSWER_SECONDS = 0.5
"""Time limit for an answer of the policy's process while a real arm moves to joint positions [s];
then the arm comes to rest."""
FIRST_SECONDS = 5.0
"""Time limit for the first command of a stream at a real arm, which is held still meanwhile [s]."""
NICENESS = -10
"""Niceness of the process of a real arm, where the user may lower it (`man setpriority`): on a busy
computer neither policy nor cameras then delay the references."""
GRACE = 0.5
"""Time for which a tick waits for its command at a real arm, as a share of the tick's period."""


def drive(pipe: Connection) -> None:
    """Serves the process at the other end of `pipe` until it ends; target of the process."""
    # Connecting says why, if it cannot be imported.
    with suppress(ImportError):
        import franky  # noqa: F401  takes seconds on a busy computer
    driver = DriverProcess(pipe)
    try:
        driver.serve()
    finally:
        driver.leave()


class DriverProcess:
    """Answers calls one after another.

    Args:
        pipe: pipe to the process of the policy.
    """

    def __init__(self, pipe: Connection) -> None:
        self._channel = DriverChannel(pipe)
        self._arm: FrankaArm | None = None
        self._connected = ExitStack()
        self._on_request = False
        """Whether the robot's time passes on request of the other process."""

    def serve(self) -> None:
        """Answers calls until the other process ends."""
        with suppress(LeftError):
            while True:
                call = self._channel.next_call()
                try:
                    result = CallResult(
                        call.number, getattr(self, f"_{call.what}")(*call.arguments)
                    )
                except CalledError as error:
                    # Nothing is streamed any more, so nobody judges the age of actions.
                    self._stop_after(error)
                    continue
                except LeftError:
                    raise
                except KeyboardInterrupt as error:
                    self._end_by(error, call)
                    raise
                except Exception as error:  # noqa: BLE001  sent to the caller
                    # A robot that is gone lets no stop end, so the cause is told before; the rest
                    # waits for the stop: whoever hears of it may be slow.
                    self._channel.tell(Failing(call.number, error_text(error)))
                    self._stop_after(error)
                    result = CallResult(call.number, None, sendable(error))
                self._channel.send(result)

    def leave(self) -> None:
        """Brings the arm to rest and disconnects; keeps it as a fault if the arm was moving, which
        nobody else can say any more."""
        with delayed_signals():
            if self._arm is None:
                return
            self._keep_if_moving(self._arm)
            try:
                self._disconnect()
            except Exception as error:  # noqa: BLE001  the process ends, and nobody is left to tell
                sys.stderr.write(f"driver: {error_text(error)}\n")

    def _keep_if_moving(self, arm: FrankaArm) -> None:
        """Brings the arm to rest; if it moved, the fault is kept."""
        if not arm.moving:
            return
        why = "the process of its policy ended while the arm moved"
        unsaid = SafetyError(f"driver of {arm.config.robot} at {arm.config.host}: {why}.")
        self._stop_after(unsaid)
        if arm.config.latch == "kept":
            try_to_keep(unsaid, arm.config.host, arm.config.robot, why)
        sys.stderr.write(f"{error_text(unsaid)}\n")

    # Calls

    def _connect(self, config: FrankaConfig, on_request: bool, delay: float, held: int) -> ArmState:
        """Connects to an arm, which the other process holds by the lock `held`."""
        self._on_request = on_request
        if not on_request:
            with suppress(PermissionError):
                os.setpriority(os.PRIO_PROCESS, 0, NICENESS)
        with ExitStack() as stack:
            stack.enter_context(adopted_slot(config.host, held))
            clock: Clock | None = _AskedClock(self._channel.ask) if on_request else None
            begun = self._await_motion if on_request else _nothing
            arm = stack.enter_context(new_arm(config, clock, begun, delay))
            self._arm = arm
            stack.callback(setattr, self, "_arm", None)
            self._connected = stack.pop_all()
        return arm.state()

    def _disconnect(self) -> None:
        self._connected.close()

    def _state(self) -> ArmState:
        return self._connected_arm.state()

    def _now(self) -> float:
        return self._connected_arm.clock.now()

    def _advance(self, seconds: float) -> float:
        return self._connected_arm.clock.advance(seconds)

    def _preflight(self) -> ArmState:
        return self._connected_arm.preflight()

    def _move_to_joints(self, q: np.ndarray) -> bool:
        arm = self._connected_arm
        halted = _Question(partial(self._ask, "halted"), without=True)
        reached = arm.move_to_joints(q, halted)
        halted.check()
        return reached

    def _guide(self, config: HandGuidingConfig, fence: FenceConfig) -> None:
        """Lets the arm yield to a hand for as long as the other process wants it."""
        arm = self._connected_arm
        wanted = _Question(partial(self._ask, "wanted"), without=False)
        guide(arm, arm.clock, config, fence, wanted)
        wanted.check()

    def _ask(self, what: str) -> bool:
        """The other process's answer to what it is asked about the present state."""
        limit = None if self._on_request else ANSWER_SECONDS
        return self._channel.ask(what, self._connected_arm.state(), limit=limit)

    def _start(self, states: int) -> None:
        """Takes control; `states` is memory for the robot's states."""
        try:
            self._connected_arm.start(states)
        finally:
            os.close(states)

    def _stop(self) -> None:
        if self._arm is not None:
            self._arm.stop()

    def _recover(self) -> None:
        self._connected_arm.recover()

    def _recover_unconnected(
        self, config: FrankaConfig, person: str, cause: str, held: int
    ) -> None:
        """See `real.franka.recovery.recover_arm`; the other process holds the arm by the lock
        `held`."""
        with adopted_slot(config.host, held):
            recover_arm(config, person, cause)

    def _stream(self, space: Space, config: StreamConfig, age: ActionAge | None) -> None:
        """Streams until another call comes. The first result is where the stream begins."""
        arm = self._connected_arm
        motion = ReferenceStream(arm, arm.clock, space, config, arm.flange_T_ee, age)
        self._channel.send(Passed(motion.last, 0))
        grace = None if self._on_request else GRACE * motion.period
        number, brake = 0, False
        limit = None if self._on_request else FIRST_SECONDS
        while True:
            command = self._channel.next_command(limit)
            if command is None and not number:
                raise SafetyError(
                    f"driver: no command for {FIRST_SECONDS} s after the start. Did the policy's process hang?"
                )
            limit = grace
            if command is not None:
                number, brake = command.number, command.brake
                if command.target is not None:
                    motion.set_target(command.target)
                if command.fed:
                    motion.feed()
            motion.send(brake=brake)
            motion.pass_tick()
            self._channel.post(Passed(motion.last, number))

    @property
    def _connected_arm(self) -> FrankaArm:
        if self._arm is None:
            raise HandoffError("arm: not connected; use it as a context manager.")
        return self._arm

    def _await_motion(self) -> None:
        self._channel.ask("await_motion")

    # Ends

    def _stop_after(self, error: Exception) -> None:
        """Brings the arm to rest after an error, on which a second one is noted."""
        if self._arm is None:
            return
        try:
            with delayed_signals():
                self._arm.stop()
        except CalledError:
            # The motion that stops the arm has begun; who calls has it stopped once more.
            return
        except Exception as second:  # noqa: BLE001  the first error is the cause
            error.add_note(f"Stopping the arm failed: {error_text(second)}")

    def _end_by(self, error: KeyboardInterrupt, call: Call) -> None:
        """Brings the arm to rest after a signal, and answers the running call."""
        ended = SafetyError(f"driver of the arm: {error_text(error)}. The arm was brought to rest.")
        parent = multiprocessing.parent_process()
        if self._arm is not None and parent is not None and not parent.is_alive():
            self._keep_if_moving(self._arm)
        self._stop_after(ended)
        # Nobody may be left, or only one who does not read.
        with suppress(LeftError), delayed_signals():
            self._channel.forget()
            self._channel.send(CallResult(call.number, None, ended))


class _Question:
    """Asks the other process whether a motion goes on. Whatever happens to the one who is asked,
    the arm comes to rest first, and `check` says so afterwards.

    Args:
        ask: asks the other process.
        without: the answer that ends the motion.
    """

    def __init__(self, ask: Callable[[], bool], without: bool) -> None:
        self._ask = ask
        self._without = without
        self._ended: Exception | None = None

    def __call__(self) -> bool:
        try:
            return self._ask()
        except (CalledError, LeftError, HandoffError) as error:
            self._ended = error
            return self._without

    def check(self) -> None:
        """Raises what ended the motion in place of an answer."""
        if self._ended is not None:
            raise self._ended


class _AskedClock:
    """Implements `robots.interfaces.Clock` by the clock of the other process. Where that process
    has ended, time passes by itself."""

    def __init__(self, ask: Callable[..., Any]) -> None:
        self._ask = ask
        self._newest = 0.0

    def now(self) -> float:
        """See `Clock`."""
        return self._ask("now")

    def advance(self, seconds: float) -> float:
        """See `Clock`."""
        try:
            self._newest = self._ask("advance", seconds)
        except LeftError:
            time.sleep(seconds)
            self._newest += seconds
        return self._newest


def _nothing() -> None:
    """Waits for nothing: the time of a real arm passes by itself."""
