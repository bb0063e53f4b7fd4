"""The twin: a simulated arm in its own process, reached as a robot over the network and steered
through a pipe."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from sim.twin.checks import PERIOD
from sim.twin.world import World

START_TIMEOUT = 60.0
"""Longest time that a twin may take to import its simulator and build its world [s]."""


@config
class TwinConfig:
    """Where and how a twin runs."""

    host: str = "127.0.0.1"
    """Its address; several twins live side by side on 127.0.0.x. The FCI fixes the ports: 1337, the
    hand's 1338."""
    clock: Literal["lockstep", "real"] = "lockstep"
    """`lockstep`: time passes only as granted, deterministically; `real`: 1 kHz of wall time."""
    patience: float = 1.0
    """Lockstep only: wall time after which a command counts as lost [s]."""
    cpu: int | None = None
    """Processor that the twin keeps to; None lets the system choose."""
    log_seconds: float = 0.0
    """Motion time of which `Twin.recorded` keeps every state [s]; 1.4 MB/s."""


class Twin:
    """A running twin; made by `start_twin`. A `robots.interfaces.Clock`."""

    def __init__(self, settings: TwinConfig, process: BaseProcess, pipe: Connection) -> None:
        self.host = settings.host
        self._process = process
        self._pipe = pipe
        self._now = 0.0
        self._question = 0

    def now(self) -> float:
        """World time since the start, as of the last call [s].

        `RobotState.time` runs ahead of it by a constant within one motion and by a different one in
        the next (`sim.twin.server` says why): measure robot time from the motion's first state.
        """
        return self._now

    def advance(self, seconds: float) -> float:
        """Lets `seconds` of world time pass (a multiple of 1 ms) and returns the new time [s].

        In a lockstep motion each millisecond is one exchange with the client, so set the client's
        reference first. At rest the world moves alone, under the robot's own hold.

        Raises:
            HandoffError: not a positive multiple of 1 ms, or the twin has died.
        """
        ticks = round(seconds / PERIOD)
        if ticks < 0 or abs(ticks * PERIOD - seconds) > 1e-9:
            raise HandoffError(
                f"twin: cannot advance by {seconds} s, time passes in steps of {PERIOD} s."
            )
        self._now = self._ask("grant", ticks) * PERIOD
        return self._now

    def wait_for_motion(self, timeout: float = 5.0) -> None:
        """Waits until the motion that the client is beginning has sent its first command; no world
        time passes.

        Call it after every asynchronous `move`, before `advance`: otherwise granted time may pass
        before the motion.

        Raises:
            HandoffError: no motion within `timeout` [s] of wall time.
        """
        if not self._ask("await_motion", timeout):
            raise HandoffError(
                f"twin {self.host}: no motion began within {timeout} s. Did the client's move() fail?"
            )

    def wait_for_hand(self, count: int, timeout: float = 5.0) -> None:
        """Waits until the hand has been asked for `count` actions since the start; no world time
        passes.

        Moves, grasps and homings count, refused ones too. Call it after every asynchronous one,
        before `advance`: otherwise granted time may pass before the hand has heard of it.

        Raises:
            HandoffError: fewer within `timeout` [s] of wall time, or the arm carries no hand.
        """
        actions = self._ask("await_hand", count, timeout)
        if actions < count:
            raise HandoffError(
                f"twin {self.host}: the hand was asked for {actions} actions within {timeout} s, expected {count}. "
                "Did the client's move() or grasp() fail?"
            )

    def hand_actions(self) -> int:
        """Moves, grasps and homings that the hand was asked for since the start, refused ones too.

        Raises:
            HandoffError: the arm carries no hand.
        """
        return self._ask("await_hand", 0, 0.0)

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a method of the world between two ticks and returns its (picklable) result.

        Raises:
            HandoffError: the world has no such method, it refused, or the twin has died.
        """
        return self._ask("call", name, arguments)

    def press_user_stop(self, pressed: bool = True) -> None:
        """Presses or releases the user stop button."""
        self._ask("user_stop", pressed)

    def stats(self) -> dict[str, float]:
        """Counts and times since the start.

        `ticks`, `motion_ticks`, `lost_packets`, `success_rate` (of the last 100 commands),
        `motion_s` (wall seconds in which a motion was open), `realtime_factor` (motion time over
        `motion_s`), and of that wall time `wait_s` waiting for the client's commands, `world_s`
        stepping the world, `state_s` writing and sending states.
        """
        return self._ask("stats")

    def recorded(self) -> np.ndarray:
        """(T,) of `protocol.STATE`: what the client was told in each tick of motion, oldest
        first."""
        return self._ask("recorded")

    def _ask(self, *message: Any) -> Any:
        self._question += 1
        try:
            # A twin that gave up has left its reason in the pipe although it no longer reads from
            # it.
            with suppress(BrokenPipeError):
                self._pipe.send((self._question, *message))
            number, good, result = self._pipe.recv()
            # An interrupted question leaves its answer behind.
            while good and number != self._question:
                number, good, result = self._pipe.recv()
        except (EOFError, OSError):
            raise HandoffError(f"twin {self.host}: {_obituary(self._process)}") from None
        if not good:
            raise HandoffError(result)
        return result


@contextmanager
def start_twin(settings: TwinConfig, make_world: Callable[[], World]) -> Iterator[Twin]:
    """Runs a twin in its own process for the length of the context.

    Args:
        settings: address and clock.
        make_world: builds the world in that process; must be picklable (a module's function or a
            `functools.partial`).

    Raises:
        HandoffError: a port is in use, the world cannot be built, or the process died.
    """
    context = multiprocessing.get_context("spawn")
    pipe, far_end = context.Pipe()
    arguments = (settings, make_world, far_end)
    process = context.Process(
        target=_serve, args=arguments, name=f"twin {settings.host}", daemon=True
    )
    process.start()
    far_end.close()
    try:
        yield _greet(settings, process, pipe)
    finally:
        # The twin also ends by itself when this pipe closes, however this process ends.
        pipe.close()
        process.join(5.0)
        if process.is_alive():
            process.kill()
            process.join()


def _greet(settings: TwinConfig, process: BaseProcess, pipe: Connection) -> Twin:
    try:
        if not pipe.poll(START_TIMEOUT):
            raise HandoffError(
                f"twin {settings.host}: not ready after {START_TIMEOUT} s. Does building its world hang?"
            )
        _, good, message = pipe.recv()
    except (EOFError, OSError):
        raise HandoffError(f"twin {settings.host}: {_obituary(process)}") from None
    if not good:
        raise HandoffError(message)
    return Twin(settings, process, pipe)


def _obituary(process: BaseProcess) -> str:
    process.join(5.0)
    code = process.exitcode
    how = (
        f"signal {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"exit code {code}"
    )
    return f"the process has died ({how}). Was it killed, or is the computer out of memory?"


def _serve(settings: TwinConfig, make_world: Callable[[], World], pipe: Connection) -> None:
    """The twin's process."""
    from sim.twin.gripper import HandServer
    from sim.twin.link import Link
    from sim.twin.server import Server

    # Ctrl-C and a closed terminal reach the whole group; the owner decides when the robot goes.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if settings.cpu is not None:
        os.sched_setaffinity(0, {settings.cpu})
    try:
        link = Link(settings.host)
        world = make_world()
        gripper, hand = world.robot.gripper, None
        if world.hand is not None:
            hand = HandServer(settings.host, world.hand, gripper)
        server = Server(
            link,
            world,
            hand,
            pipe,
            lockstep=settings.clock == "lockstep",
            patience=settings.patience,
            log=round(settings.log_seconds / PERIOD),
        )
        pipe.send((0, True, "ready"))
        server.run()
        link.close()
        if hand is not None:
            hand.close()
    except HandoffError as error:
        pipe.send((0, False, str(error)))
        raise SystemExit(1) from None
    except (BrokenPipeError, ConnectionResetError):
        raise SystemExit(0) from None
