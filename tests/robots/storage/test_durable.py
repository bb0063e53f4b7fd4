"""Files are replaced as a whole, by any number of writers at once."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from pathlib import Path

import pytest

from robots.storage.durable import (
    WriterLock,
    is_temporary,
    remove_temporary,
    temporary_beside,
    write_atomically,
)

WRITES = 150


def write_many(path: Path, letter: str) -> None:
    for number in range(WRITES):
        write_atomically(path, letter.encode() * (1000 + number))


def whole(path: Path) -> bool:
    content = path.read_bytes()
    return len(content) >= 1000 and len(set(content)) == 1


def test_threads_and_processes_that_write_one_file_at_once_never_meet(tmp_path: Path) -> None:
    path = tmp_path / "digests.json"
    errors: list[OSError] = []

    def in_thread(letter: str) -> None:
        try:
            write_many(path, letter)
        except OSError as error:
            errors.append(error)

    process = multiprocessing.get_context("spawn").Process(target=write_many, args=(path, "p"))
    threads = [threading.Thread(target=in_thread, args=(letter,)) for letter in "ab"]
    process.start()
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert not path.exists() or whole(path)
    process.join(60.0)
    assert (errors, process.exitcode) == ([], 0)
    assert whole(path)
    assert os.listdir(tmp_path) == ["digests.json"]


def test_a_writer_that_fails_leaves_the_old_file_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "index.json"
    write_atomically(path, b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, b"new")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == {"index.json": b"old"}


def die_before_the_rename(path: Path) -> None:
    os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)  # type: ignore[assignment]
    write_atomically(path, b"new")


def test_what_a_killed_writer_leaves_is_found_and_removed(tmp_path: Path) -> None:
    path = tmp_path / "below" / "index.json"
    path.parent.mkdir()
    spawn = multiprocessing.get_context("spawn")
    process = spawn.Process(target=die_before_the_rename, args=(path,))
    process.start()
    process.join(60.0)
    assert process.exitcode == -signal.SIGKILL
    assert [is_temporary(file.name) for file in path.parent.iterdir()] == [True]
    folder = temporary_beside(tmp_path / "store.zarr")
    (folder / "inner").mkdir(parents=True)
    # Names that a person or another program may give stay.
    for name in (".index.json.partial", "teacher-3f9c0a1b2c4d.partial", ".x.3f9c0a1b2c4d"):
        (tmp_path / name).write_text("kept")
    remove_temporary(tmp_path)
    assert sorted(str(file.relative_to(tmp_path)) for file in tmp_path.rglob("*")) == [
        ".index.json.partial",
        ".x.3f9c0a1b2c4d",
        "below",
        "teacher-3f9c0a1b2c4d.partial",
    ]


def test_a_lock_whose_release_is_interrupted_is_not_closed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second close would be of a descriptor that is free, or somebody else's by then."""
    lock = WriterLock(tmp_path / "lock")
    closed: list[int] = []
    close = os.close

    def interrupted(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "close", interrupted)
        with pytest.raises(KeyboardInterrupt):
            lock.release()
    lock.release()
    assert len(closed) == 1
    WriterLock(tmp_path / "lock").release()
