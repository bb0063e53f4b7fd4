"""A Franka Hand through franky 2.0.0: a stream of openings becomes the few commands that such a
hand understands.

A simulated hand follows an opening at every step. A real one is told to move or to grasp, takes its
time, and must be stopped before it is told otherwise. So commands are sent only where what is asked
for has changed, by a thread of their
own: nothing here waits for the hand in the step of a policy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Protocol

import numpy as np

from robots.config import config
from robots.control.actions import gripper_target
from robots.errors import HandoffError, SafetyError
from robots.franka import gripper
from robots.interfaces import Observation

JOIN_SECONDS = 5.0
"""For a thread to end [s]."""
LOOK_SECONDS = 0.05
"""Between two looks at how what was told is going [s]."""


@config
class HandConfig:
    """How a hand is told."""

    speed: float = gripper.SPEED_MAX
    """Of the opening [m/s]."""
    force: float = 15.0
    """Of each finger, where it grasps [N]; that of the simulated worlds, whose fingers meet light
    parts."""
    slack: float = 0.005
    """An opening that differs by less from the one told last is not told [m]."""
    closed: float = 0.010
    """Openings below it are a grasp: the fingers go on until they hold something or meet [m]."""
    max_age: float = 1.0
    """Age of the newest state from which on it says nothing any more [s]; a hand sends some ten in
    that time."""


class Hand(Protocol):
    """What the loop knows of a hand."""

    def width(self) -> float:
        """Opening [m].

        Raises:
            SafetyError: the hand has fallen silent, or refused what it was told.
        """
        ...

    def tell(self, opening: float) -> None:
        """How far to open [m]; returns before it is."""
        ...


class HandTarget:
    """What a policy's entries for the hand come to, step by step, as in the simulated worlds."""

    def __init__(self, device: Hand, period: float) -> None:
        """Begins an episode with the opening that there is; `period` is the policy's [s]."""
        self._hand, self._period = device, period
        self._width = self._told = device.width()

    def shown(self) -> Observation:
        """`width` and `width_target` (1,) [m]; see `sim.tasks.task.proprioception`."""
        self._width = self._hand.width()
        return {
            "width": np.array([self._width], dtype=np.float32),
            "width_target": np.array([self._told], dtype=np.float32),
        }

    def take(self, entry: float) -> None:
        """Obeys the entry of an action, -1 closed to 1 open
        (`robots.control.actions.GRIPPER_SPEC`)."""
        told, width = np.array(self._told), np.array(self._width)
        self._told = float(gripper_target(told, width, np.array(entry), self._period))
        self._hand.tell(0.5 * gripper.WIDTH_MAX * (1.0 + float(np.clip(entry, -1.0, 1.0))))


