"""Approvals of a flow run: what Prefect is asked to suspend, and answers that are given elsewhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from flows.deployment.approval import (
    AUDIT,
    PENDING,
    has_session,
    noted_session,
    pending_question,
    read_answer,
    suspended_flow_run,
    write_answer,
)
from flows.orchestration import approvals
from flows.orchestration.approvals import answer_on_page, give_answer
from robots.errors import ApprovalNeededError
from tests.flows.deployment.test_approval import YES, age, asked, asked_once

__all__ = ["asked", "asked_once"]
FLOW_RUN = "6a4f0d2e-0000-4000-8000-000000000001"
DEPLOYMENT = "6a4f0d2e-0000-4000-8000-000000000002"
NEEDED = ApprovalNeededError("a person must approve")
GOOD = {"decision": "approved", "by": "Ada", "reason": "", "item_0": True, "item_1": True}
BAD = {**GOOD, "item_1": False}


class Suspended(BaseException):
    """The process of a flow run ends because nobody has answered yet."""


class FlowRun:
    """A flow run whose form is answered in turn, as Prefect does: a key that was answered gives the
    same answer again, another one suspends the run."""

    def __init__(self, answers: Sequence[dict[str, Any]]) -> None:
        self._answers = iter(answers)
        self._given: dict[str, dict[str, Any]] = {}
        self.waiting = ""
        self.asked: list[tuple[int, str]] = []

    def suspend(self, *, wait_for_input: Any, timeout: int, key: str) -> Any:
        if key in self._given:
            return wait_for_input(**self._given[key])
        self.asked.append((timeout, wait_for_input._description))
        self.waiting = key
        raise Suspended

    def resume(self) -> None:
        self._given[self.waiting] = next(self._answers)


@pytest.fixture(autouse=True)
def in_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", DEPLOYMENT)
    monkeypatch.setenv("PREFECT__RUNTIME__FLOW_RUN__ID", FLOW_RUN)


@pytest.fixture
def flow_run(monkeypatch: pytest.MonkeyPatch) -> FlowRun:
    import prefect.flow_runs

    run = FlowRun([BAD, GOOD])
    monkeypatch.setattr(prefect.flow_runs, "suspend_flow_run", run.suspend)
    return run


def suspended(run: Path) -> None:
    with pytest.raises(Suspended):
        answer_on_page(run, NEEDED)


def test_a_bad_answer_is_asked_again_with_its_reason_and_audited_once(
    asked: Path, flow_run: FlowRun
) -> None:
    run = asked / "lab"
    suspended(run)
    flow_run.resume()
    suspended(run)
    flow_run.resume()
    answer_on_page(run, NEEDED)
    (first_timeout, first), (_, second) = flow_run.asked
    assert first.startswith("May this policy move an arm?")
    assert second.startswith("**not confirmed: The stop is near.**")
    assert 72 * 3600 - 600 < first_timeout <= 72 * 3600
    events = [json.loads(line)["event"] for line in (asked / AUDIT).read_text().splitlines()]
    assert events == ["asked", "refused", "answered"]
    answer = read_answer(pending_question(run))
    assert answer is not None
    assert answer["means"] == "page of the run"


def test_a_run_that_starts_again_without_an_answer_asks_the_same(
    asked: Path, flow_run: FlowRun
) -> None:
    suspended(asked / "lab")
    key = flow_run.waiting
    suspended(asked / "lab")
    assert flow_run.waiting == key


def test_an_answer_given_elsewhere_suspends_nothing(asked: Path, flow_run: FlowRun) -> None:
    write_answer(pending_question(asked / "lab"), YES)
    answer_on_page(asked / "lab", NEEDED)
    assert flow_run.asked == []


def test_an_expired_question_fails_the_flow_run(asked: Path, flow_run: FlowRun) -> None:
    age(pending_question(asked / "lab"), 73)
    with pytest.raises(ApprovalNeededError, match="a person must approve"):
        answer_on_page(asked / "lab", NEEDED)
    assert flow_run.asked == []


def test_a_run_without_a_deployment_is_not_suspended(
    asked: Path, flow_run: FlowRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT__RUNTIME__DEPLOYMENT__ID", "")
    with pytest.raises(ApprovalNeededError, match="a person must approve"):
        answer_on_page(asked / "lab", NEEDED)


def test_an_answer_elsewhere_resumes_the_suspended_flow_run_with_the_values_of_its_form(
    asked: Path, flow_run: FlowRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    suspended(asked / "lab")
    assert suspended_flow_run(asked / "lab") == FLOW_RUN
    resumed: list[tuple[str, dict[str, Any]]] = []

    def resume(flow_run: str, values: dict[str, Any]) -> str:
        resumed.append((flow_run, values))
        return ""

    monkeypatch.setattr(approvals, "_resume", resume)
    assert give_answer(asked / "lab", YES) == "its suspended flow run goes on"
    assert resumed == [(FLOW_RUN, GOOD)]


def test_without_the_address_of_the_server_the_answer_stands_and_the_page_is_named(
    asked: Path, flow_run: FlowRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    from prefect.settings import PREFECT_API_URL, temporary_settings

    suspended(asked / "lab")
    with temporary_settings(restore_defaults={PREFECT_API_URL}):
        after = give_answer(asked / "lab", YES)
    assert after.startswith(f"flow run {FLOW_RUN} did not go on (PREFECT_API_URL is not set)")
    assert read_answer(pending_question(asked / "lab")) is not None


def test_an_answer_says_whether_a_session_waits_for_it_and_goes_on(asked: Path) -> None:
    run = asked / "lab"
    with noted_session(run):
        assert give_answer(run, YES) == "the session that waits for it goes on"
    assert give_answer(run, YES) == "run the recipe again to go on"


def test_a_session_whose_process_has_died_goes_on_no_more(asked: Path) -> None:
    run = asked / "lab"
    with noted_session(run):
        left = json.loads((run / PENDING).read_bytes())
    assert not has_session(run)
    # What a killed process leaves: the number of a process that started at another time.
    left["session"]["started"] -= 3600.0
    (run / PENDING).write_text(json.dumps(left))
    assert give_answer(run, YES) == "run the recipe again to go on"
