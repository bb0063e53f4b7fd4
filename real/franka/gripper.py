"""Drives a Franka Hand through franky 2.0.0: a stream of target openings becomes a few commands.

A simulated gripper follows a target at every step. The real one executes one command to move or to
grasp at a time, which must be stopped before another one begins. Therefore a command is sent only
when the target changes, by a thread of its own: a policy step never waits for the gripper.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Annotated, Any, Protocol

import numpy as np
from pydantic import Field

from real.arm import ConnectionLostError
from real.franka.slot import robot_slot
from robots.config import config
from robots.control.actions import gripper_target
from robots.errors import HandoffError, SafetyError
from robots.franka.robot import Gripper
from robots.interfaces import Observation

JOIN_SECONDS = 5.0
"""Time limit for a thread to end [s]."""
CHECK_SECONDS = 0.05
"""Longest time between checks of the running command [s]."""


@config
class GripperDriverConfig:
    """Speed, force and thresholds of the gripper's commands."""

    speed: Annotated[float, Field(gt=0.0, le=0.1)] | None = None
    """Rate of change of the opening [m/s]; None takes the gripper's highest."""
    force: Annotated[float, Field(gt=0.0, le=70.0)] = 15.0
    """Grasping force of each finger [N]; the default is that of the simulation, whose parts are
    light."""
    slack: Annotated[float, Field(ge=0.0, le=0.02)] = 0.005
    """Difference from the last target below which a new one is not sent [m]."""
    closed: Annotated[float, Field(ge=0.0, le=0.08)] = 0.010
    """Target below which the gripper grasps: the fingers close until they hold something or meet
    [m]."""
    max_age: Annotated[float, Field(gt=0.0, le=5.0)] = 1.0
    """Age of the newest state above which it is an error [s]; a gripper sends about ten states in
    that time."""


class GripperDevice(Protocol):
    """A gripper as the deploy loop sees it."""

    def width(self) -> float:
        """Present opening [m].

        Raises:
            SafetyError: the gripper has sent no state for too long, or refused a command.
        """
        ...

    def set_width(self, opening: float) -> None:
        """Sets the target opening [m]; returns before it is reached."""
        ...


class GripperTarget:
    """The gripper's target during an episode, moved by a policy's actions as in simulation.

    Args:
        device: the gripper; its present opening is the first target.
        period: policy period [s].
        gripper: limits of the gripper.
    """

    def __init__(self, device: GripperDevice, period: float, gripper: Gripper) -> None:
        self._device = device
        self._period = period
        self._gripper = gripper
        self._width = device.width()
        self._width_target = self._width

    def observation(self) -> Observation:
        """`width` and `width_target` (1,) [m]; see `sim.tasks.task.proprioception`."""
        self._width = self._device.width()
        return {
            "width": np.array([self._width], dtype=np.float32),
            "width_target": np.array([self._width_target], dtype=np.float32),
        }

    def apply(self, entry: float) -> None:
        """Applies the gripper's entry of an action, -1 closed to 1 open
        (`robots.control.actions.GRIPPER_SPEC`)."""
        target, width = np.array(self._width_target), np.array(self._width)
        target = gripper_target(target, width, np.array(entry), self._period, self._gripper)
        self._width_target = float(target)
        width_max = self._gripper.width_max
        self._device.set_width(0.5 * width_max * (1.0 + float(np.clip(entry, -1.0, 1.0))))