class FrankaHand:
    """Implements `Hand`; a context manager. On leaving, an action under way is stopped; a hand that
    has grasped keeps what it holds."""

    def __init__(
        self, host: str, config: HandConfig, await_actions: Callable[[int], None] | None = None
    ) -> None:
        """Does not connect yet.

        Args:
            host: name or address of the robot's control.
            config: of the hand.
            await_actions: of a lockstep twin, whose world stands until it is granted time: waits
                until the hand has received so many actions in this connection. States are then read
                when they are asked for. None reads them in a thread of their own, as they come.
        """
        self._host, self._config, self._await_actions = host, config, await_actions
        self._gripper: Any = None
        self._changed = threading.Condition()
        self._wanted: float | None = None
        self._sent: float | None = None
        self._actions = 0
        self._closing = False
        self._trouble: Exception | None = None
        self._newest = (0.0, 0.0)
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> FrankaHand:
        self._gripper = _connect(self._host)
        self._read()
        # It stands where it stands: to be told that again is to be told nothing.
        self._sent = self._newest[0]
        work = [self._command] if self._await_actions is not None else [self._command, self._listen]
        self._threads = [
            threading.Thread(target=one, name=f"hand {one.__name__}", daemon=True) for one in work
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

    def width(self) -> float:
        """See `Hand`."""
        self._raise_trouble()
        if self._await_actions is not None:
            self._read()
        opening, heard = self._newest
        age = time.monotonic() - heard
        if age > self._config.max_age:
            raise SafetyError(
                f"hand at {self._host}: newest state is {age:.2f} s old, limit {self._config.max_age} s. Is it still "
                "connected and powered?"
            )
        return opening

    def tell(self, opening: float) -> None:
        """See `Hand`.

        Raises:
            SafetyError: not a number from 0 to the hand's largest opening, or an earlier command
                was refused.
        """
        self._raise_trouble()
        if not 0.0 <= opening <= gripper.WIDTH_MAX:
            raise SafetyError(
                f"hand: told to open {opening} m, expected 0 to {gripper.WIDTH_MAX}. Did the policy diverge?"
            )
        with self._changed:
            if not self._news(opening):
                return
            self._wanted = opening
            self._changed.notify_all()
            if self._await_actions is None:
                return
            self._changed.wait_for(lambda: self._wanted is None, JOIN_SECONDS)
        self._raise_trouble()
        self._await_actions(self._actions)

    def _news(self, opening: float) -> bool:
        """Whether the opening differs from what the hand was told last."""
        last = self._sent if self._wanted is None else self._wanted
        assert last is not None
        closes = opening < self._config.closed
        return closes != (last < self._config.closed) or (
            not closes and abs(opening - last) > self._config.slack
        )

    def _command(self) -> None:
        """The thread that tells the hand."""
        import franky

        running: Any = None
        try:
            while True:
                with self._changed:
                    self._changed.wait_for(
                        lambda: self._closing or self._wanted is not None, LOOK_SECONDS
                    )
                    wanted = self._wanted
                if self._closing:
                    # franky would wait for what is under way, however long it takes.
                    self._end(running)
                    return
                if wanted is None:
                    if running is not None and running.wait(0.0):
                        running.get()
                        running = None
                    continue
                self._end(running)
                running = self._begin(wanted)
                with self._changed:
                    self._sent, self._actions = wanted, self._actions + 1
                    # What was asked for meanwhile is next.
                    self._wanted = None if self._wanted == wanted else self._wanted
                    self._changed.notify_all()
        except franky.Exception as error:
            with self._changed:
                self._trouble, self._wanted = error, None
                self._changed.notify_all()

    def _end(self, running: Any) -> None:
        """Makes room for another action; raises what went wrong with one that has ended by
        itself."""
        import franky

        if running is None:
            return
        if running.wait(0.0):
            running.get()
            return
        self._gripper.stop()
        # To be stopped is an error of the action's; that it did not get there is not one.
        with suppress(franky.CommandException):
            running.get()

    def _begin(self, opening: float) -> Any:
        speed, force, any_width = self._config.speed, self._config.force, gripper.WIDTH_MAX
        if opening < self._config.closed:
            return self._gripper.grasp_async(0.0, speed, force, any_width, any_width)
        return self._gripper.move_async(opening, speed)

    def _listen(self) -> None:
        """The thread that hears the hand."""
        while not self._closing:
            with suppress(HandoffError):
                self._read()

    def _read(self) -> None:
        import franky

        try:
            self._newest = (float(self._gripper.state.width), time.monotonic())
        except franky.NetworkException as error:
            raise HandoffError(f"hand at {self._host}: {error}. Is it still connected?") from None

    def _raise_trouble(self) -> None:
        if self._trouble is not None:
            raise SafetyError(
                f"hand at {self._host}: refused a command ({self._trouble}). Has it been homed?"
            )
        if self._gripper is None:
            raise HandoffError("hand: not connected; use it as a context manager.")


def _connect(host: str) -> Any:
    import franky

    try:
        return franky.Gripper(host)
    except franky.NetworkException as error:
        raise HandoffError(
            f"hand: nobody answers at {host}:1338 ({error}). Is the hand mounted and switched on in Desk?"
        ) from None
    except franky.IncompatibleVersionException as error:
        raise HandoffError(
            f"hand at {host}: speaks another version ({error}); franky-control 2.0.0 needs version 3."
        ) from None
