"""The log of a review: what holds, what is undone, what is written, and what a kill leaves."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.review.review_log import LOG, Decisions, ReviewLog
from robots.errors import HandoffError


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ReviewLog]:
    log = ReviewLog(tmp_path / "review")
    yield log
    log.close()


def values(decisions: Decisions) -> dict[int, dict[str, object]]:
    return {
        episode: {aspect: line.value for aspect, line in aspects.items()}
        for episode, aspects in decisions.items()
    }


def test_the_newest_value_of_each_aspect_holds(log: ReviewLog) -> None:
    log.set("ada", 3, "verdict", "success", "m3")
    log.set("ada", 3, "trim", [2, 9], "m3")
    log.set("eve", 3, "verdict", "failure", "m3")
    log.set("ada", 5, "note", "blurred", "m5")
    assert values(log.decisions()) == {
        3: {"verdict": "failure", "trim": [2, 9]},
        5: {"note": "blurred"},
    }
    assert log.decisions()[3]["verdict"].by == "eve"


def test_a_value_that_holds_already_has_no_line(log: ReviewLog) -> None:
    assert log.set("ada", 0, "trim", None, "m") is None
    assert log.set("ada", 0, "trim", [1, 2], "m") is not None
    assert log.set("ada", 0, "trim", [1, 2], "m") is None
    assert len(log.lines) == 1


def test_undo_takes_back_the_persons_own_changes_the_newest_first(log: ReviewLog) -> None:
    log.set("ada", 0, "verdict", "failure", "m")
    log.set("ada", 1, "note", "dark", "m")
    log.set("eve", 0, "verdict", "discard", "m")
    undone = [log.undo("ada"), log.undo("ada"), log.undo("ada")]
    assert [None if line is None else (line.episode, line.what) for line in undone] == [
        (1, "note"),
        (0, "verdict"),
        None,
    ]
    assert values(log.decisions()) == {0: {"verdict": "discard"}}
    log.undo("eve")
    assert values(log.decisions()) == {}


def test_undo_brings_back_the_value_before(log: ReviewLog) -> None:
    log.set("ada", 0, "verdict", "failure", "m")
    log.set("eve", 0, "verdict", "success", "m")
    log.set("eve", 0, "verdict", None, "m")
    assert values(log.decisions()) == {}
    log.undo("eve")
    assert values(log.decisions()) == {0: {"verdict": "success"}}
    log.undo("eve")
    assert values(log.decisions()) == {0: {"verdict": "failure"}}


def test_changes_are_pending_until_a_store_exists_that_has_them(log: ReviewLog) -> None:
    log.set("ada", 0, "verdict", "failure", "m")
    log.set("ada", 2, "trim", [0, 4], "m")
    first = log.begin_write("ada")
    assert first.name == "reviewed-1.zarr"
    assert log.pending() == [0, 2]
    first.mkdir()
    assert log.pending() == []
    log.undo("ada")
    log.set("eve", 1, "note", "dark", "m")
    assert log.pending() == [1, 2]
    assert log.begin_write("eve").name == "reviewed-2.zarr"
    first.rmdir()
    assert log.pending() == [0, 1]


def test_a_change_during_a_write_belongs_to_the_next_store(log: ReviewLog) -> None:
    log.set("ada", 0, "verdict", "failure", "m")
    out = log.begin_write("ada")
    log.set("ada", 1, "verdict", "failure", "m")
    out.mkdir()
    assert log.pending() == [1]


def test_a_second_process_is_refused_in_words(log: ReviewLog) -> None:
    with pytest.raises(HandoffError, match="another process reviews into this folder"):
        ReviewLog(log.folder)


def test_a_line_that_was_cut_short_is_removed_and_the_next_one_is_whole(tmp_path: Path) -> None:
    folder = tmp_path / "review"
    log = ReviewLog(folder)
    log.set("ada", 0, "verdict", "failure", "m")
    log.set("ada", 1, "verdict", "failure", "m")
    log.close()
    content = (folder / LOG).read_bytes()
    (folder / LOG).write_bytes(content[:-20])
    again = ReviewLog(folder)
    assert values(again.decisions()) == {0: {"verdict": "failure"}}
    again.set("eve", 4, "note", "dark", "m")
    again.close()
    third = ReviewLog(folder)
    assert values(third.decisions()) == {0: {"verdict": "failure"}, 4: {"note": "dark"}}
    third.close()


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda line: b"{}", "line 1 is damaged"),
        (lambda line: line[:9], "line 1 is damaged"),
        (lambda line: json.dumps({**json.loads(line), "number": 7}).encode(), "has the number 7"),
    ],
)
def test_a_damaged_line_is_named(log: ReviewLog, damage, message: str) -> None:
    log.set("ada", 0, "verdict", "failure", "m")
    log.close()
    file = log.folder / LOG
    file.write_bytes(damage(file.read_bytes().rstrip()) + b"\n")
    with pytest.raises(HandoffError, match=message):
        ReviewLog(log.folder)


def test_a_full_disk_keeps_no_change_that_it_does_not_have(
    log: ReviewLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: Path, line: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("flows.review.review_log.append_line", full)
    with pytest.raises(HandoffError, match="the change was not kept"):
        log.set("ada", 0, "verdict", "failure", "m")
    assert log.decisions() == {}


KILLED = """
import sys
from pathlib import Path
from flows.review.review_log import ReviewLog
log = ReviewLog(Path(sys.argv[1]))
number = 0
while True:
    log.set("ada", number, "note", f"note {number}", "m")
    print(number, flush=True)
    number += 1
"""


def test_a_kill_loses_no_change_that_was_answered(tmp_path: Path) -> None:
    folder = tmp_path / "review"
    command = [sys.executable, "-c", KILLED, str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        answered = [int(process.stdout.readline()) for _ in range(20)]
        os.kill(process.pid, signal.SIGKILL)
        answered += [int(line) for line in process.stdout if line.endswith("\n")]
    log = ReviewLog(folder)
    kept = values(log.decisions())
    log.close()
    assert [number for number in answered if kept.get(number) != {"note": f"note {number}"}] == []
