"""The actor's end of the line, against learners that behave and others."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

from real.hil.journal import Journal
from real.hil.learner_client import LearnerClient, LearnerClientConfig
from robots.errors import HandoffError
from robots.wire.learner import Acknowledgement, Hello, JournalEntry, Pause, decode, encode
from tests.real.hil.made import parameters, steps

TOKEN = "token-of-the-tests"
LONG = 60.0
"""Limit of every wait of these tests [s]: only a defect reaches it."""


@contextmanager
def learner(talk: Callable[[ServerConnection], None], port: int = 0) -> Iterator[int]:
    """A server whose connections are served by `talk`; the port."""

    def guarded(connection: ServerConnection) -> None:
        try:
            talk(connection)
        except ConnectionClosed:
            return

    with serve(guarded, "127.0.0.1", port, compression=None) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server.socket.getsockname()[1]
        finally:
            server.shutdown()
            thread.join(LONG)


def config(port: int, **changes) -> LearnerClientConfig:
    return LearnerClientConfig(
        uri=f"ws://127.0.0.1:{port}", **{"wait_first": 0.02, "wait_longest": 0.1, **changes}
    )


def wait_for(condition: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not condition():
        assert time.monotonic() - begin < LONG
        time.sleep(0.005)


def taking(got: list[JournalEntry], taken: int = -1) -> Callable[[ServerConnection], None]:
    """A learner that has everything up to `taken` and takes what comes."""

    def talk(connection: ServerConnection) -> None:
        hello = decode(connection.recv())
        assert isinstance(hello, Hello)
        connection.send(encode(Acknowledgement(got[-1].number if got else taken)))
        for frame in connection:
            message = decode(frame)
            assert isinstance(message, JournalEntry)
            got.append(message)
            connection.send(encode(Acknowledgement(message.number)))

    return talk


def test_entries_arrive_in_order_also_those_from_before_and_files_are_dropped(
    tmp_path: Path,
) -> None:
    got: list[JournalEntry] = []
    with Journal(tmp_path, segment_bytes=1) as journal, learner(taking(got)) as port:
        for number in range(5):
            journal.append(steps(begin=2 * number))
        with LearnerClient(journal, config(port, window=2), TOKEN, tmp_path) as link:
            assert link.flush(LONG)
            journal.append(steps(begin=10))
            assert link.flush(LONG)
            assert link.state.waiting == 0
        assert (journal.first_number, journal.next_number) == (5, 6)
    assert [message.number for message in got] == [0, 1, 2, 3, 4, 5]
    assert np.concatenate([message.steps.number for message in got]).tolist() == list(range(12))


def test_no_more_than_the_window_is_sent_ahead(tmp_path: Path) -> None:
    got: list[int] = []

    def silent(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(encode(Acknowledgement(-1)))
        for frame in connection:
            message = decode(frame)
            assert isinstance(message, JournalEntry)
            got.append(message.number)
            if len(got) == 3:
                # Time for what must not come.
                time.sleep(0.3)
                assert len(got) == 3
                connection.send(encode(Acknowledgement(0)))

    with Journal(tmp_path) as journal, learner(silent) as port:
        for _ in range(9):
            journal.append(steps())
        with LearnerClient(journal, config(port, window=3), TOKEN, tmp_path):
            wait_for(lambda: len(got) >= 4)
            time.sleep(0.2)
    assert got == [0, 1, 2, 3]


def test_after_a_lost_connection_sending_goes_on_behind_what_the_learner_has(
    tmp_path: Path,
) -> None:
    got: list[JournalEntry] = []

    def forgetful(connection: ServerConnection) -> None:
        """Takes two entries per connection, and acknowledges one of them."""
        connection.recv()
        connection.send(encode(Acknowledgement(got[-1].number if got else -1)))
        for _ in range(2):
            message = decode(connection.recv())
            assert isinstance(message, JournalEntry)
            got.append(message)
        connection.send(encode(Acknowledgement(got[-2].number)))

    with Journal(tmp_path) as journal, learner(forgetful) as port:
        for _ in range(6):
            journal.append(steps())
        with LearnerClient(journal, config(port), TOKEN, tmp_path):
            wait_for(lambda: len(got) == 6)
    assert [message.number for message in got] == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("orderly", [True, False])
def test_a_learner_that_says_that_it_ends_is_no_reason_to_warn(
    orderly: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    leave = threading.Event()

    def leaving(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(encode(Acknowledgement(-1)))
        leave.wait(LONG)
        if not orderly:
            connection.socket.close()

    caplog.set_level("INFO", logger="real.hil.learner_client")
    with Journal(tmp_path) as journal:
        with learner(leaving) as port:
            link = LearnerClient(journal, config(port), TOKEN, tmp_path)
            link.start()
            wait_for(lambda: link.state.condition == "connected")
            leave.set()
        # Nobody listens any more, and it is tried again.
        wait_for(lambda: "refused" in link.state.trouble)
        link.close()
    warned = [record for record in caplog.records if record.levelname == "WARNING"]
    assert (warned == []) == orderly
    assert caplog.records != []


def test_parameters_and_pauses_arrive_and_a_lost_connection_ends_the_pause(tmp_path: Path) -> None:
    leave = threading.Event()

    def telling(connection: ServerConnection) -> None:
        connection.recv()
        for message in (Acknowledgement(-1), parameters(version=3), Pause(True)):
            connection.send(encode(message))
        leave.wait(LONG)

    with Journal(tmp_path) as journal, learner(telling) as port:
        link = LearnerClient(journal, config(port, wait_first=LONG), TOKEN, tmp_path)
        assert link.policy is None
        link.start()
        wait_for(lambda: link.paused)
        assert link.policy is not None
        assert link.state == ("connected", "", 0, 3)
        sent = hashlib.sha256(encode(parameters(version=3))).hexdigest()
        assert (link.digest(3), link.digest(2)) == (sent, None)
        leave.set()
        wait_for(lambda: not link.paused)
        link.close()
        assert link.state.condition == "closed"
        again = LearnerClient(journal, config(port), TOKEN, tmp_path)
    assert again.policy is not None
    assert again.digest(3) == sent
    shown = np.ones((2, 3), np.float32)
    assert np.array_equal(again.policy.act(shown), link.policy.act(shown))


def test_parameters_that_were_damaged_on_the_disk_are_not_used(tmp_path: Path) -> None:
    frame = encode(parameters())
    (tmp_path / "policy.msgpack").write_bytes(frame[:-40])
    with Journal(tmp_path) as journal:
        assert LearnerClient(journal, config(1), TOKEN, tmp_path).policy is None


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (Acknowledgement(4), "has 2 entries, the learner has 5 of it. Was the folder restored"),
        (Pause(True), "answered with Pause, expected Acknowledgement"),
        ("steps: Is this actor another task's?", "Is this actor another task's"),
        (b"\xc1", "not a msgpack value"),
    ],
    ids=["rolled back", "no greeting", "complaint", "garbage"],
)
def test_a_learner_that_does_not_want_what_is_sent_is_told_of_and_tried_again(
    tmp_path: Path, answer, trouble: str
) -> None:
    calls = []

    def refusing(connection: ServerConnection) -> None:
        connection.recv()
        calls.append(1)
        connection.send(answer if isinstance(answer, str | bytes) else encode(answer))
        connection.recv()

    with Journal(tmp_path) as journal, learner(refusing) as port:
        journal.append(steps())
        journal.append(steps())
        with LearnerClient(journal, config(port), TOKEN, tmp_path) as link:
            wait_for(lambda: len(calls) >= 2)
            wait_for(lambda: link.state.condition == "refused")
            assert trouble in link.state.trouble
            assert link.state.waiting == 2
        assert journal.first_number == 0


def test_a_learner_that_claims_what_was_not_sent_frees_nothing(tmp_path: Path) -> None:
    def boasting(connection: ServerConnection) -> None:
        connection.recv()
        connection.send(encode(Acknowledgement(-1)))
        connection.send(encode(Acknowledgement(1)))
        connection.recv()
        connection.recv()

    with Journal(tmp_path, segment_bytes=1) as journal, learner(boasting) as port:
        for _ in range(2):
            journal.append(steps())
        with LearnerClient(journal, config(port, window=0), TOKEN, tmp_path) as link:
            wait_for(lambda: "acknowledged entry 1" in link.state.trouble)
        assert journal.first_number == 0


def test_without_a_learner_the_link_keeps_trying_and_acting_threads_are_not_held_up(
    tmp_path: Path,
) -> None:
    got: list[JournalEntry] = []
    with learner(taking([])) as port:
        pass  # It is free a moment later.
    with (
        Journal(tmp_path) as journal,
        LearnerClient(journal, config(port), TOKEN, tmp_path) as link,
    ):
        for _ in range(3):
            journal.append(steps())
        wait_for(lambda: link.state.trouble != "")
        assert link.state.condition == "connecting"
        assert not link.flush(0.0)
        with learner(taking(got), port):
            assert link.flush(LONG)
    assert [message.number for message in got] == [0, 1, 2]


def test_a_short_token_is_an_error(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal, pytest.raises(HandoffError, match="token: 5 characters"):
        LearnerClient(journal, config(1), "short", tmp_path)
