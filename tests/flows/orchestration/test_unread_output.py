"""A run goes on when nobody reads its output any more."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CODE = """
import sys, time
from pathlib import Path
if sys.argv[2] == "outlive":
    from flows.orchestration.unread_output import outlive_readers
    outlive_readers()
print("begun", flush=True)
sys.stdin.read()
time.sleep(0.5)
print("a line that nobody reads", flush=True)
print("nor this one", file=sys.stderr, flush=True)
Path(sys.argv[1]).write_text("finished")
"""


def run_unread(done: Path, how: str) -> int:
    """Runs a program whose reader goes away; returns its exit code."""
    program = subprocess.Popen(
        [sys.executable, "-c", CODE, str(done), how],
        cwd=Path(__file__).resolve().parents[3],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert program.stdin is not None
    assert program.stdout is not None
    assert program.stderr is not None
    assert program.stdout.readline() == "begun\n"
    for pipe in (program.stdout, program.stderr, program.stdin):
        pipe.close()
    return program.wait(60)


def test_a_run_outlives_the_reader_of_its_output(tmp_path: Path) -> None:
    assert run_unread(tmp_path / "done", "outlive") == 0
    assert (tmp_path / "done").read_text() == "finished"


def test_without_it_the_next_line_ends_the_program(tmp_path: Path) -> None:
    assert run_unread(tmp_path / "done", "") != 0
    assert not (tmp_path / "done").exists()
