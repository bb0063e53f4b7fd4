"""Runs on a Prefect server: approvals on their page and on that of approvals, cancelling, and the
death of their process, of their worker and of the server.

The server's database is of PostgreSQL where that is installed, as in continuous integration; that
of `test_smoke` is of SQLite.
"""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, nullcontext
from typing import Any

import httpx
import psutil
import pytest

from tests.flows.orchestration.test_approvals_page import hidden
from tests.flows.postgresql import Postgresql, postgresql, programs
from tests.flows.processes import title, variable
from tests.flows.served import PrefectServer, prefect_server_at_work
from tests.flows.storage.conftest import Storage, new_bucket
from tests.flows.waiting_stage import BEGUN, CLEANED
from tests.real.console.tabs import open_browser

LONG = 180.0
"""Time limit of a wait [s], reached only by a defect."""
CHECK_SECONDS = 0.5
"""Time between two looks at what is waited for [s]; most of them ask the server for all its runs."""
APPROVED = """# A policy that a person must approve.
name: approved
stages:
  bundle: {uses: "tests.flows.approval_stages:bundle"}
  gate: {uses: "tests.flows.approval_stages:gate", inputs: {bundle: bundle}}
  approval:
    uses: approve
    inputs: {bundle: bundle, gate: gate}
    with: {checklist: [The stop is near.]}
"""
RELEASED = APPROVED.replace("name: approved", "name: released").replace("stop", "exit")
WAITING = """# A stage that waits until it is ended.
name: waiting
stages:
  wait: {uses: tests.flows.waiting_stage, with: {folder: FOLDER}}
"""
SHORT = """# A stage that has nothing to do.
name: short
stages:
  bundle: {uses: "tests.flows.approval_stages:bundle"}
"""
SPREAD = """# Its second stage runs on another computer, which shares nothing but the storage.
name: spread
runs: RUNS
stages:
  demos: {uses: "tests.flows.storage.storage_stages:numbers"}
  total:
    uses: "tests.flows.storage.storage_stages:add"
    inputs: {demos: demos}
    pool: gpu
    resources: {cores: 2, memory_gb: 0.5}
"""


@pytest.fixture(scope="module")
def storage() -> Iterator[Storage]:
    started = new_bucket()
    yield started
    started.stop()


@pytest.fixture(scope="module")
def database() -> Iterator[Postgresql | None]:
    """A server of PostgreSQL; None where it is not installed."""
    place = programs()
    with nullcontext() if place is None else postgresql(place) as started:
        yield started


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, storage: Storage, database: Postgresql | None
) -> Iterator[PrefectServer]:
    folder = tmp_path_factory.mktemp("lab")
    (folder / "spread.yaml").write_text(SPREAD.replace("RUNS", str(storage.address)))
    (folder / "approved.yaml").write_text(APPROVED)
    (folder / "released.yaml").write_text(RELEASED)
    (folder / "waiting.yaml").write_text(WAITING.replace("FOLDER", str(folder / "files")))
    (folder / "short.yaml").write_text(SHORT)
    (folder / "files").mkdir()
    recipes = (APPROVED, RELEASED, WAITING, SHORT, SPREAD)
    own = [word for name in recipes for word in ("--recipe", _file(name))]
    variables = {
        **keys(storage),
        "XDG_CACHE_HOME": str(folder / "here"),
        # Its worker looks for runs every second instead of every ten.
        "PREFECT_WORKER_QUERY_SECONDS": "1",
    }
    if database is not None:
        variables["PREFECT_SERVER_DATABASE_CONNECTION_URL"] = database.address
    with prefect_server_at_work(folder, *own, variables=variables) as server:
        yield server


def keys(storage: Storage) -> dict[str, str]:
    """The variables with which a computer finds the storage."""
    return {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "a-secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": storage.endpoint,
    }


def _file(text: str) -> str:
    """File of a recipe, which is called by its name."""
    return f"{text.partition('name: ')[2].splitlines()[0]}.yaml"


def until(condition: Callable[[], Any], what: str, server: PrefectServer) -> Any:
    deadline = time.monotonic() + LONG
    while not (found := condition()):
        assert time.monotonic() < deadline, f"{what} never came\n{server.logs()}"
        time.sleep(CHECK_SECONDS)
    return found


def newest(server: PrefectServer, name: str) -> Any:
    runs = [run for run in server.flow_runs() if name in run.tags]
    return max(runs, key=lambda run: run.created)


