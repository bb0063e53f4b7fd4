"""What happened at the console stays on the disk."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

from real.console.audit import AuditLog, read_audit


def test_lines_are_appended_with_their_times(tmp_path):
    path = tmp_path / "a" / "audit.jsonl"
    log = AuditLog(path)
    log("ada", "joined", {"address": "here"})
    log.close()
    log = AuditLog(path)
    log("bob", "joined", {})
    log.close()
    first, second = read_audit(path)
    assert (first["who"], first["what"], first["address"]) == ("ada", "joined", "here")
    assert second["who"] == "bob"
    assert second["monotonic"] >= first["monotonic"]


def test_a_line_that_was_cut_short_is_left_out_and_spoils_no_other(tmp_path):
    path = tmp_path / "audit.jsonl"
    path.write_text('{"who": "ada", "what": "joined"}\n{"who": "ad')
    log = AuditLog(path)
    log("bob", "joined", {})
    assert [line["who"] for line in read_audit(path)] == ["ada", "bob"]


def test_only_its_owner_reads_it(tmp_path):
    AuditLog(tmp_path / "audit.jsonl")
    assert (tmp_path / "audit.jsonl").stat().st_mode & 0o077 == 0


def test_what_was_written_before_a_kill_is_there(tmp_path):
    path, context = tmp_path / "audit.jsonl", multiprocessing.get_context("spawn")
    process = context.Process(target=_write_for_ever, args=(path,))
    process.start()
    while not path.exists() or len(path.read_bytes()) < 2000:
        time.sleep(0.01)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    numbers = [line["number"] for line in read_audit(path)]
    assert numbers == list(range(len(numbers)))


def _write_for_ever(path: Path) -> None:
    log, number = AuditLog(path), 0
    while True:
        log("ada", "counted", {"number": number})
        number += 1
