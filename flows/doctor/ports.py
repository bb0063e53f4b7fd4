"""Checks whether the TCP ports that Handoff and Prefect listen at are free on this machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping

from flows.doctor.check import Check

PORTS: Mapping[int, tuple[str, str]] = {
    4200: ("Prefect's server", "Give `prefect server start --port` another port."),
    8700: ("the console", "Give `--port` another port."),
    8720: ("the review of episodes", "Give `handoff episodes review` another `--port`."),
    8000: ("the policy server", "Give `handoff serve` another `--port`."),
    1337: ("the simulated arm", "End that program: the robot's protocol fixes the port."),
}
"""Who listens at a port by default, and what to do where another program does."""
OWN = ("handoff", "prefect")
"""Words in the command lines of Handoff and Prefect themselves."""
LOOPBACK = "127.0.0.1"


def port(number: int) -> Check:
    """Checks one of `PORTS`: free, or taken by which process."""
    owner, advice = PORTS[number]
    return listened_at(number, owner, advice)


def listened_at(number: int, owner: str, advice: str, own: tuple[str, ...] = OWN) -> Check:
    """Checks one port.

    Args:
        number: TCP port at the loopback address.
        owner: who listens there by default.
        advice: what to do where another program listens there.
        own: words in the command lines of programs that may listen there.
    """
    name = f"port {number}"
    with socket.socket() as probe:
        # Otherwise a connection that has just been closed makes a free port look taken.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, number))
        except OSError:
            program = listener(number)
        else:
            return Check(name, "ok", f"free for {owner}")
    if program is None:
        return Check(name, "warning", f"of {owner}, taken by a process of another user", advice)
    if any(word in program for word in own):
        return Check(name, "ok", f"of {owner}, taken by {program}")
    return Check(name, "warning", f"of {owner}, taken by {program}", advice)


def listener(number: int) -> str | None:
    """Returns process id and command line of the process that listens at a port; None if it is not
    visible to this user."""
    import psutil

    try:
        connections = psutil.net_connections("tcp")
    except psutil.AccessDenied:
        return None
    for connection in connections:
        if connection.status != psutil.CONN_LISTEN or connection.pid is None:
            continue
        if connection.laddr and connection.laddr.port == number:
            return _named(connection.pid)
    return None


def _named(pid: int) -> str:
    import psutil

    try:
        process = psutil.Process(pid)
        words = " ".join(process.cmdline()) or process.name()
    except psutil.Error:
        words = "a process that has ended"
    return f"{pid} ({words[:60]})"
