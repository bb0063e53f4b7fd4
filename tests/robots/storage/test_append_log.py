"""The log that survives crashes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from robots.errors import HandoffError
from robots.storage.append_log import AppendLog

RECORDS = [b"one", b"", b"three, the longest of them"]
HEADER = 20


@pytest.fixture
def written(tmp_path: Path) -> Path:
    log = AppendLog(tmp_path / "log", 10_000)
    for record in RECORDS:
        log.append(record)
    log.close()
    return next((tmp_path / "log").glob("*.log"))


def contents(folder: Path) -> list[bytes]:
    log = AppendLog(folder, 10_000)
    try:
        return [record for _, record in log.records(log.first)]
    finally:
        log.close()


def test_records_are_numbered_from_zero_and_come_back(tmp_path: Path) -> None:
    log = AppendLog(tmp_path, 10_000)
    assert [log.append(record) for record in RECORDS] == [0, 1, 2]
    assert list(log.records(1)) == [(1, b""), (2, RECORDS[2])]
    log.close()


def test_a_record_torn_at_any_byte_is_cut_off_and_its_number_used_again(written: Path) -> None:
    whole = written.read_bytes()
    before = len(whole) - HEADER - len(RECORDS[-1])
    for length in range(before, len(whole)):
        written.write_bytes(whole[:length])
        log = AppendLog(written.parent, 10_000)
        assert [record for _, record in log.records(0)] == RECORDS[:2]
        assert written.stat().st_size == before
        assert log.append(b"new") == 2
        log.close()
        assert contents(written.parent) == [*RECORDS[:2], b"new"]


def test_a_last_record_with_any_byte_changed_is_cut_off(written: Path) -> None:
    whole = written.read_bytes()
    before = len(whole) - HEADER - len(RECORDS[-1])
    for place in range(before, len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x40
        written.write_bytes(changed)
        assert contents(written.parent) == RECORDS[:2]


def test_zeros_behind_the_last_record_are_cut_off(written: Path) -> None:
    written.write_bytes(written.read_bytes() + bytes(4096))
    assert contents(written.parent) == RECORDS


def test_damage_before_the_last_record_is_an_error_and_nothing_is_cut(written: Path) -> None:
    changed = bytearray(written.read_bytes())
    changed[HEADER] ^= 1
    written.write_bytes(changed)
    with pytest.raises(HandoffError, match="record 0 is damaged"):
        AppendLog(written.parent, 10_000)
    assert written.read_bytes() == changed


def test_files_are_dropped_oldest_first_and_numbers_go_on(tmp_path: Path) -> None:
    log = AppendLog(tmp_path, 30)
    for number in range(10):
        log.append(b"ten bytes " + bytes([number]))
    names = sorted(path.name for path in tmp_path.glob("*.log"))
    assert [int(name[:-4]) for name in names] == [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    log.drop(4)
    assert (log.first, log.next) == (4, 10)
    log.drop(100)
    assert (log.first, log.next) == (9, 10)
    log.close()
    again = AppendLog(tmp_path, 30)
    assert again.append(b"next") == 10
    with pytest.raises(HandoffError, match="record 3 does not exist"):
        again.read(3)
    again.close()


def test_a_missing_file_in_the_middle_is_an_error(tmp_path: Path) -> None:
    log = AppendLog(tmp_path, 1)
    for _ in range(3):
        log.append(b"x")
    log.close()
    (tmp_path / f"{1:020d}.log").unlink()
    with pytest.raises(HandoffError, match="records 1 to 1 are missing"):
        AppendLog(tmp_path, 1)


def test_a_failed_append_leaves_nothing_and_the_next_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AppendLog(tmp_path, 10_000)
    log.append(b"kept")
    real = os.pwrite

    def full(file: int, data: memoryview, place: int) -> int:
        real(file, data[:5], place)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(HandoffError, match="record 1 was not stored"):
        log.append(b"lost")
    monkeypatch.undo()
    assert log.append(b"later") == 1
    log.close()
    assert contents(tmp_path) == [b"kept", b"later"]


def test_a_record_is_flushed_before_append_returns_and_a_new_file_s_entry_before_that(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = AppendLog(tmp_path, 1)
    log.append(b"in the first file")
    done: list[str] = []
    write, flush = os.pwrite, os.fsync

    def named(descriptor: int) -> str:
        return Path(os.readlink(f"/proc/self/fd/{descriptor}")).name

    monkeypatch.setattr(
        os,
        "pwrite",
        lambda file, *rest: (done.append(f"write {named(file)}"), write(file, *rest))[1],
    )
    monkeypatch.setattr(
        os, "fsync", lambda file: (done.append(f"flush {named(file)}"), flush(file))[1]
    )
    log.append(b"in the second")
    second = f"{1:020d}.log"
    assert done == [f"flush {tmp_path.name}", f"write {second}", f"flush {second}"]
    log.close()


def test_a_second_writer_is_refused(tmp_path: Path) -> None:
    log = AppendLog(tmp_path, 10_000)
    with pytest.raises(HandoffError, match="already open for writing"):
        AppendLog(tmp_path, 10_000)
    log.close()
