"""Runs that nobody carries out any more get a final state."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from flows.orchestration.serving import lost_runs
from flows.orchestration.serving.lost_runs import (
    HEARTBEAT_EVENT,
    RUN_VARIABLE,
    end_runs,
    runs_below,
    schedule_again,
    silent_runs,
    unbegun_runs,
)

LONG = 60.0
"""Time limit of a wait [s], reached only by a defect."""
pytestmark = pytest.mark.usefixtures("prefect_server")


def begun(*states: Any, pool: str | None = None) -> list[str]:
    """Identities of new runs in these states, of a work pool."""
    from prefect import flow
    from prefect.client.orchestration import get_client

    @flow(name="lost")
    def nothing() -> None:
        pass

    with get_client(sync_client=True) as client:
        return [
            str(client.create_flow_run(nothing, state=state, work_pool_name=pool).id)
            for state in states
        ]


def state_of(run: str) -> str:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        return str(client.read_flow_run(UUID(run)).state_name)


def test_a_run_that_sends_no_heartbeat_is_silent() -> None:
    from prefect.client.orchestration import get_client
    from prefect.states import Completed, Running

    living, dead, finished = begun(Running(), Running(), Completed())
    since = datetime.now(UTC)
    (later,) = begun(Running())
    beat = {
        "occurred": datetime.now(UTC).isoformat(),
        "event": HEARTBEAT_EVENT,
        "resource": {"prefect.resource.id": f"prefect.flow-run.{living}"},
        "id": living,
    }
    with get_client(sync_client=True) as client:
        client.request("POST", "/events", json=[beat])
    deadline = time.monotonic() + LONG
    while living in (silent := silent_runs(since)):
        assert time.monotonic() < deadline, "the heartbeat never came"
        time.sleep(0.2)
    assert dead in silent
    assert not {finished, later} & set(silent)


def test_lost_runs_are_crashed_and_those_that_were_being_cancelled_cancelled() -> None:
    from prefect.states import Cancelling, Completed, Running, Suspended

    states = (Running(), Cancelling(), Completed(), Suspended(timeout_seconds=60), Running())
    running, cancelling, finished, suspended, other = begun(*states)
    named = end_runs([running, cancelling, finished, suspended], "The server was stopped.")
    assert len(named) == 2
    assert state_of(running) == "Crashed"
    assert state_of(cancelling) == "Cancelled"
    assert state_of(finished) == "Completed"
    assert state_of(suspended) == "Suspended"
    assert state_of(other) == "Running"


def test_a_run_that_no_process_has_begun_is_scheduled_again() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.states import Pending, Running

    with get_client(sync_client=True) as client:
        for name in ("left", "other"):
            client.create_work_pool(WorkPoolCreate(name=name, type="process"))
    taken, alive = begun(Pending(), Pending(), pool="left")
    (running,) = begun(Running(), pool="left")
    (elsewhere,) = begun(Pending(), pool="other")
    words = [sys.executable, "-c", "input()"]
    process = subprocess.Popen(
        words, env={**os.environ, RUN_VARIABLE: alive}, stdin=subprocess.PIPE, text=True
    )
    try:
        since = datetime.now(UTC)
        (later,) = begun(Pending(), pool="left")
        assert unbegun_runs("left", since) == [taken]
        assert unbegun_runs("other", since) == [elsewhere]
        assert len(schedule_again([taken])) == 1
    finally:
        process.communicate("\n", timeout=LONG)
    states = [state_of(run) for run in (taken, alive, running, elsewhere, later)]
    assert states == ["Scheduled", "Pending", "Running", "Pending", "Pending"]


def test_runs_of_a_worker_are_looked_for_a_while_after_its_death(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looked: list[str] = []
    monkeypatch.setattr(lost_runs, "unbegun_runs", lambda pool, since: looked.append(pool) or [])
    monkeypatch.setattr(lost_runs, "BEGIN_SECONDS", 0.0)
    left = lost_runs.LeftRuns({"worker-cpu": "cpu"})
    left.look(print)
    assert looked == []
    left.worker_died("server")
    left.worker_died("worker-cpu")
    left.look(print)
    left.look(print)
    assert looked == ["cpu", "cpu"]
    monkeypatch.setattr(lost_runs, "UNBEGUN_SECONDS", 0.0)
    left.look(print)
    left.look(print)
    assert looked == ["cpu", "cpu", "cpu"]


def test_runs_of_this_computer_are_known_by_their_processes() -> None:
    words = [sys.executable, "-c", "input()"]
    run = subprocess.Popen(
        words, env={**os.environ, RUN_VARIABLE: "abc"}, stdin=subprocess.PIPE, text=True
    )
    other = subprocess.Popen(words, stdin=subprocess.PIPE, text=True)
    try:
        assert runs_below(os.getpid()) == {"abc"}
    finally:
        for process in (run, other):
            process.communicate("\n", timeout=LONG)
