"""Reads the faults of a simulated arm from a YAML file, and makes them happen at their times."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, Field

from robots.config import (
    Delay,
    Finite,
    Metres,
    NonNegative,
    Positive,
    Share,
    classes_of,
    config,
    read_yaml,
    validate,
)
from robots.errors import HandoffError, suggest
from sim.twin.protocol import VERSION

if TYPE_CHECKING:
    from sim.twin.twin import Direction, Twin

Packets = Literal["commands", "states", "both"]
Payload = Annotated[float, Field(gt=0.0, le=20.0)]
"""Mass of a payload [kg]."""


def _another_version(version: int) -> int:
    if version == VERSION:
        raise ValueError(f"{VERSION} is the version of the simulated arm, take another one")
    return version


Version = Annotated[int, Field(ge=1, le=65_535), AfterValidator(_another_version)]
"""A protocol version that the simulated arm does not speak."""


@config
class TimedFault:
    """When a fault begins and how long it lasts."""

    at: NonNegative
    """Time of the robot since the start [s]."""
    seconds: Positive | None = 1.0
    """Duration [s]; None lasts until the end."""
    host: str | None = None
    """Address of the arm that has it, where one command runs several; None for all."""

    def begin(self, twin: Twin) -> Callable[[], None] | None:
        """Makes it happen; returns what ends it after `seconds`, None if it ends by itself."""
        raise NotImplementedError


@config
class UserStopFault(TimedFault):
    """Somebody presses the user stop, and releases it."""

    kind: Literal["user_stop"] = "user_stop"

    def begin(self, twin: Twin) -> Callable[[], None] | None:
        """See `TimedFault`."""
        twin.press_user_stop()
        return partial(twin.press_user_stop, False)


@config
class FreezeFault(TimedFault):
    """The robot's computer stands still."""

    kind: Literal["freeze"] = "freeze"
    seconds: Positive = 0.06
    """Duration of wall time [s]."""

    def begin(self, twin: Twin) -> Callable[[], None] | None:
        """See `TimedFault`."""
        os.kill(twin.pid, signal.SIGSTOP)
        time.sleep(self.seconds)
        os.kill(twin.pid, signal.SIGCONT)
        return None


@config
class DropFault(TimedFault):
    """Packets are lost at random."""

    kind: Literal["drop"] = "drop"
    share: Share = 0.05
    """Share of the packets that are lost."""
    packets: Packets = "commands"
    """Packets that are lost: the client's commands, the robot's states, or both."""

    def begin(self, twin: Twin) -> Callable[[], None] | None:
        """See `TimedFault`."""
        directions = _directions(self.packets)
        _each(directions, lambda direction: twin.lose_packets(self.share, direction))
        return partial(_each, directions, lambda direction: twin.lose_packets(0.0, direction))


@config
class DelayFault(TimedFault):
    """Packets are late."""

    kind: Literal["delay"] = "delay"
    late: Delay = 0.002
    """Time by which every packet is late [s]; from 1 ms on it misses its cycle."""
    jitter: Delay = 0.0
    """Largest further delay, uniform at random [s]."""
    packets: Packets = "commands"
    """Packets that are late: the client's commands, the robot's states, or both."""

    def begin(self, twin: Twin) -> Callable[[], None] | None:
        """See `TimedFault`."""
        directions = _directions(self.packets)
        _each(directions, lambda way: twin.delay_packets(self.late, self.jitter, way))
        return partial(_each, directions, lambda way: twin.delay_packets(0.0, 0.0, way))


@config
class PushFault(TimedFault):
    """Something pushes the end effector."""

    kind: Literal["push"] = "push"
    seconds: Positive = 0.2
    """Duration of the push [s]."""
    force: tuple[Finite, Finite, Finite] = (0.0, 0.0, -20.0)
    """Force on the end effector, base frame [N]."""

    def begin(self, twin: Twin) -> Callable[[], None] | None:
        """See `TimedFault`."""
        twin.call("push", self.force, self.seconds)
        return None


@config
class PayloadFault(TimedFault):
    """The flange carries a mass that nobody has stated to the robot."""

    kind: Literal["payload"] = "payload"
    seconds: Positive | None = None
    """Duration [s]; None lasts until the end."""
    mass: Payload = 1.0
    """Mass of the payload [kg]."""
    position: tuple[Metres, Metres, Metres] = (0.0, 0.0, 0.1)
    """Place of the payload in the flange frame [m]."""

    def begin(self, twin: Twin) -> Callable[[], None] | None:
        """See `TimedFault`."""
        twin.call("load", self.mass, self.position)
        return partial(twin.call, "load", 0.0)


