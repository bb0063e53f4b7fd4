"""Implements `handoff twin`: a simulated arm behind the robot's network protocol, for programs of
others.

It takes any client of the robot, such as libfranka, pylibfranka and franky, unmodified, and ends
with Ctrl-C. Faults of a file happen at their times.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from functools import partial
from ipaddress import AddressValueError, IPv4Address
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from flows.session.twin_faults import Fault, FaultSchedule, check_hosts, read_faults
from robots.errors import HandoffError
from robots.franka import RobotName
from sim.scene.deviations import Deviations

if TYPE_CHECKING:
    from robots.interfaces import Clock
    from sim.twin.twin import Twin

STEP = 0.005
"""Time by which the simulation is advanced at once [s]."""
LAST_HOST = 254
"""Last number of an address of an arm."""
REPORT_SECONDS = 1.0
"""Interval between two lines of the display [s]."""


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
    friction: Literal["none", "published"] = "none"
    """Friction of the joints, see `sim.twin.twin.TwinConfig`."""
    deviations: Deviations = field(default_factory=Deviations)
    """Values in which the arms and the objects on their tables differ from their models."""
    robots: int = 1
    """Number of arms, each with a table of its own: at `host` and the addresses after it."""

    def hosts(self) -> list[str]:
        """Addresses of the arms.

        Raises:
            HandoffError: `host` is no such address, or there are none left after it.
        """
        try:
            first = IPv4Address(self.host)
        except AddressValueError:
            raise HandoffError(
                f"host: '{self.host}' is no address, expected one of this computer, such as 127.0.0.2."
            ) from None
        last = int(first) % 256 + self.robots - 1
        if last > LAST_HOST:
            raise HandoffError(
                f"robots: {self.robots} arms from {self.host} on end beyond .{LAST_HOST}. Choose a lower host or "
                "fewer robots."
            )
        return [str(first + number) for number in range(self.robots)]


def twin_command(options: StandaloneTwin, faults: Path | None) -> None:
    """Runs the twins until Ctrl-C or SIGTERM.

    Raises:
        HandoffError: no such task, an address that is taken or not of this computer, a file of
            faults that cannot be read, or deviations that only a driver of Handoff has.
    """
    from rich.console import Console
    from rich.live import Live

    if options.deviations.delay > 0.0:
        raise HandoffError(
            "deviations: delay is that of targets on their way to the driver, which is the program of others here. "
            "Remove it, or let packets be late by a fault of the kind 'delay'."
        )
    planned = [] if faults is None else read_faults(faults)
    screen = Console()
    with Live(console=screen, refresh_per_second=4, transient=True) as live:
        run_twins(
            options,
            planned,
            say=partial(screen.print, highlight=False, markup=False),
            show=live.update,
        )


def run_twins(
    options: StandaloneTwin,
    faults: Sequence[Fault],
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
    ended: Callable[[], bool] = lambda: False,
) -> None:
    """Runs all twins of the options until `ended`, each with a process and a clock of its own.

    Args:
        options: what is simulated.
        faults: what happens, by time.
        say: called with the addresses, and with every fault as it happens.
        show: called about once per second and twin with a text that replaces the last one.
        ended: whether the twins should end.

    Raises:
        HandoffError: a fault of an address that there is not, or an error of a twin, which ends
            the others.
    """
    hosts = options.hosts()
    check_hosts(faults, hosts)
    over = threading.Event()
    ready = threading.Barrier(
        len(hosts), lambda: say("         connect any program of the robot; Ctrl-C ends")
    )
    lines: dict[str, str] = {}

    def run(host: str) -> None:
        def show_line(text: str) -> None:
            lines[host] = text if len(hosts) == 1 else f"{host}  {text}"
            show("\n".join(lines[name] for name in hosts if name in lines))

        try:
            run_twin(
                replace(options, host=host, robots=1),
                faults,
                say=say if len(hosts) == 1 else lambda text: say(f"{host}  {text}"),
                show=show_line,
                ready=ready.wait,
                ended=lambda: over.is_set() or ended(),
            )
        except threading.BrokenBarrierError:
            # Another twin could not start, and says why.
            return
        except BaseException:
            ready.abort()
            over.set()
            raise

    with ThreadPoolExecutor(len(hosts), "twin") as pool:
        try:
            for done in as_completed([pool.submit(run, host) for host in hosts]):
                done.result()
        finally:
            over.set()
            ready.abort()


def run_twin(
    options: StandaloneTwin,
    faults: Sequence[Fault],
    *,
    say: Callable[[str], None],
    show: Callable[[str], None],
    ready: Callable[[], object],
    ended: Callable[[], bool],
) -> None:
    """Runs one twin until `ended`.

    Args:
        options: what is simulated, at `options.host`.
        faults: what happens to all twins, by time.
        say: called with the address, and with every fault as it happens.
        show: called about once per second with a line that replaces the last one.
        ready: called once programs can connect.
        ended: whether the twin should end.
    """
    from sim.twin.twin import TwinConfig, start_twin

    clock = "real" if options.clock == "real" else "lockstep"
    config = TwinConfig(
        host=options.host,
        clock=clock,
        friction=options.friction,
        deviations=options.deviations,
    )
    with start_twin(config, make_world(options)) as twin:
        if options.task != "push_t":
            twin.reset(options.seed)
        say(f"twin     {options.robot} with the table of {options.task} at {options.host}")
        passing = _passing(options, twin)
        schedule = FaultSchedule(faults, twin, say)
        # Faults of the beginning come before any client.
        schedule.advance(0.0)
        ready()
        reported = -REPORT_SECONDS
        while not ended():
            now = passing.advance(STEP)
            schedule.advance(now)
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
