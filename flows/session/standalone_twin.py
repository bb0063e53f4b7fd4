"""Implements `handoff twin`: a simulated arm behind the robot's network protocol, for programs of
others.

It takes any client of the robot, such as libfranka, pylibfranka and franky, unmodified, and ends
with Ctrl-C. Faults of a file happen at their times.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from robots.config import Finite, NonNegative, Positive, Share, config, validate
from robots.errors import HandoffError
from robots.franka import RobotName

if TYPE_CHECKING:
    from robots.interfaces import Clock
    from sim.twin.twin import Twin

STEP = 0.005
"""Time by which the simulation is advanced at once [s]."""
REPORT_SECONDS = 1.0
"""Interval between two lines of the display [s]."""


@config
class TimedFault:
    """When a fault begins and how long it lasts."""

    at: NonNegative
    """Time of the robot since the start [s]."""
    seconds: Positive = 1.0
    """Duration [s]."""


@config
class UserStopFault(TimedFault):
    """Somebody presses the user stop, and releases it."""

    kind: Literal["user_stop"] = "user_stop"


@config
class FreezeFault(TimedFault):
    """The robot's computer stands still."""

    kind: Literal["freeze"] = "freeze"
    seconds: Positive = 0.06
    """Duration of wall time [s]."""


@config
class DropFault(TimedFault):
    """Commands are lost at random."""

    kind: Literal["drop"] = "drop"
    share: Share = 0.05
    """Share of the commands that are lost."""


@config
class PushFault(TimedFault):
    """Something pushes the end effector."""

    kind: Literal["push"] = "push"
    seconds: Positive = 0.2
    """Duration of the push [s]."""
    force: tuple[Finite, Finite, Finite] = (0.0, 0.0, -20.0)
    """Force on the end effector, base frame [N]."""


Fault = Annotated[UserStopFault | FreezeFault | DropFault | PushFault, Field(discriminator="kind")]


@config
class Faults:
    """What a file of faults states."""

    faults: tuple[Fault, ...] = ()
    """The faults, in any order."""


@dataclass(frozen=True)
class StandaloneTwin:
    """What `handoff twin` simulates."""

    task: str
    """Task whose table the arm has."""
    robot: RobotName = "fr3"
    host: str = "127.0.0.2"
    """Address on the loopback; the robot's protocol fixes the ports."""
    clock: Literal["paced", "lockstep", "real"] = "paced"
    """`paced` waits for its client and is no faster than wall time, `lockstep` waits for it and is
    as fast as it can, `real` waits for nobody."""
    seed: int = 0
    """Seed of the start."""


def twin_command(options: StandaloneTwin, faults: Path | None) -> None:
    """Runs the twin until Ctrl-C or SIGTERM.

    Raises:
        HandoffError: no such task, an address that is taken or not of this computer, or a file of
            faults that cannot be read.
    """
    from rich.console import Console
    from rich.live import Live

    planned = [] if faults is None else read_faults(faults)
    screen = Console()
    with Live(console=screen, refresh_per_second=4, transient=True) as live:
        run_twin(options, planned, say=partial(screen.print, highlight=False), show=live.update)


def read_faults(path: Path) -> list[Fault]:
    """The faults of a YAML file, by their times.

    Raises:
        HandoffError: no such file, no YAML, or a fault that does not exist.
    """
    import yaml

    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise HandoffError(f"{path}: {error.strerror}.") from None
    except yaml.YAMLError as error:
        raise HandoffError(f"{path}: no YAML ({error}).") from None
    if not isinstance(values, list):
        raise HandoffError(
            f"{path}: expected a list of faults, such as '- {{kind: user_stop, at: 5.0}}'."
        )
    return sorted(validate(Faults, {"faults": values}, str(path)).faults, key=lambda f: f.at)


def run_twin(
    options: StandaloneTwin,
    faults: Sequence[Fault],
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Runs the twin until `ended`.

    Args:
        options: what is simulated.
        faults: what happens, by time.
        say: called with the address, and with every fault as it happens.
        show: called about once per second with a line that replaces the last one.
        ended: whether the twin should end.
    """
    from sim.twin.twin import TwinConfig, start_twin

    clock = "real" if options.clock == "real" else "lockstep"
    with start_twin(TwinConfig(host=options.host, clock=clock), make_world(options)) as twin:
        if options.task != "push_t":
            twin.reset(options.seed)
        say(f"twin     {options.robot} with the table of {options.task} at {options.host}")
        say("         connect any program of the robot to this address; Ctrl-C ends")
        passing = _passing(options, twin)
        waiting = list(faults)
        due: list[tuple[float, Callable[[], None]]] = []
        reported = -REPORT_SECONDS
        while not ended():
            now = passing.advance(STEP)
            while waiting and now >= waiting[0].at:
                fault = waiting.pop(0)
                say(f"{now:8.3f} s  {fault.kind} for {fault.seconds:g} s")
                _begin(fault, twin, due, now)
            for entry in [entry for entry in due if now >= entry[0]]:
                due.remove(entry)
                entry[1]()
            if time.monotonic() - reported >= REPORT_SECONDS:
                reported = time.monotonic()
                show(line(now, twin.stats()))


def make_world(options: StandaloneTwin) -> partial:
    """Builds the world, in the twin's process.

    Raises:
        HandoffError: no such task.
    """
    from sim.make import check_task
    from sim.twin.push_t_world import PushTWorld
    from sim.twin.task_world import TaskWorld

    check_task(options.task)
    if options.task == "push_t":
        return partial(PushTWorld, options.robot)
    return partial(TaskWorld, options.task, options.robot)


def line(now: float, stats: dict[str, float]) -> str:
    """The state of the twin in one line.

    Args:
        now: time of the robot since the start [s].
        stats: see `sim.twin.twin.Twin.stats`.
    """
    if not stats["motion_ticks"]:
        return f"{now:.0f} s, no motion yet"
    return (
        f"{now:.0f} s, motions {stats['motion_ticks'] / 1000.0:.1f} s at "
        f"{stats['realtime_factor']:.2f} of real time, {stats['lost_packets']:.0f} lost commands"
    )


class _RealTime:
    """The clock of a twin whose time passes by itself."""

    def __init__(self) -> None:
        self._began = time.monotonic()

    def now(self) -> float:
        return time.monotonic() - self._began

    def advance(self, seconds: float) -> float:
        time.sleep(seconds)
        return self.now()


def _passing(options: StandaloneTwin, twin: Twin) -> Clock:
    from real.clock import PacedClock

    match options.clock:
        case "paced":
            return PacedClock(twin)
        case "lockstep":
            return twin
        case "real":
            return _RealTime()


def _begin(
    fault: Fault, twin: Twin, due: list[tuple[float, Callable[[], None]]], now: float
) -> None:
    """Begins a fault, and notes in `due` when it ends."""
    match fault:
        case UserStopFault():
            twin.press_user_stop()
            due.append((now + fault.seconds, partial(twin.press_user_stop, False)))
        case DropFault():
            twin.lose_packets(fault.share)
            due.append((now + fault.seconds, partial(twin.lose_packets, 0.0)))
        case PushFault():
            twin.call("push", fault.force, fault.seconds)
        case FreezeFault():
            os.kill(twin.pid, signal.SIGSTOP)
            time.sleep(fault.seconds)
            os.kill(twin.pid, signal.SIGCONT)
