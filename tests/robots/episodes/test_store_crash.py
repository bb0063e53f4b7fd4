"""Writers killed with SIGKILL, at random moments and before every single change they make to the
disk."""

import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec
from tests.robots.episodes.killed_writers import Forker, killed_before
from tests.robots.episodes.test_store import SCHEMA, assert_equal, episode

ONE_FIELD = EpisodeSchema(
    name="probe",
    streams={"policy": StreamSpec(rate_hz=10.0, fields={"agent": FieldSpec(shape=(2,), unit="m")})},
)
DONE = 7
"""Exit status of a writer that was not killed."""


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
    killed_before(change)
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
