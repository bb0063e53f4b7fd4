"""Runs the twin: a simulated arm in its own process, with the robot's network interface and a pipe
for control."""

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
from setproctitle import setproctitle

from robots.config import Delay, Seconds, Whole, config
from robots.errors import HandoffError
from robots.franka.robot import JointFriction, Robot
from robots.imported_code import CodeGuard, current_guard, install_guard
from robots.signals import blocked_interrupt
from robots.wire.addresses import is_loopback
from sim.scene.deviations import Deviations
from sim.twin.protocol import VERSION
from sim.twin.unit.checks import PERIOD
from sim.twin.world import World

Direction = Literal["states", "commands"]
"""Packets from the robot to its client, or back."""
START_TIMEOUT = 60.0
"""Maximum time for a twin to import its simulator and build its world [s]."""

REQUEST_TIMEOUT = 60.0
"""Maximum wall time in which a request of the client reaches the twin [s]; a busy computer may
delay either by seconds."""


@config
class TwinConfig:
    """Address and clock of a twin."""

    host: str = "127.0.0.1"
    """Address of the twin; several twins can run on 127.0.0.x. The FCI fixes the ports: 1337 for
    the arm, 1338 for the gripper."""
    clock: Literal["lockstep", "real"] = "lockstep"
    """Clock of the simulation: `lockstep` advances only by `Twin.advance` and is deterministic,
    `real` runs at 1 kHz of wall time."""
    patience: Seconds = 60.0
    """Wall time after which a command counts as lost [s], only for `lockstep`; a busy computer may
    delay the client by seconds."""
    cpu: Whole | None = None
    """CPU to which the twin is pinned; None lets the system choose."""
    log_seconds: Delay = 0.0
    """Motion time for which `Twin.recorded` keeps every state [s]; takes 1.4 MB/s."""
    friction: Literal["none", "published"] = "none"
    """Friction of the arm's joints beside the small viscous one that every simulated arm has:
    `published` adds what was identified at a real arm (`robots.franka.friction`), `none` adds
    nothing and tracks better than a real arm does."""
    deviations: Deviations = Deviations()
    """Values in which the simulated arm and the objects on its table differ from their models, and
    which no client is given; none by default."""

    def __post_init__(self) -> None:
        # The robot's protocol has no authentication: whoever connects moves the arm.
        if not is_loopback(self.host):
            raise HandoffError(
                f"twin: host is '{self.host}', expected an address of this computer, e.g. 127.0.0.1 or 127.0.0.2."
            )


