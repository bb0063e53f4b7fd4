"""Writers killed with SIGKILL, at random moments and before every single change they make to the
disk."""

import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec
from tests.robots.episodes.test_store import SCHEMA, assert_equal, episode

ONE_FIELD = EpisodeSchema(
    name="probe",
    streams={"policy": StreamSpec(rate_hz=10.0, fields={"agent": FieldSpec(shape=(2,), unit="m")})},
)
CHANGES = {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "os.link"}
DONE = 7
"""Exit status of a writer that was not killed."""


class Forker:
    """Runs functions in forks of a single-threaded process that has Zarr already imported: cheap to
    start and kill."""

    def __init__(self) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(["zarr", "tests.robots.episodes.test_store"])
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_fork_on_demand, args=(there,))
        self._process.start()
        there.close()

    def start(self, function: Callable[..., None], *args: object) -> int:
        self._connection.send((function, args))
        return self._connection.recv()

    def ended(self, patience_s: float) -> bool:
        return self._connection.poll(patience_s)

    def wait(self) -> int:
        return self._connection.recv()

    def close(self) -> None:
        self._connection.send(None)
        self._process.join()


def _fork_on_demand(connection: Connection) -> None:
    while (job := connection.recv()) is not None:
        function, args = job
        pid = os.fork()
        if pid == 0:
            try:
                function(*args)
            finally:
                os._exit(1)
        connection.send(pid)
        connection.send(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))


@pytest.fixture(scope="module")
def forker():
    forker = Forker()
    yield forker
    forker.close()


def steps_of(number: int) -> int:
    return 1 + number * 7 % 23


def content(schema: EpisodeSchema, number: int) -> dict:
    whole = episode(number, steps_of(number))
    return whole if schema == SCHEMA else {"policy": {"agent": whole["policy"]["agent"]}}


def write_for_ever(path: Path, batch: int, promised: Path) -> None:
    """Commits `batch` episodes at a time; after each commit, notes one byte per episode in
    `promised`."""
    store = EpisodeStore.open(path, "a")
    with promised.open("ab", buffering=0) as note:
        note.write(b"o")
        while True:
            first = store.num_episodes
            with store.writer() as writer:
                for number in range(first, first + batch):
                    writer.append(content(SCHEMA, number), {"n": number})
            note.write(b"c" * batch)


def append_killed_at(path: Path, change: int) -> None:
    """Creates the store if need be, appends one episode; dies by SIGKILL just before its
    `change`-th disk change."""
    changes = 0

    def count(event: str, args: tuple) -> None:
        nonlocal changes
        writes = (
            event == "open"
            and isinstance(args[2], int)
            and args[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        )
        if event in CHANGES or writes:
            changes += 1
            if changes == change:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    store = EpisodeStore.open(path, "a") if path.exists() else EpisodeStore.create(path, ONE_FIELD)
    store.append(content(ONE_FIELD, store.num_episodes), {"n": store.num_episodes})
    os._exit(DONE)


def count_intact(path: Path) -> int:
    store = EpisodeStore.open(path)
    for number in range(store.num_episodes):
        assert store.metadata(number) == {"n": number}
        assert_equal(store, number, content(store.schema, number))
    return store.num_episodes


@pytest.mark.parametrize("batch", [1, 4])
def test_no_committed_episode_is_lost_or_changed_when_writers_are_killed_at_random(
    tmp_path, forker, batch
):
    path, note = tmp_path / "store.zarr", tmp_path / "promised"
    EpisodeStore.create(path, SCHEMA).close()
    chance = random.Random(batch)
    one_commit_s = 0.1
    for commits in (1, 0, 1, 2, 0, 1, 0, 2):
        before = count_intact(path)
        note.write_bytes(b"")
        writer = forker.start(write_for_ever, path, batch, note)
        while note.stat().st_size < 1:
            assert not forker.ended(0.001), "the writer died by itself"
        opened = time.monotonic()
        while note.stat().st_size < 1 + commits * batch:
            assert not forker.ended(0.001), "the writer died by itself"
        if commits:
            one_commit_s = (time.monotonic() - opened) / commits
        time.sleep(chance.uniform(0.0, one_commit_s))
        os.kill(writer, signal.SIGKILL)
        assert forker.wait() == -signal.SIGKILL
        promised = before + note.stat().st_size - 1
        assert count_intact(path) in (promised, promised + batch)
    assert count_intact(path) >= 7 * batch


def test_a_kill_before_any_change_to_the_disk_loses_at_most_that_episode(tmp_path, forker):
    path = tmp_path / "store.zarr"
    with EpisodeStore.create(path, ONE_FIELD) as store:
        store.append(content(ONE_FIELD, 0), {"n": 0})
    before, committed, change, status = 0, 1, 0, -signal.SIGKILL
    while status == -signal.SIGKILL:
        change += 1
        forker.start(append_killed_at, path, change)
        status = forker.wait()
        before, committed = committed, count_intact(path)
        assert committed - before in (0, 1)
    assert status == DONE
    assert committed == before + 1
    assert change > 10
    folders = [folder for folder in (path / "segments").iterdir() if folder.is_dir()]
    assert len(folders) == committed, "a killed writer's segment was left behind"


def test_a_kill_during_creation_never_stops_the_next_creation(tmp_path, forker):
    path = tmp_path / "store.zarr"
    for change in range(1, 16):
        forker.start(append_killed_at, path, change)
        assert forker.wait() == -signal.SIGKILL
        if path.exists():
            assert count_intact(path) == 0
            shutil.rmtree(path)
    forker.start(append_killed_at, path, 10**9)
    assert forker.wait() == DONE
    assert count_intact(path) == 1
