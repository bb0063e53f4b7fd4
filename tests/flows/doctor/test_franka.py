"""Versions of libfranka and of robots, and an arm that answers on loopback."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from flows.doctor import franka
from flows.doctor.franka import (
    ANSWER,
    COMPATIBILITY,
    REQUEST,
    arm_connection,
    bundled_libfranka,
    spoken,
    systems,
    table,
)
from sim.twin import protocol


@pytest.fixture(autouse=True)
def _franky_of_server_10(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(franka, "bundled_row", lambda: COMPATIBILITY[0])


@contextmanager
def answering(answer: bytes) -> Iterator[tuple[int, list[bytes]]]:
    """A controller that answers one request and closes; its port, and the requests so far."""
    requests: list[bytes] = []

    def serve(server: socket.socket) -> None:
        connection, _ = server.accept()
        with connection:
            requests.append(connection.recv(64))
            connection.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield server.getsockname()[1], requests
        thread.join(10.0)


@pytest.mark.parametrize(
    ("libfranka", "server"),
    [((0, 21, 2), 10), ((0, 18, 0), 10), ((0, 17, 9), 9), ((0, 9, 2), 5), ((0, 7, 1), 3)],
)
def test_a_version_of_libfranka_speaks_one_protocol(
    libfranka: tuple[int, int, int], server: int
) -> None:
    row = spoken(libfranka)
    assert row is not None
    assert row.server == server


def test_a_libfranka_older_than_the_table_speaks_none() -> None:
    assert spoken((0, 7, 0)) is None


def test_robot_systems_reach_up_to_the_next_row() -> None:
    assert systems(COMPATIBILITY[0]) == "5.9.0 or newer"
    assert systems(COMPATIBILITY[1]) == "5.7.2 to before 5.9.0"


def test_the_table_marks_the_row_of_the_installed_franky() -> None:
    marked = [line for line in table(COMPATIBILITY[1]) if line.startswith("*")]
    assert [line.split() for line in marked] == [
        ["*", "9", "0.15.0", "5.7.2", "to", "before", "5.9.0"]
    ]


def test_the_version_of_libfranka_is_that_of_its_file() -> None:
    names = ["libfmt-677b7a5c.so.8.1.1", "libfranka-b351eea7.so.0.21.2", "libfranky.so"]
    assert bundled_libfranka(names) == (0, 21, 2)
    assert bundled_libfranka(["libfranky.so"]) is None


def test_the_request_names_a_version_that_no_controller_accepts_and_no_port_for_states() -> None:
    with answering(ANSWER.pack(0, 0, ANSWER.size, 1, 10)) as (port, requests):
        arm_connection("127.0.0.1", port)
    assert [REQUEST.unpack(request) for request in requests] == [(0, 0, 16, 0, 0)]
    assert protocol.Command.CONNECT == 0
    assert protocol.HEADER.size + protocol.PAYLOAD[protocol.Command.CONNECT].size == REQUEST.size
    assert 0 not in {row.server for row in COMPATIBILITY}


def test_a_controller_of_the_same_version_is_ok() -> None:
    with answering(ANSWER.pack(0, 0, ANSWER.size, 1, 10)) as (port, _):
        check = arm_connection("127.0.0.1", port)
    assert check.status == "ok"
    assert check.found == "FCI answers, server 10 (robot system 5.9.0 or newer)"


def test_a_controller_of_another_version_is_a_failure_with_the_wheels_for_it() -> None:
    with answering(ANSWER.pack(0, 0, ANSWER.size, 1, 9)) as (port, _):
        check = arm_connection("127.0.0.1", port)
    assert check.status == "failed"
    assert "server 9 (robot system 5.7.2 to before 5.9.0)" in check.found
    assert check.advice.endswith("by-robot-server-version/9/.")


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n"])
def test_something_that_is_no_controller_is_a_failure_with_advice(answer: bytes) -> None:
    with answering(answer) as (port, _):
        check = arm_connection("127.0.0.1", port)
    assert check.status == "failed"
    assert "does not answer as a robot's controller" in check.found
    assert "address of the arm's control unit" in check.advice


def test_an_arm_that_does_not_listen_is_a_failure() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        check = arm_connection("127.0.0.1", port)
    assert check.status == "failed"
    assert check.found.startswith(f"no connection to 127.0.0.1:{port}")
    assert "Is the arm on" in check.advice


def test_the_simulated_arm_states_its_version_and_serves_the_next_client() -> None:
    pytest.importorskip("mujoco")
    from sim.twin.push_t_world import PushTWorld
    from sim.twin.twin import TwinConfig, start_twin
    from tests.sim.twin.loopback import address

    with start_twin(TwinConfig(host=address(31)), PushTWorld) as twin:
        checks = [arm_connection(twin.host) for _ in range(2)]
    assert [check.status for check in checks] == ["ok", "ok"]


def test_a_missing_franky_is_a_failure_beside_an_arm_only(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise franka.PackageNotFoundError(name)

    monkeypatch.setattr(franka, "version", absent)
    assert franka.franky(arm=False).status == "not checked"
    assert franka.franky(arm=True).status == "failed"


def test_the_installed_franky_names_its_robot_systems() -> None:
    pytest.importorskip("franky")
    assert "libfranka 0.21.2: robot system 5.9.0 or newer" in franka.franky(arm=False).found
    assert franka.franky(arm=True).lines[0].split()[0] == "server"