class Twin:
    """A running twin; made by `start_twin`. A `robots.interfaces.Clock`."""

    def __init__(self, settings: TwinConfig, process: BaseProcess, pipe: Connection) -> None:
        self.host = settings.host
        self._process = process
        self._pipe = pipe
        self._now = 0.0
        self._request_id = 0

    def now(self) -> float:
        """World time since the start or `reset` at the last call of `advance` [s].

        `RobotState.time` is ahead of it by an offset that is constant within a motion and differs
        between motions (see `sim.twin.server`): measure robot time from the motion's first state.
        """
        return self._now

    def advance(self, seconds: float) -> float:
        """Advances the world by `seconds` (a multiple of 1 ms) and returns the new time [s].

        In a lockstep motion each millisecond is one exchange with the client, so set the client's
        reference first. Without a motion the world advances while the robot holds its position.

        Raises:
            HandoffError: a negative time, not a multiple of 1 ms, or the twin has died.
        """
        ticks = round(seconds / PERIOD)
        if ticks < 0 or abs(ticks * PERIOD - seconds) > 1e-9:
            raise HandoffError(
                f"twin: cannot advance by {seconds} s, expected a non-negative multiple of {PERIOD} s."
            )
        self._now = self._request("grant", ticks) * PERIOD
        return self._now

    def wait_for_motion(self, timeout: float = REQUEST_TIMEOUT) -> None:
        """Waits until the client has sent the first command of a new motion; no world time passes.

        Call it after every asynchronous `move` and before `advance`: otherwise world time may pass
        before the motion begins.

        Raises:
            HandoffError: no motion within `timeout` [s] of wall time.
        """
        if not self._request("await_motion", timeout):
            raise HandoffError(
                f"twin {self.host}: no motion began within {timeout} s. Did the client's move() fail?"
            )

    def wait_for_gripper(self, count: int, timeout: float = REQUEST_TIMEOUT) -> None:
        """Waits until the gripper has received `count` actions since the start; no world time
        passes.

        Counts moves, grasps and homings, including refused ones. Call it after every asynchronous
        action and before `advance`: otherwise world time may pass before the gripper receives it.

        Raises:
            HandoffError: fewer actions within `timeout` [s] of wall time, or the arm carries no
                gripper.
        """
        actions = self._request("await_gripper", count, timeout)
        if actions < count:
            raise HandoffError(
                f"twin {self.host}: the gripper received {actions} actions within {timeout} s, expected {count}. "
                "Did the client's move() or grasp() fail?"
            )

    def gripper_actions(self) -> int:
        """Number of moves, grasps and homings that the gripper has received since the start,
        including refused ones.

        Raises:
            HandoffError: the arm carries no gripper.
        """
        return self._request("await_gripper", 0, 0.0)

    def call(self, name: str, *arguments: Any) -> Any:
        """Calls a method of the world between two ticks and returns its (picklable) result.

        Raises:
            HandoffError: the world has no such method, it refused, or the twin has died.
        """
        return self._request("call", name, arguments)

    def reset(self, *arguments: Any) -> Any:
        """Calls the world's method `reset` and returns its result; the clock starts at 0 again, and
        arm and gripper forget earlier motions, so that what follows does not depend on them.

        Raises:
            HandoffError: the world refused, a motion is active, or the twin has died.
        """
        result = self._request("reset", arguments)
        self._now = 0.0
        return result

    def press_user_stop(self, pressed: bool = True) -> None:
        """Presses or releases the user stop button."""
        self._request("user_stop", pressed)

    def lose_packets(self, share: float, direction: Direction = "commands") -> None:
        """From now on this share of the packets of motions is lost, at random; the same ones in
        every run. A state that is lost costs the command of its cycle as well."""
        self._request("lose", direction, share)

    def delay_packets(
        self, seconds: float, jitter: float = 0.0, direction: Direction = "commands"
    ) -> None:
        """From now on packets of motions are late by `seconds`, and up to `jitter` [s] more at
        random; the same ones in every run. What is late by 1 ms or more misses its cycle, and the
        robot drops the command, except in a motion that the robot plans itself."""
        self._request("delay", direction, seconds, jitter)

    def state_version(self, version: int = VERSION) -> None:
        """From now on the robot states and accepts this version of its protocol, as one with other
        firmware would; a client with another one is refused when it connects."""
        self._request("version", version)

    @property
    def pid(self) -> int:
        """Process id of the twin."""
        assert self._process.pid is not None
        return self._process.pid

    def stats(self) -> dict[str, float]:
        """Counts and times since the start.

        `ticks` (since the last `reset`), `motion_ticks`, `lost_packets`, `success_rate` (of the
        last 100 commands), `motion_s` (wall seconds during motions), `realtime_factor` (motion time
        divided by `motion_s`), and its portions `wait_s` waiting for the client's commands,
        `world_s` stepping the world and `state_s` writing and sending states.
        """
        return self._request("stats")

    def recorded(self) -> np.ndarray:
        """(T,) of `protocol.STATE`: the state sent to the client in each tick of motion, oldest
        first."""
        return self._request("recorded")

    def _request(self, *message: Any) -> Any:
        self._request_id += 1
        try:
            # A twin that has failed leaves its reason in the pipe but no longer reads from it.
            with suppress(BrokenPipeError):
                self._pipe.send((self._request_id, *message))
            number, ok, result = self._pipe.recv()
            # Skip the replies to interrupted requests.
            while ok and number != self._request_id:
                number, ok, result = self._pipe.recv()
        except (EOFError, OSError):
            raise HandoffError(f"twin {self.host}: {_exit_reason(self._process)}") from None
        if not ok:
            raise HandoffError(result)
        return result


