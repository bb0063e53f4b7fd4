"""A twin that its computer delays is not given up by its client, and computes the same."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from sim.twin.keep_alive import INTERVAL, KeepAlive
from sim.twin.push_t_world import PushTWorld
from sim.twin.twin import Twin, TwinConfig, start_twin
from tests.sim.twin.loopback import address

LIFT = np.array([0.05, -0.25, 0.05, 0.05, 0.05, 0.05, 0.05])
"""A small joint motion that raises the pusher from the table [rad]."""
LONGER_THAN_LIBFRANKA_WAITS = 1.6
"""Duration of a stall of the twin [s]; libfranka waits for 1 s."""


@contextmanager
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as twin,
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client,
    ):
        twin.bind(("127.0.0.1", 0))
        client.bind(("127.0.0.1", 0))
        client.settimeout(5.0)
        yield twin, client


def test_the_last_datagram_is_repeated_from_the_twins_own_address_until_the_next_one() -> None:
    with sockets() as (twin, client):
        keep_alive = KeepAlive(twin)
        keep_alive.set_client(*client.getsockname())
        keep_alive.note(b"first")
        assert [client.recvfrom(64) for _ in range(2)] == [(b"first", twin.getsockname())] * 2
        keep_alive.note(b"second, longer")
        while (received := client.recv(64)) == b"first":
            pass
        assert received == b"second, longer"
        keep_alive.close()


def test_nothing_is_repeated_while_states_are_sent_and_without_a_client() -> None:
    with sockets() as (twin, client):
        keep_alive = KeepAlive(twin)
        keep_alive.set_client(*client.getsockname())
        until = time.monotonic() + 3.0 * INTERVAL
        while time.monotonic() < until:
            keep_alive.note(b"state")
            time.sleep(0.01)
        keep_alive.clear()
        client.settimeout(3.0 * INTERVAL)
        with pytest.raises(TimeoutError):
            client.recv(64)
        keep_alive.close()


def test_the_process_ends_with_the_twin() -> None:
    with sockets() as (twin, _):
        keep_alive = KeepAlive(twin)
        process = keep_alive._process
        os.close(keep_alive._alive)
        assert process.wait(5.0) == 0


def lifted(host: str, stall: float) -> tuple[np.ndarray, float]:
    """States of a joint motion in which the twin's process stands still once, and the time that it
    took [s]."""
    franky = pytest.importorskip("franky", reason="franky-control has wheels for Linux x86_64 only")
    with start_twin(TwinConfig(host=host, log_seconds=5.0), PushTWorld) as twin:
        robot = franky.Robot(host, realtime_config=franky.RealtimeConfig.Ignore)
        robot.relative_dynamics_factor = 0.3
        robot.move(franky.JointMotion(robot.state.q_d + LIFT), asynchronous=True)
        twin.wait_for_motion()
        began = time.monotonic()
        twin.advance(0.1)
        if stall:
            stopped(twin, stall)
        twin.advance(2.9)
        robot.join_motion()
        assert twin.stats()["lost_packets"] == 0
        return twin.recorded(), time.monotonic() - began


def stopped(twin: Twin, seconds: float) -> None:
    """Stops the twin's process now, and continues it after a time."""
    pid = twin._process.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(seconds, os.kill, (pid, signal.SIGCONT)).start()


def test_a_motion_survives_a_stall_of_the_twin_and_its_states_are_the_same() -> None:
    stalled, seconds = lifted(address(31), LONGER_THAN_LIBFRANKA_WAITS)
    assert seconds > LONGER_THAN_LIBFRANKA_WAITS
    undisturbed, _ = lifted(address(32), 0.0)
    # The message id also counts the states at rest, by the wall clock.
    for name in set(undisturbed.dtype.names or ()) - {"message_id"}:
        assert stalled[name].tobytes() == undisturbed[name].tobytes(), name