def reached(server: PrefectServer, name: str, state: str) -> Any:
    """The newest run of a recipe when it has that state."""
    return until(
        lambda: run if (run := newest(server, name)).state_name == state else None, state, server
    )


def keyset(server: PrefectServer, name: str) -> str:
    """The form that a run waits for."""
    return str(newest(server, name).state.state_details.run_input_keyset)


def audited(server: PrefectServer, item: str) -> list[str]:
    """The means, or the event, of every line of the audit about a checklist of one item."""
    text = (server.folder / "runs" / "approvals.jsonl").read_text()
    lines = [json.loads(line) for line in text.splitlines()]
    (question,) = {line["question"] for line in lines if line.get("checklist") == [item]}
    return [
        f"{line['event']} {line.get('means', '')}".strip()
        for line in lines
        if question in (line.get("question"), line.get("request"))
    ]


def test_an_answer_on_the_page_of_approvals_ends_the_wait_of_a_suspended_run(
    served: PrefectServer,
) -> None:
    served.prefect("deployment", "run", "handoff/approved")
    until(lambda: _processes(newest(served, "approved")), "the process", served)
    run = reached(served, "approved", "Suspended")
    # Nothing waits in memory: the process of the run has ended.
    until(lambda: not _processes(run), "the end of the process", served)
    page = f"{served.results}/approvals"
    form = hidden(httpx.get(page).text, "approved")
    answer = {**form, "decision": "approved", "by": "Ada", "item_0": "yes"}
    taken = httpx.post(page, data=answer, headers={"origin": served.results})
    assert "approved: approved by Ada; its suspended flow run goes on." in taken.text
    reached(served, "approved", "Completed")
    answered = (served.folder / "runs" / "approved" / "approval" / "answer.json").read_text()
    assert '"by": "Ada"' in answered
    assert audited(served, "The stop is near.") == [
        "asked",
        "answered page of approvals",
    ]


@pytest.mark.needs("chromium")
def test_the_form_on_prefects_page_is_answered_in_a_browser_and_shown_again_with_the_reason(
    served: PrefectServer,
) -> None:
    served.prefect("deployment", "run", "handoff/released")
    run = reached(served, "released", "Suspended")
    first = keyset(served, "released")
    with open_browser() as browser:
        page = browser.new_page()
        address = f"{served.address}/runs/flow-run/{run.id}"
        page.goto(address)
        text = fill_in(page, confirmed=False)
        # Prefect draws the run anew all the time, which takes a processor.
        page.goto("about:blank")
        assert "May this policy move an arm?" in text
        assert "parity 1e-06" in text
        until(
            lambda: (
                newest(served, "released").state_name == "Suspended"
                and keyset(served, "released") != first
            ),
            "the second question",
            served,
        )
        page.goto(address)
        assert "not confirmed: The exit is near." in fill_in(page, confirmed=True)
    reached(served, "released", "Completed")
    assert audited(served, "The exit is near.") == [
        "asked",
        "refused page of the run",
        "answered page of the run",
    ]


def fill_in(page: Any, *, confirmed: bool) -> str:
    """Approves in the form of a suspended run's page; returns the text of the form."""
    page.get_by_role("button", name="Resume").click()
    form = page.locator(".p-modal")
    form.get_by_text("Your decision.").wait_for()
    assert form.get_by_role("link", name="The release page").is_visible()
    text = str(form.inner_text())
    # The list of decisions opens by a key; a click is taken for that on its label.
    form.locator("button.p-select-button__control").press("ArrowDown")
    page.get_by_role("option", name="approved").click()
    form.locator("textarea").first.fill("Ada")
    if confirmed:
        form.get_by_role("switch").click()
    with page.expect_response("**/resume"):
        form.get_by_role("button", name="Submit").click()
    form.wait_for(state="hidden")
    return text


def test_a_cancelled_run_ends_its_stage_cleanly(served: PrefectServer) -> None:
    files = served.folder / "files"
    served.prefect("deployment", "run", "handoff/waiting")
    until((files / BEGUN).exists, "the stage", served)
    served.prefect("flow-run", "cancel", str(newest(served, "waiting").id))
    until((files / CLEANED).exists, "the end of the stage", served)
    reached(served, "waiting", "Cancelled")


