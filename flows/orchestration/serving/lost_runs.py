"""Finds runs of a Prefect server that nobody carries out any more, or whose worker died: gives them
a final state, schedules them again, or ends them when they are cancelled.

A run whose process dies cannot say so itself. While a server works, it marks runs without a
heartbeat, and those that never begin (`automations.yaml`); it forgets what it waited for when it is
started again. A run that keeps the state `Running` or `Pending` occupies a place of its work pool.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from robots.processes import END_SECONDS

HEARTBEAT_EVENT = "prefect.flow-run.heartbeat"
RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""Environment variable with the run's identity in a run's process."""
UNFINISHED = ("RUNNING", "PENDING", "CANCELLING")
"""Types of states of a run that somebody carries out."""
BEGIN_SECONDS = 30.0
"""Time from the death of a worker until a run without a process counts as not begun, and interval
of further looks [s]: a run's process starts within seconds."""
UNBEGUN_SECONDS = 300.0
"""Time from that death until the last look [s]."""
CANCEL_SECONDS = 2.0
"""Interval of the looks for cancelled runs whose worker is dead [s]."""
MOST_RUNS = 200
"""Number of runs that are read from the server, the largest that it gives at once."""


def runs_below(process: int) -> set[str]:
    """Returns the identities of the runs whose processes are below a process of this computer."""
    import psutil

    return _runs_of(psutil.Process(process).children(recursive=True))


def runs_here() -> set[str]:
    """Returns the identities of the runs that have processes on this computer."""
    import psutil

    return _runs_of(psutil.process_iter())


def _runs_of(processes: Iterable[Any]) -> set[str]:
    """Identities of the runs that processes belong to."""
    import psutil

    found = set()
    for process in processes:
        try:
            found.add(process.environ().get(RUN_VARIABLE, ""))
        except psutil.Error:
            continue
    return found - {""}


def unbegun_runs(pool: str, since: datetime) -> list[str]:
    """Returns the identities of the runs of a work pool that a worker took before `since`, and of
    which no process of this computer is left."""
    here = runs_here()
    with _client() as client:
        return [
            str(run.id)
            for run in _unfinished(client)
            if run.state.type.value == "PENDING"
            and run.work_pool_name == pool
            and run.state.timestamp < since
            and str(run.id) not in here
        ]


def schedule_again(identities: Collection[str]) -> list[str]:
    """Schedules runs that have not begun for now, so that another worker takes them; returns their
    names."""
    from prefect.states import Scheduled

    names = []
    with _client() as client:
        for run in _unfinished(client):
            if str(run.id) in identities:
                state = Scheduled(message="Its worker died before it began.")
                client.set_flow_run_state(run.id, state, force=True)
                names.append(run.name)
    return names


class LeftRuns:
    """Runs that workers of this computer left behind when they died.

    A run's process outlives its worker, but not always before it has begun: then the run is
    scheduled again. Nobody else can end a run whose worker is dead: it is ended here if somebody
    cancels it.
    """

    def __init__(self, pools: Mapping[str, str]) -> None:
        """`pools` are the work pools of the workers, by the names of their programs."""
        self._pools = pools
        self._died: dict[str, datetime] = {}
        self._alive: set[str] = set()
        self._looked = self._cancelled = time.monotonic()

    def worker_died(self, name: str) -> None:
        """Notes the end of a program."""
        if name in self._pools:
            self._died[self._pools[name]] = datetime.now(UTC)
            # Their parent is dead; runs of living workers are below this process.
            self._alive |= runs_here() - runs_below(os.getpid())

    def look(self, say: Callable[[str], None]) -> None:
        """Ends what was cancelled, and schedules again what has not begun; each every now and then.
        An error of the server ends nothing."""
        import httpx

        try:
            if self._alive and time.monotonic() - self._cancelled > CANCEL_SECONDS:
                self._alive &= runs_here()
                for name in end_cancelled(self._alive):
                    say(f"ended    {name}: it was cancelled, and its worker is dead")
                self._cancelled = time.monotonic()
            if time.monotonic() - self._looked > BEGIN_SECONDS:
                self._looked = time.monotonic()
                self._schedule_again(say)
        except httpx.HTTPError as error:
            say(f"runs whose worker died could not be looked after ({error!r})")

    def _schedule_again(self, say: Callable[[str], None]) -> None:
        """Schedules runs of workers that died a while ago; for some minutes, since a process may
        end later than its worker."""
        for pool, died in list(self._died.items()):
            age = (datetime.now(UTC) - died).total_seconds()
            if age > UNBEGUN_SECONDS:
                del self._died[pool]
            if age < BEGIN_SECONDS:
                continue
            for name in schedule_again(unbegun_runs(pool, died)):
                say(f"again    {name}: its worker died before it began")


def end_cancelled(identities: Collection[str]) -> list[str]:
    """Ends the processes of those runs that are being cancelled, by SIGTERM and later by SIGKILL,
    and marks the runs as cancelled; returns their names."""
    import psutil
    from prefect.states import Cancelled

    names = []
    with _client() as client:
        for run in _unfinished(client):
            if str(run.id) not in identities or run.state.type.value != "CANCELLING":
                continue
            processes = [one for one in psutil.process_iter() if _runs_of([one]) == {str(run.id)}]
            for process in processes:
                with suppress(psutil.NoSuchProcess):
                    process.terminate()
            _, left = psutil.wait_procs(processes, timeout=END_SECONDS)
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
            client.set_flow_run_state(run.id, Cancelled(), force=True)
            names.append(run.name)
    return names


def silent_runs(since: datetime) -> list[str]:
    """Returns the identities of the runs that somebody began before `since`, and that have sent no
    heartbeat after it."""
    found = []
    with _client() as client:
        for run in _unfinished(client):
            if run.state.timestamp >= since:
                continue
            wanted = {
                "event": {"name": [HEARTBEAT_EVENT]},
                "occurred": {"since": since.isoformat()},
                "resource": {"id": [f"prefect.flow-run.{run.id}"]},
            }
            answer = client.request("POST", "/events/filter", json={"filter": wanted, "limit": 1})
            if not answer.json()["events"]:
                found.append(str(run.id))
    return found


def end_runs(identities: Collection[str], message: str) -> list[str]:
    """Marks runs as crashed that have no final state, those that were being cancelled as cancelled.

    Args:
        identities: identities of the runs.
        message: reason, for the page of the run.

    Returns:
        Names of the runs that were marked.
    """
    from prefect.states import Cancelled, Crashed

    marked = []
    with _client() as client:
        for run in _unfinished(client):
            if str(run.id) not in identities:
                continue
            cancelling = run.state.type.value == "CANCELLING"
            state = Cancelled(message=message) if cancelling else Crashed(message=message)
            client.set_flow_run_state(run.id, state, force=True)
            marked.append(run.name)
    return marked


def _unfinished(client: Any) -> Sequence[Any]:
    from prefect.client.schemas.filters import (
        FlowRunFilter,
        FlowRunFilterState,
        FlowRunFilterStateType,
    )
    from prefect.client.schemas.objects import StateType

    types = FlowRunFilterStateType(any_=[StateType(name) for name in UNFINISHED])
    wanted = FlowRunFilter(state=FlowRunFilterState(type=types))
    return client.read_flow_runs(flow_run_filter=wanted, limit=MOST_RUNS)


def _client() -> Any:
    from prefect.client.orchestration import get_client

    return get_client(sync_client=True)
