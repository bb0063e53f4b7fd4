"""Ports that are free, and ports that a process of the test takes."""

from __future__ import annotations

import inspect
import os
import socket
from collections.abc import Iterator

import pytest

from flows.commands import episodes, evaluation, sessions
from flows.doctor import ports
from flows.doctor.ports import PORTS, listened_at, listener
from sim.twin import protocol


@pytest.fixture
def taken() -> Iterator[int]:
    """A port at which this process listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_a_port_that_another_program_takes_is_a_warning_with_its_process(taken: int) -> None:
    check = listened_at(taken, "the console", "Give another.", own=("no such program",))
    assert (check.status, check.advice) == ("warning", "Give another.")
    assert check.found.startswith(f"of the console, taken by {os.getpid()} (")


def test_a_port_that_its_own_program_takes_is_ok(taken: int) -> None:
    assert listened_at(taken, "the console", "Give another.", own=("py",)).status == "ok"


def test_a_port_is_free_again_after_it_was_closed(taken: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", number)):
            # The server closes first, which leaves its end of the connection in TIME_WAIT.
            server.accept()[0].close()
    check = listened_at(number, "the console", "Give another.")
    assert (check.status, check.found) == ("ok", "free for the console")


def test_a_port_without_a_visible_process_is_that_of_another_user(
    taken: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ports, "listener", lambda number: None)
    check = listened_at(taken, "the console", "Give another.")
    assert check.found == "of the console, taken by a process of another user"
    assert check.status == "warning"


def test_nobody_listens_at_a_free_port(taken: int) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        assert listener(unused.getsockname()[1]) is None


def test_the_checked_ports_are_the_defaults_of_the_commands() -> None:
    console = inspect.signature(sessions.console).parameters["port"].default
    serve = inspect.signature(evaluation.serve).parameters["port"].default
    review = inspect.signature(episodes.review).parameters["port"].default
    assert set(PORTS) == {4200, console, review, serve, protocol.PORT}