def test_a_run_whose_process_is_killed_is_crashed_and_leaves_no_stage(
    served: PrefectServer,
) -> None:
    files = served.folder / "files"
    for name in (BEGUN, CLEANED):
        (files / name).unlink(missing_ok=True)
    served.prefect("deployment", "run", "handoff/waiting")
    until((files / BEGUN).exists, "the stage", served)
    family = psutil.Process(served.process.pid).children(recursive=True)
    (stage,) = [process for process in family if title(process).strip() == "handoff: wait"]
    os.kill(stage.ppid(), signal.SIGKILL)
    until(lambda: not stage.is_running(), "the end of the stage", served)
    reached(served, "waiting", "Crashed")


def test_a_stage_runs_in_the_pool_of_another_computer_that_shares_only_the_storage(
    served: PrefectServer, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in keys(storage).items():
        monkeypatch.setenv(name, value)
    there = served.folder / "there"
    with served.worker("gpu", {"XDG_CACHE_HOME": str(there)}):
        served.prefect("deployment", "run", "handoff/spread", "--watch")
    pools = {run.name: run.work_pool_name for run in served.flow_runs() if "spread" in run.name}
    assert pools == {"spread": "cpu", "spread until total": "gpu"}
    working = "handoff/storage/*/artifacts/[a-z]*/artifact.json"
    made = {
        place: {
            path.parent.name.partition("-")[0] for path in (served.folder / place).glob(working)
        }
        for place in ("here", "there")
    }
    assert made == {"here": {"demos", "total"}, "there": {"demos", "total"}}
    total = next((served.folder / "there").glob("handoff/storage/*/artifacts/total-*"))
    assert (total / "total.txt").exists(), "the stage ran there"
    total = next((served.folder / "here").glob("handoff/storage/*/artifacts/total-*"))
    assert not (total / "total.txt").exists(), "and was not fetched, since nothing here takes it"
    summary = storage.objects.read("spread/summary.json") or b"{}"
    assert set(json.loads(summary)["stages"]) == {"demos", "total"}


def test_a_run_outlives_its_worker_which_is_started_again(served: PrefectServer) -> None:
    from prefect.states import Pending

    files = served.folder / "files"
    (files / BEGUN).unlink(missing_ok=True)
    (files / CLEANED).unlink(missing_ok=True)
    served.prefect("deployment", "run", "handoff/waiting")
    until((files / BEGUN).exists, "the stage", served)
    (run,) = _processes(newest(served, "waiting"))[:1]
    family = psutil.Process(served.process.pid).children(recursive=True)
    (worker,) = [process for process in family if "prefect worker start" in title(process)]
    # A run that the worker has taken, and not begun, when it dies.
    served.start("handoff/short", {}, Pending())
    worker.kill()
    until(lambda: "is started again" in served.log.read_text(), "the new worker", served)
    assert run.is_running()
    assert newest(served, "waiting").state_name == "Running"
    # It can still be cancelled, and ends its stage cleanly.
    served.cancel(str(newest(served, "waiting").id))
    reached(served, "waiting", "Cancelled")
    assert not run.is_running()
    assert (files / CLEANED).exists()
    # The new worker takes what the old one did not begin.
    reached(served, "short", "Completed")


@pytest.mark.needs("postgresql")
def test_the_server_keeps_its_runs_in_postgresql(
    served: PrefectServer, database: Postgresql | None
) -> None:
    assert database is not None
    assert int(database.value("select count(*) from flow_run")) == len(served.flow_runs())


def test_runs_that_end_with_the_server_are_crashed(
    served: PrefectServer, database: Postgresql | None
) -> None:
    files = served.folder / "files"
    (files / BEGUN).unlink(missing_ok=True)
    served.prefect("deployment", "run", "handoff/waiting")
    until((files / BEGUN).exists, "the stage", served)
    run = newest(served, "waiting").id
    served.process.terminate()
    served.process.wait(LONG)
    query = f"select state_type from flow_run where id = '{run}'"
    if database is None:
        with closing(sqlite3.connect(served.folder / "prefect" / "prefect.db")) as file:
            (state,) = file.execute(query).fetchone()
    else:
        state = database.value(query)
    assert state == "CRASHED", served.logs()


def _processes(run: Any) -> list[psutil.Process]:
    """The processes of a flow run, but not those of its stages, whose titles hide their
    environment."""
    return [
        process
        for process in psutil.process_iter()
        if variable(process, "PREFECT__FLOW_RUN_ID") == str(run.id)
    ]
