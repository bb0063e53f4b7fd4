"""Checks franky, and with the address of an arm whether its controller speaks franky's protocol.

The table of versions is that of the Franka documentation, "Compatibility with libfranka and the
robot" (robot system, libfranka, version of the robot's server), May 2026. franky's wheels for older
servers are in an index of its author, one folder for each version of the server.
"""

from __future__ import annotations

import re
import socket
import struct
from importlib.metadata import PackageNotFoundError, files, version
from pathlib import Path
from typing import NamedTuple

from flows.doctor.check import Check
from real.franka.connection import FCI_PORT

TIMEOUT_SECONDS = 2.0
"""Longest time for a connection, and for the controller's answer [s]."""
WHEELS = "https://timschneider42.github.io/franky/whl/by-robot-server-version"
REQUEST = struct.Struct("<IIIHH")
"""Request to connect: command, its number, size [bytes], version, UDP port; little-endian."""
ANSWER = struct.Struct("<IIIBH")
"""Answer: command, its number, size [bytes], status, version of the controller's server."""
CONNECT = 0
NO_VERSION = 0
"""Version that no controller accepts."""


class Compatibility(NamedTuple):
    """One row of the table of versions."""

    server: int
    """Version of the robot's server, which is that of the protocol."""
    libfranka: tuple[int, int, int]
    """First version of libfranka that speaks it."""
    system: str
    """First version of the robot's system that speaks it."""


COMPATIBILITY = (
    Compatibility(10, (0, 18, 0), "5.9.0"),
    Compatibility(9, (0, 15, 0), "5.7.2"),
    Compatibility(8, (0, 14, 1), "5.7.0"),
    Compatibility(7, (0, 13, 3), "5.5.0"),
    Compatibility(6, (0, 10, 0), "5.2.0"),
    Compatibility(5, (0, 9, 1), "4.2.1"),
    Compatibility(4, (0, 8, 0), "4.0.0"),
    Compatibility(3, (0, 7, 1), "3.0.0"),
)
"""Newest first. The FR3 begins with server 6; 5 is the last of the Panda (FER)."""


def franky(arm: bool) -> Check:
    """Checks whether franky can be imported, and names the robot systems that it speaks to.

    Args:
        arm: whether this computer controls an arm, which fails without franky.
    """
    try:
        installed = version("franky-control")
    except PackageNotFoundError:
        found = "franky is not installed"
        if not arm:
            return Check("franky", "not checked", found)
        advice = "Give `pip install -c constraints.txt '.[robot]'` on Linux x86_64."
        return Check("franky", "failed", found, advice)
    try:
        import franky  # noqa: F401
    except ImportError as error:
        found = f"franky-control {installed} cannot be imported ({error})"
        advice = "Its wheels need glibc 2.34, as in Debian 12 and Ubuntu 22.04, or newer."
        return Check("franky", "failed" if arm else "warning", found, advice)
    bundled = bundled_libfranka()
    row = None if bundled is None else spoken(bundled)
    if bundled is None or row is None:
        found = f"franky-control {installed}, whose libfranka is unknown"
        return Check("franky", "ok", found, lines=table())
    shown = ".".join(map(str, bundled))
    found = f"franky-control {installed}, libfranka {shown}: robot system {systems(row)}"
    return Check("franky", "ok", found, lines=table(row) if arm else ())


def bundled_libfranka(names: list[str] | None = None) -> tuple[int, int, int] | None:
    """Returns the version of libfranka in franky's wheel, None if its file is not found.

    Args:
        names: names of the wheel's files; None looks them up.
    """
    if names is None:
        names = [Path(file).name for file in files("franky-control") or []]
    for name in names:
        found = re.fullmatch(r"libfranka[^/]*\.so\.(\d+)\.(\d+)\.(\d+)", name)
        if found:
            return int(found[1]), int(found[2]), int(found[3])
    return None


def spoken(libfranka: tuple[int, int, int]) -> Compatibility | None:
    """Returns the row of a version of libfranka, None for one that is older than the table."""
    return next((row for row in COMPATIBILITY if libfranka >= row.libfranka), None)


def systems(row: Compatibility) -> str:
    """Returns the robot systems of a row in words, e.g. `5.7.0 up to, without, 5.7.2`."""
    newer = [other for other in COMPATIBILITY if other.server == row.server + 1]
    return f"{row.system} to before {newer[0].system}" if newer else f"{row.system} or newer"


def table(marked: Compatibility | None = None) -> tuple[str, ...]:
    """Returns the table of versions as lines; a star marks one row."""
    head = "  server  libfranka from  robot system"
    rows = (
        f"{'*' if row is marked else ' '} {row.server:>6}"
        f"  {'.'.join(map(str, row.libfranka)):<14}  {systems(row)}"
        for row in COMPATIBILITY
    )
    return (head, *rows)


def arm_connection(host: str, port: int = FCI_PORT) -> Check:
    """Checks whether an arm's controller answers, and which version of the protocol it speaks.

    The request names a version that no controller accepts. The controller refuses it with its own
    version, so nothing is controlled and no states are sent. This was tried against the simulated
    arm, not against a real one.

    Args:
        host: address of the controller.
        port: TCP port of the FCI.
    """
    name = f"arm {host}"
    try:
        with socket.create_connection((host, port), TIMEOUT_SECONDS) as connection:
            server = _asked_version(connection)
    except OSError as error:
        advice = (
            "Is the arm on, is FCI active in Desk, is this computer in the arm's network "
            "(`ping` it)?"
        )
        found = f"no connection to {host}:{port} ({error})"
        return Check(name, "failed", found, advice)
    if server is None:
        found = f"{host}:{port} accepts connections and does not answer as a robot's controller"
        advice = (
            "Is it the address of the arm's control unit, not of Desk or another computer, and is "
            "no session connected to it?"
        )
        return Check(name, "failed", found, advice)
    return _compared(name, server, bundled_row())


def bundled_row() -> Compatibility | None:
    """Returns the row of the installed franky, None without one."""
    try:
        bundled = bundled_libfranka()
    except PackageNotFoundError:
        return None
    return None if bundled is None else spoken(bundled)


def _asked_version(connection: socket.socket) -> int | None:
    """The version in the controller's refusal; None if it does not answer as expected."""
    request = REQUEST.pack(CONNECT, 0, REQUEST.size, NO_VERSION, 0)
    answer = b""
    try:
        connection.sendall(request)
        while len(answer) < ANSWER.size:
            part = connection.recv(ANSWER.size - len(answer))
            if not part:
                return None
            answer += part
    except OSError:
        return None
    command, _, size, _, server = ANSWER.unpack(answer)
    return server if (command, size) == (CONNECT, ANSWER.size) else None


def _compared(name: str, server: int, own: Compatibility | None) -> Check:
    """Compares the version of a controller's server with that of the installed franky."""
    row = next((row for row in COMPATIBILITY if row.server == server), None)
    system = f"robot system {systems(row)}" if row else "a robot system beyond the table"
    found = f"FCI answers, server {server} ({system})"
    if own is None or own.server == server:
        return Check(name, "ok", found)
    found = f"{found}; the installed franky speaks {own.server}"
    advice = f"Update the robot's system to {systems(own)}, or take franky from {WHEELS}/{server}/."
    return Check(name, "failed", found, advice)