def realtime_factor(motion_ticks: float, motion_s: float) -> float:
    """Simulated time of motions divided by their wall time [s]; 0 without a motion."""
    return motion_ticks * PERIOD / motion_s if motion_s > 0.0 else 0.0


@contextmanager
def start_twin(settings: TwinConfig, make_world: Callable[[], World]) -> Iterator[Twin]:
    """Runs a twin in its own process within the context.

    Args:
        settings: address and clock.
        make_world: builds the world in the twin's process; must be picklable (a module-level
            function or a `functools.partial`).

    Raises:
        HandoffError: a port is in use, the world cannot be built, or the process died.
    """
    context = multiprocessing.get_context("spawn")
    pipe, far_end = context.Pipe()
    arguments = (settings, make_world, far_end, current_guard())
    process = context.Process(
        target=_serve, args=arguments, name=f"twin {settings.host}", daemon=True
    )
    with blocked_interrupt():
        process.start()
    far_end.close()
    try:
        yield _wait_until_ready(settings, process, pipe)
    finally:
        # The twin exits when this pipe closes, even if this process is killed.
        pipe.close()
        process.join(5.0)
        if process.is_alive():
            process.kill()
            process.join()


def _wait_until_ready(settings: TwinConfig, process: BaseProcess, pipe: Connection) -> Twin:
    try:
        if not pipe.poll(START_TIMEOUT):
            raise HandoffError(
                f"twin {settings.host}: not ready after {START_TIMEOUT} s. Does building its world hang?"
            )
        _, ok, message = pipe.recv()
    except (EOFError, OSError):
        raise HandoffError(f"twin {settings.host}: {_exit_reason(process)}") from None
    if not ok:
        raise HandoffError(message)
    return Twin(settings, process, pipe)


def _published_friction(robot: Robot) -> JointFriction:
    """The friction of the robot's joints.

    Raises:
        HandoffError: none is published.
    """
    if robot.friction is None:
        raise HandoffError(
            f"twin: friction is 'published', but {robot.config_name} states none. Set `friction` of the robot, or "
            "take 'none'."
        )
    return robot.friction


def _exit_reason(process: BaseProcess) -> str:
    process.join(5.0)
    code = process.exitcode
    cause = (
        f"signal {signal.Signals(-code).name}"
        if code is not None and code < 0
        else f"exit code {code}"
    )
    return f"the process has died ({cause}). Was it killed, or is the computer out of memory?"


def _serve(
    settings: TwinConfig,
    make_world: Callable[[], World],
    pipe: Connection,
    guard: CodeGuard | None,
) -> None:
    """Entry point of the twin's process."""
    install_guard(guard)
    setproctitle(f"handoff: twin {settings.host}")
    from sim.twin.gripper import GripperServer
    from sim.twin.link import Link
    from sim.twin.server import Server

    # Ctrl-C and a closed terminal signal the whole process group, but the owner ends the twin.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    try:
        link = Link(settings.host)
        world = make_world()
        if settings.friction == "published":
            world.rub(_published_friction(world.robot))
        if settings.deviations != Deviations():
            world.deviate(settings.deviations)
        gripper_server = None
        if world.gripper is not None:
            gripper_server = GripperServer(settings.host, world.gripper, world.robot.gripper)
        server = Server(
            link,
            world,
            gripper_server,
            pipe,
            lockstep=settings.clock == "lockstep",
            patience=settings.patience,
            log=round(settings.log_seconds / PERIOD),
        )
        # Not before: what repeats the states of a starved twin may run on any CPU.
        if settings.cpu is not None:
            os.sched_setaffinity(0, {settings.cpu})
        pipe.send((0, True, "ready"))
        server.run()
        link.close()
        if gripper_server is not None:
            gripper_server.close()
    except HandoffError as error:
        pipe.send((0, False, str(error)))
        raise SystemExit(1) from None
    except (BrokenPipeError, ConnectionResetError):
        raise SystemExit(0) from None
