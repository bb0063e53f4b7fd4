"""Finds runs of a Prefect server that nobody carries out any more, and gives them a final state.

A run whose process dies cannot say so itself. While a server works, it marks runs without a
heartbeat (`automations.yaml`); it forgets what it waited for when it is started again, and a run
that keeps the state `Running` occupies a place of its work pool.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import datetime
from typing import Any

HEARTBEAT_EVENT = "prefect.flow-run.heartbeat"
RUN_VARIABLE = "PREFECT__FLOW_RUN_ID"
"""Environment variable with the run's identity in a run's process."""
UNFINISHED = ("RUNNING", "PENDING", "CANCELLING")
"""Types of states of a run that somebody carries out."""
MOST_RUNS = 200
"""Number of runs that are read from the server, the largest that it gives at once."""


def runs_below(process: int) -> set[str]:
    """Returns the identities of the runs whose processes are below a process of this computer."""
    import psutil

    found = set()
    for child in psutil.Process(process).children(recursive=True):
        try:
            found.add(child.environ().get(RUN_VARIABLE, ""))
        except psutil.Error:
            continue
    return found - {""}


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
