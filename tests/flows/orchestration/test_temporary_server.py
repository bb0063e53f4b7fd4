"""Prefect's temporary server ends with the program that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

LONG = 120.0
"""Time limit of a wait [s], reached only by a defect."""
CODE = """
import sys
from flows.orchestration.flow import prepare_prefect
from flows.orchestration.temporary_server import start_temporary_server
prepare_prefect()
first = start_temporary_server()
assert start_temporary_server() == first, "started once"
print(first, flush=True)
sys.stdin.read()
"""


def test_it_ends_with_a_program_that_is_killed(tmp_path: Path) -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    program = subprocess.Popen(
        [sys.executable, "-c", CODE],
        cwd=Path(__file__).resolve().parents[3],
        env={**own, "PREFECT_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with program:
        assert program.stdout is not None
        server = psutil.Process(int(program.stdout.readline()))
        assert server.is_running()
        # Ctrl-C at a terminal, which reaches the program's group, must not end the server before
        # the program has reported its end.
        assert os.getsid(server.pid) != os.getsid(program.pid)
        program.kill()
    _, left = psutil.wait_procs([server], timeout=LONG)
    assert not left, "the server outlived its program"


def test_none_is_started_where_a_server_is_configured() -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    from flows.orchestration.temporary_server import start_temporary_server

    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        assert start_temporary_server() is None