class FrankaGripper:
    """Implements `GripperDevice`; a context manager. Leaving it stops a running command; a gripper
    that has grasped keeps its grasp. While it is connected, no other process of this computer can
    use the robot.

    Args:
        host: name or address of the robot's control.
        config: speed, force and thresholds.
        gripper: limits of the gripper.
        await_actions: for a lockstep twin, whose time passes only on request: waits until the
            gripper has received so many actions in this connection. States are then read on
            demand. None: a thread reads them as they come.
    """

    def __init__(
        self,
        host: str,
        config: GripperDriverConfig,
        gripper: Gripper,
        await_actions: Callable[[int], None] | None = None,
    ) -> None:
        self._host = host
        self._config = config
        self._await_actions = await_actions
        self._width_max = gripper.width_max
        self._speed = gripper.speed_max if config.speed is None else config.speed
        self._gripper: Any = None
        self._changed = threading.Condition()
        self._next_target: float | None = None
        """Target that has not been sent yet [m]."""
        self._sent_target: float | None = None
        """Target of the last command [m]."""
        self._actions = 0
        """Number of commands sent."""
        self._closing = False
        self._trouble: Exception | None = None
        self._newest = (0.0, 0.0)
        """The newest opening [m] and the time at which it was read [s]."""
        self._threads: list[threading.Thread] = []
        self._slot = ExitStack()

    def __enter__(self) -> FrankaGripper:
        with ExitStack() as stack:
            stack.enter_context(robot_slot(self._host, "gripper"))
            self._gripper = _connect(self._host)
            self._read()
            self._slot = stack.pop_all()
        # The present opening counts as sent, so that a target that equals it sends no command.
        self._sent_target = self._newest[0]
        work = [self._command] if self._await_actions is not None else [self._command, self._listen]
        self._threads = [
            threading.Thread(target=target, name=f"gripper {target.__name__}", daemon=True)
            for target in work
        ]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        for thread in self._threads:
            thread.join(JOIN_SECONDS)
        self._gripper = None
        self._slot.close()

    def width(self) -> float:
        """See `GripperDevice`."""
        self._raise_trouble()
        if self._await_actions is not None:
            self._read()
        opening, read_at = self._newest
        age = time.monotonic() - read_at
        if age > self._config.max_age:
            raise SafetyError(
                f"gripper at {self._host}: newest state is {age:.2f} s old, limit {self._config.max_age} s. Is it "
                "still connected and powered?"
            )
        return opening

    def set_width(self, opening: float) -> None:
        """See `GripperDevice`.

        Raises:
            SafetyError: the target is no number from 0 to the gripper's largest opening, or an
                earlier command was refused.
        """
        self._raise_trouble()
        if not 0.0 <= opening <= self._width_max:
            raise SafetyError(
                f"gripper: target opening is {opening} m, expected 0 to {self._width_max}. Did the policy diverge?"
            )
        with self._changed:
            if not self._differs(opening):
                return
            self._next_target = opening
            self._changed.notify_all()
            if self._await_actions is None:
                return
            self._changed.wait_for(lambda: self._next_target is None, JOIN_SECONDS)
        self._raise_trouble()
        self._await_actions(self._actions)

    def _differs(self, opening: float) -> bool:
        """Whether the target differs from the last one."""
        last = self._sent_target if self._next_target is None else self._next_target
        assert last is not None
        closes = opening < self._config.closed
        return closes != (last < self._config.closed) or (
            not closes and abs(opening - last) > self._config.slack
        )

    def _command(self) -> None:
        """Sends commands; runs in a thread of its own."""
        import franky

        running: Any = None
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closing or self._next_target is not None, CHECK_SECONDS
                    )
                    target = self._next_target
                if self._closing:
                    # Stopped here, because franky would wait until the command ends by itself.
                    self._end(running)
                    return
                if target is None:
                    if running is not None and running.wait(0.0):
                        running.get()
                        running = None
                    continue
                self._end(running)
                running = self._begin(target)
                with self._changed:
                    self._sent_target = target
                    self._actions += 1
                    # A target that was set meanwhile is the next one.
                    self._next_target = None if self._next_target == target else self._next_target
                    self._changed.notify_all()
        except franky.Exception as error:
            with self._changed:
                self._trouble = error
                self._next_target = None
                self._changed.notify_all()

    def _end(self, running: Any) -> None:
        """Stops the running command; raises the error of one that has ended by itself."""
        import franky

        if running is None:
            return
        if running.wait(0.0):
            running.get()
            return
        self._gripper.stop()
        # franky reports a stopped command as an error, which it is not here.
        with suppress(franky.CommandException):
            running.get()

    def _begin(self, opening: float) -> Any:
        speed = self._speed
        force = self._config.force
        any_width = self._width_max
        if opening < self._config.closed:
            return self._gripper.grasp_async(0.0, speed, force, any_width, any_width)
        return self._gripper.move_async(opening, speed)

    def _listen(self) -> None:
        """Reads states; runs in a thread of its own."""
        while not self._closing:
            with suppress(HandoffError):
                self._read()

    def _read(self) -> None:
        import franky

        try:
            self._newest = (float(self._gripper.state.width), time.monotonic())
        except (franky.NetworkException, RuntimeError) as error:
            raise ConnectionLostError(
                f"gripper at {self._host}: {error}. Is it still connected?"
            ) from None

    def _raise_trouble(self) -> None:
        if self._trouble is not None:
            raise SafetyError(
                f"gripper at {self._host}: refused a command ({self._trouble}). Has it been homed?"
            )
        if self._gripper is None:
            raise HandoffError("gripper: not connected; use it as a context manager.")


def _connect(host: str) -> Any:
    import franky

    try:
        return franky.Gripper(host)
    except (franky.NetworkException, RuntimeError) as error:
        raise ConnectionLostError(
            f"gripper: none answers at {host}:1338 ({error}). Is the gripper mounted and switched on in Desk?"
        ) from None
    except franky.IncompatibleVersionException as error:
        raise HandoffError(
            f"gripper at {host}: has another protocol version ({error}); franky-control 2.0.0 needs version 3."
        ) from None
