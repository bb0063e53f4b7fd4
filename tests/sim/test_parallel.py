"""Pieces over several processes: results in order, errors raised, and no worker outlives its
parent."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from robots.errors import GateError, HandoffError
from robots.interfaces import no_progress
from sim.parallel import Report, map_pieces

ROOT = Path(__file__).resolve().parents[2]
LONG = 60.0
"""Limit of a wait [s] that only a defect reaches."""


def nothing() -> None:
    """A job that needs nothing made."""


def squared(context: None, piece: int, report: Report) -> int:
    report(1, "")
    return piece**2


def refusing(context: None, piece: int, report: Report) -> int:
    raise GateError(f"piece {piece} is refused.")


def broken(context: None, piece: int, report: Report) -> int:
    raise ZeroDivisionError(piece)


def silent(folder: Path, piece: int, report: Report) -> int:
    (folder / str(psutil.Process().pid)).touch()
    time.sleep(600.0)
    return piece


@pytest.mark.parametrize("workers", [1, 2, 9])
def test_results_come_in_the_order_of_the_pieces(workers: int) -> None:
    reports: list[int] = []
    results = map_pieces(
        nothing, squared, range(5), workers, 5, lambda done, total, note="": reports.append(done)
    )
    assert results == [0, 1, 4, 9, 16]
    assert reports == [1, 2, 3, 4, 5]


def test_an_error_arrives_as_what_it_was_with_the_traceback_of_its_worker() -> None:
    with pytest.raises(GateError, match=r"piece [01] is refused") as raised:
        map_pieces(nothing, refusing, range(2), 2, 2, no_progress)
    assert "in refusing" in raised.value.__notes__[0]


def test_an_unexpected_error_is_reported_by_its_name() -> None:
    with pytest.raises(HandoffError) as raised:
        map_pieces(nothing, broken, range(2), 2, 2, no_progress)
    assert str(raised.value).startswith("ZeroDivisionError: ")


def test_workers_that_report_nothing_end_when_their_parent_is_killed(tmp_path: Path) -> None:
    code = f"""
from functools import partial
from pathlib import Path
from robots.interfaces import no_progress
from sim.parallel import map_pieces
from tests.sim.test_parallel import silent
if __name__ == "__main__":
    map_pieces(partial(Path, {str(tmp_path)!r}), silent, range(2), 2, 2, no_progress)
"""
    parent = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    deadline = time.monotonic() + LONG
    while len(list(tmp_path.iterdir())) < 2:
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.02)
    workers = [psutil.Process(int(file.name)) for file in tmp_path.iterdir()]
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs(workers, timeout=20.0)
    for worker in alive:
        worker.kill()
    assert alive == []
