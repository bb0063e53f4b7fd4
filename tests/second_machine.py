"""A second machine: a network namespace that is joined to this one by a pair of virtual Ethernet
interfaces, which can be cut and slowed down.

The namespace and the interfaces end with the process that holds them, so a killed test leaves
nothing behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PROGRAMS = ("ip", "tc", "unshare", "nsenter")
"""Programs that it needs, of the packages iproute2 and util-linux."""


class SecondMachine:
    """A namespace and the link to it; see `second_machine`.

    Attributes:
        here: address of this machine on the link.
        there: address of the second machine.
    """

    def __init__(self, number: int) -> None:
        # A process has networks of its own, out of those for tests of networks (RFC 2544).
        network = (4 * os.getpid() + 4 * 16384 * number) % (1 << 17)
        first = (198 << 24) + (18 << 16) + (network & ~3)
        self.here, self.there = (_dotted(first + host) for host in (1, 2))
        self._inside = f"hin{os.getpid()}x{number}"
        self._outside = f"hout{os.getpid()}x{number}"
        self._holder = subprocess.Popen(["unshare", "--net", "--", "sleep", "infinity"])
        try:
            self._wait_for_namespace()
            self._join()
        except BaseException:
            self.close()
            raise

    def start(
        self, command: Sequence[str], variables: Mapping[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Starts a program on the second machine."""
        environment = {**os.environ, **(variables or {})}
        return subprocess.Popen(
            [*self._entering(), *command], env=environment, text=True, **options
        )

    def cut(self) -> None:
        """Cuts the link at the other end: packets are lost, and no end is told."""
        _run([*self._entering(), "ip", "link", "set", self._inside, "down"])

    def mend(self, after_s: float) -> None:
        """Joins the link again after a time [s], while this process goes on."""
        joined = f"sleep {after_s}; ip link set {self._inside} up"
        subprocess.Popen([*self._entering(), "sh", "-c", joined])

    def limit(self, megabits_per_s: float) -> None:
        """Limits the bandwidth in both directions."""
        shape = f"root tbf rate {megabits_per_s}mbit burst 32kbit latency 200ms".split()
        _run(["tc", "qdisc", "add", "dev", self._outside, *shape])
        _run([*self._entering(), "tc", "qdisc", "add", "dev", self._inside, *shape])

    def received_bytes(self) -> int:
        """Number of bytes that came over the link to this machine."""
        counter = Path(f"/sys/class/net/{self._outside}/statistics/rx_bytes")
        return int(counter.read_text())

    def close(self) -> None:
        """Removes the link, and ends the namespace."""
        # Programs that still end on the second machine would keep the link.
        subprocess.run(["ip", "link", "delete", self._outside], capture_output=True, check=False)
        self._holder.kill()
        self._holder.wait()

    def _entering(self) -> list[str]:
        return ["nsenter", "--net", f"--target={self._holder.pid}", "--"]

    def _wait_for_namespace(self) -> None:
        own = os.readlink("/proc/self/ns/net")
        deadline = time.monotonic() + 10.0
        while os.readlink(f"/proc/{self._holder.pid}/ns/net") == own:
            if self._holder.poll() is not None or time.monotonic() > deadline:
                raise OSError("no network namespace: unshare --net failed")
            time.sleep(0.01)

    def _join(self) -> None:
        ends = ["ip", "link", "add", self._outside, "type", "veth", "peer", "name", self._inside]
        _run([*ends, "netns", str(self._holder.pid)])
        _run(["ip", "address", "add", f"{self.here}/30", "dev", self._outside])
        _run(["ip", "link", "set", self._outside, "up"])
        _run([*self._entering(), "ip", "address", "add", f"{self.there}/30", "dev", self._inside])
        for device in (self._inside, "lo"):
            _run([*self._entering(), "ip", "link", "set", device, "up"])
        # This machine may have other addresses, as that of a link to a third one.
        _run([*self._entering(), "ip", "route", "add", "default", "via", self.here])


@contextmanager
def second_machine(number: int = 0) -> Iterator[SecondMachine]:
    """A second machine for the duration of the context; several of a process have numbers."""
    machine = SecondMachine(number)
    try:
        yield machine
    finally:
        machine.close()


def missing_programs() -> list[str]:
    """Programs that have to be installed first."""
    return [program for program in PROGRAMS if shutil.which(program) is None]


def lacking_programs() -> str | None:
    """Reason why this machine can make no second one; None if it can."""
    if missing := missing_programs():
        return f"no second machine: no {', '.join(missing)}: apt install iproute2 util-linux"
    try:
        with second_machine(7) as machine:
            machine.limit(100.0)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"no network namespaces and traffic control ({error}): run as root, --privileged"
    return None


def _dotted(address: int) -> str:
    return ".".join(str(address >> shift & 255) for shift in (24, 16, 8, 0))


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True)