@config
class VersionFault(TimedFault):
    """The robot states another version of its protocol, as after a change of its firmware: a client
    that connects is refused."""

    kind: Literal["version"] = "version"
    seconds: Positive | None = None
    """Duration [s]; None lasts until the end."""
    version: Version = 9
    """Version that the robot states and accepts; libfranka from 0.18 on speaks 10."""

    def begin(self, twin: Twin) -> Callable[[], None] | None:
        """See `TimedFault`."""
        twin.state_version(self.version)
        return twin.state_version


Fault = Annotated[
    UserStopFault | FreezeFault | DropFault | DelayFault | PushFault | PayloadFault | VersionFault,
    Field(discriminator="kind"),
]


@config
class Faults:
    """The content of a file of faults."""

    faults: tuple[Fault, ...] = ()
    """The faults, in any order."""


def read_faults(path: Path) -> list[Fault]:
    """The faults of a YAML file, by their times.

    Raises:
        HandoffError: no such file, not YAML, a fault that does not exist, or two of one kind that
            overlap.
    """
    values = read_yaml(path)
    if not isinstance(values, list):
        raise HandoffError(
            f"{path}: expected a list of faults, such as '- {{kind: user_stop, at: 5.0}}'."
        )
    entries = (_fault(entry, f"{path}: fault {number}") for number, entry in enumerate(values, 1))
    faults = sorted(entries, key=lambda fault: fault.at)
    _check_apart(faults, path)
    return faults


def check_hosts(faults: Sequence[Fault], hosts: Sequence[str]) -> None:
    """Checks that every fault belongs to an arm.

    Raises:
        HandoffError: a fault names another address.
    """
    for fault in faults:
        if fault.host is not None and fault.host not in hosts:
            raise HandoffError(
                f"faults: {fault.kind} at {fault.at:g} s has the host '{fault.host}', expected one of "
                f"{', '.join(hosts)}."
            )


class FaultSchedule:
    """Begins and ends the faults of one arm.

    Args:
        faults: the faults of all arms, by time.
        twin: the simulated arm.
        say: called with every fault as it happens.
    """

    def __init__(self, faults: Sequence[Fault], twin: Twin, say: Callable[[str], None]) -> None:
        self._twin = twin
        self._say = say
        self._waiting = [fault for fault in faults if fault.host in (None, twin.host)]
        self._running: list[tuple[float, Callable[[], None]]] = []
        """Time at which a fault ends [s], and what ends it."""

    def advance(self, now: float) -> None:
        """Ends and begins what is due at the robot's time `now` [s]."""
        # In this order, so that a fault may follow another one of its kind at once.
        for entry in [entry for entry in self._running if now >= entry[0]]:
            self._running.remove(entry)
            entry[1]()
        while self._waiting and now >= self._waiting[0].at:
            fault = self._waiting.pop(0)
            lasting = "until the end" if fault.seconds is None else f"for {fault.seconds:g} s"
            self._say(f"{now:8.3f} s  {fault.kind} {lasting}")
            end = fault.begin(self._twin)
            if end is not None and fault.seconds is not None:
                self._running.append((now + fault.seconds, end))


def _fault(entry: object, where: str) -> Fault:
    """One fault of a file.

    Raises:
        HandoffError: no fault of a known kind, or an option that it does not have.
    """
    if not isinstance(entry, dict) or "kind" not in entry:
        raise HandoffError(
            f"{where}: {entry!r}, expected keys and values with a kind, such as '{{kind: user_stop, at: 5.0}}'."
        )
    kinds = {cls.kind: cls for cls in classes_of(Fault)}
    kind = str(entry["kind"])
    if kind not in kinds:
        raise HandoffError(f"{where}: no kind '{kind}', {suggest(kind, kinds, 'kinds:')}")
    return validate(kinds[kind], entry, where)


def _directions(packets: Packets) -> tuple[Direction, ...]:
    return ("commands", "states") if packets == "both" else (packets,)


def _each(directions: Sequence[Direction], change: Callable[[Direction], None]) -> None:
    for direction in directions:
        change(direction)


def _check_apart(faults: Sequence[Fault], path: Path) -> None:
    """Refuses two faults of one kind at the same time, of which the first would end the second."""
    for first, second in combinations(faults, 2):
        ends = inf if first.seconds is None else first.at + first.seconds
        same = first.kind == second.kind and bool(_changed(first) & _changed(second))
        one_arm = None in (first.host, second.host) or first.host == second.host
        if same and one_arm and second.at < ends:
            raise HandoffError(
                f"{path}: {second.kind} at {second.at:g} s begins before that at {first.at:g} s has ended. Set "
                f"`seconds` of the first one to {second.at - first.at:g} at most."
            )


def _changed(fault: Fault) -> set[Direction]:
    """Directions of the packets that a fault changes; one and the same for other faults."""
    packets = fault.packets if isinstance(fault, DropFault | DelayFault) else "commands"
    return set(_directions(packets))
