"""Prefect's temporary server ends with the program that started it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from robots.errors import HandoffError

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


def test_a_server_that_does_not_answer_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    from prefect.server.api.server import SubprocessASGIServer
    from prefect.settings import (
        PREFECT_API_URL,
        PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
        temporary_settings,
    )

    from flows.orchestration.temporary_server import start_temporary_server

    # The program stands in for a server that is too slow.
    monkeypatch.setattr(
        SubprocessASGIServer,
        "_run_uvicorn_command",
        lambda server: subprocess.Popen(["sleep", "60"]),
    )
    with temporary_settings(
        {PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: 1}, restore_defaults={PREFECT_API_URL}
    ):
        monkeypatch.setattr(SubprocessASGIServer, "_instances", {})
        with pytest.raises(HandoffError, match=r"within 1 s .*Is the machine busy\?"):
            start_temporary_server()
