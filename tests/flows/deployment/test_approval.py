"""A person's approval: what a run asks, which answers count, and what an arm then takes."""

from __future__ import annotations

import json
import platform
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.approve import approve_command
from flows.deployment.approval import (
    AUDIT,
    PAGE,
    REQUEST,
    Answer,
    ApprovalConfig,
    pending_question,
    read_answer,
    read_request,
    write_answer,
)
from flows.deployment.release import approved_bundle, released_bundle
from flows.orchestration.recipe_run import run_in_threads
from flows.recipes.recipe import Recipe
from flows.reports.explain import explain
from flows.reports.results import Summary
from flows.runner.artifact import write_json
from flows.runner.lock import run_lock
from flows.runner.plan import plan
from flows.runner.stage import Stage
from flows.storage.shared_runs import open_runs
from robots.errors import ApprovalNeededError, HandoffError
from robots.interfaces import no_progress
from robots.processes import login
from tests.flows.approval_stages import NothingConfig
from tests.flows.counting_stage import CountingConfig

STAGES = "tests.flows.approval_stages"
SETTINGS = ApprovalConfig(checklist=("I have looked.", "The stop is near."))


def declared(settings: ApprovalConfig = SETTINGS) -> list[Stage]:
    bundle = Stage("bundle", "bundle", STAGES, NothingConfig(), function="bundle", uses="export_")
    gate = Stage("gate", "gate", STAGES, NothingConfig(), {"bundle": bundle}, function="gate")
    inputs = {"bundle": bundle, "gate": gate}
    module = "flows.stages.release.approve"
    approval = Stage("approval", "approval", module, settings, inputs, uses="approve")
    beside = Stage("beside", "number", "tests.flows.counting_stage", CountingConfig(value=5))
    return [bundle, gate, approval, beside]


def ran(root: Path, stages: list[Stage] | None = None, redo: Sequence[str] = ()) -> Summary:
    recipe = Recipe("lab", {}, runs=str(root))
    return run_in_threads(recipe, stages or declared(), open_runs(str(root), ()), redo=redo)


@pytest.fixture(scope="module")
def asked_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The runs folder of a run that waits for an answer, which no test changes."""
    runs = tmp_path_factory.mktemp("asked")
    with pytest.raises(ApprovalNeededError, match="handoff approve"):
        ran(runs)
    return runs


@pytest.fixture
def asked(asked_once: Path, tmp_path: Path) -> Path:
    """A copy of it, whose links are relative."""
    return shutil.copytree(asked_once, tmp_path / "runs", symlinks=True)


YES = Answer("approved", "Ada", "", (True, True))


def approve(run: Path, by: str, reject: str | None = None, *, confirm: bool = False) -> None:
    approve_command(run, by=by, reject=reject, confirm=confirm, say=lambda line: None)


def ran_folder(runs: Path) -> Path:
    """The folder of the run, which has ended without an error."""
    ran(runs)
    return runs / "lab"


def audited(runs: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (runs / AUDIT).read_text().splitlines()]


def age(question: Path, hours: float) -> None:
    """Moves the time of a question back [h]."""
    request = read_request(question)
    write_json(question / REQUEST, {**request, "asked": request["asked"] - 3600.0 * hours})


def test_a_run_asks_finishes_what_does_not_need_the_answer_and_says_how_to_answer(
    asked: Path,
) -> None:
    summary = json.loads((asked / "lab" / "summary.json").read_text())
    assert set(summary["stages"]) == {"bundle", "gate", "beside"}
    assert json.loads((asked / "lab" / "run.json").read_text())["state"] == "waiting"
    question = pending_question(asked / "lab")
    assert read_request(question)["checklist"] == ["I have looked.", "The stop is near."]
    page = (question / PAGE).read_text()
    assert "The stop is near." in page
    assert summary["stages"]["bundle"]["digest"] in page


def test_an_approval_lets_the_run_finish_and_is_in_the_lineage(asked: Path) -> None:
    write_answer(pending_question(asked / "lab"), YES)
    summary = ran(asked)
    approval = asked / "lab" / "approval"
    manifest = json.loads((approval / "artifact.json").read_text())
    assert manifest["kind"] == "approval"
    assert (manifest["metrics"]["decision"], manifest["metrics"]["by"]) == ("approved", "Ada")
    assert [row.name for row in summary.stages] == ["bundle", "gate", "approval", "beside"]
    with pytest.raises(HandoffError, match="waits for no approval"):
        pending_question(asked / "lab")
    lines = audited(asked)
    assert [line["event"] for line in lines] == ["asked", "answered"]
    assert lines[1]["about"] == lines[0]["about"]


def test_a_rejection_fails_the_run_with_its_reason_until_somebody_approves(asked: Path) -> None:
    question = pending_question(asked / "lab")
    write_answer(question, Answer("rejected", "Ada", "it hits the bin"))
    with pytest.raises(HandoffError, match="rejected by Ada: it hits the bin"):
        ran(asked)
    write_answer(question, YES)
    assert len(ran(asked).stages) == 4


def test_a_rejection_withdraws_an_earlier_approval_of_the_same_policy(
    asked: Path, tmp_path: Path
) -> None:
    question = pending_question(asked / "lab")
    write_answer(question, YES)
    approval = ran_folder(asked) / "approval"
    copy = shutil.copytree(approval.resolve(), approval.resolve().with_name("copied"))
    assert approved_bundle(approval).name.startswith("bundle-")
    # The same question again, as --redo asks it.
    with pytest.raises(ApprovalNeededError):
        ran(asked, redo=["approval"])
    approve(asked / "lab", by="Ada", reject="it pushes nothing")
    for refuses in (approved_bundle, released_bundle):
        with pytest.raises(HandoffError, match="a rejection withdraws an approval"):
            refuses(approval)
    with pytest.raises(HandoffError, match=r"rejected afterwards by Ada, .*Z: it pushes nothing"):
        approved_bundle(copy)
    # Another run does not find it in the cache.
    with pytest.raises(HandoffError, match="rejected by Ada: it pushes nothing"):
        ran(asked)
    approve(asked / "lab", by="Ben", confirm=True)
    assert approved_bundle(ran_folder(asked) / "approval").name.startswith("bundle-")
    assert approved_bundle(copy).name.startswith("bundle-")


def test_a_rejected_policy_can_still_be_approved_at_the_terminal(asked: Path) -> None:
    run = asked / "lab"
    approve(run, by="Ada", reject="it hits the bin")
    with pytest.raises(HandoffError, match="rejected by Ada"):
        ran(asked)
    approve(run, by="Ben", confirm=True)
    assert "approved by Ben" in explain(ran_folder(asked))


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (replace(YES, by=" "), "expected the name"),
        (replace(YES, confirmed=(True, False)), "not confirmed: The stop is near."),
        (replace(YES, confirmed=()), "not confirmed: I have looked. The stop is near."),
        (Answer("rejected", "Ada"), "needs a reason"),
        (replace(YES, by="Ada\nEve"), "expected the name"),
        (replace(YES, reason="x" * 1001), "longer than 1000 characters"),
        (replace(YES, question="0" * 64), "has changed since it was shown"),
    ],
)
def test_an_incomplete_answer_is_refused_and_asked_for_again(
    asked: Path, answer: Answer, message: str
) -> None:
    with pytest.raises(HandoffError, match=message):
        write_answer(pending_question(asked / "lab"), answer)
    with pytest.raises(ApprovalNeededError):
        ran(asked)
    asked_line, refused = audited(asked)
    assert (asked_line["event"], refused["event"]) == ("asked", "refused")
    assert message in refused["problem"]
    assert (refused["by"], refused["request"]) == (answer.by.strip(), asked_line["question"])


def test_the_audit_and_the_lineage_name_who_answered_what_when_and_where(asked: Path) -> None:
    write_answer(pending_question(asked / "lab"), replace(YES, address="10.0.0.7"))
    line = audited(asked)[-1]
    ran(asked)
    bundle = json.loads((asked / "lab" / "bundle" / "artifact.json").read_text())["digest"]
    assert (line["event"], line["by"], line["address"]) == ("answered", "Ada", "10.0.0.7")
    assert (line["login"], line["computer"]) == (login(), platform.node())
    assert line["about"]["bundle"] == bundle
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", line["time"])
    stated = (
        f"bundle {bundle[:12]} approved by Ada, {line['time']} "
        f"(terminal, {login()} on {platform.node()})"
    )
    assert explain(asked / "lab").count(stated) == 2, "in the list of stages, and in the lineage"


def test_a_question_that_nobody_has_answered_is_asked_once(asked: Path) -> None:
    with pytest.raises(ApprovalNeededError):
        ran(asked)
    assert [line["event"] for line in audited(asked)] == ["asked"]


def test_a_question_expires_and_another_run_asks_again(asked: Path) -> None:
    question = pending_question(asked / "lab")
    earlier = read_request(question)
    age(question, SETTINGS.answer_hours + 1)
    with pytest.raises(HandoffError, match=r"could be answered for 72 h\. Run the recipe again"):
        write_answer(question, YES)
    with pytest.raises(ApprovalNeededError):
        ran(asked)
    assert read_request(question)["asked"] > earlier["asked"] - 1
    write_answer(question, YES)
    assert len(ran(asked).stages) == 4
    events = [line["event"] for line in audited(asked)]
    assert events == ["asked", "refused", "asked", "answered"]


def test_a_rejection_is_asked_again_when_its_question_has_expired(asked: Path) -> None:
    question = pending_question(asked / "lab")
    age(question, SETTINGS.answer_hours - 1)
    write_answer(question, Answer("rejected", "Ada", "it hits the bin"))
    with pytest.raises(HandoffError, match="rejected by Ada"):
        ran(asked)
    from flows.deployment import approval

    assert read_answer(question) is not None
    with pytest.MonkeyPatch.context() as patch:
        later = time.time() + 2 * 3600
        patch.setattr(approval.time, "time", lambda: later)
        assert read_answer(question) is None


@pytest.mark.nightly
def test_another_policy_is_asked_about_again(asked: Path) -> None:
    write_answer(pending_question(asked / "lab"), YES)
    ran(asked)
    stages = declared()
    other = replace(stages[0], config=NothingConfig(text="other"))
    gate = replace(stages[1], inputs={"bundle": other})
    approval = replace(stages[2], inputs={"bundle": other, "gate": gate})
    with pytest.raises(ApprovalNeededError):
        ran(asked, [other, gate, approval])


def test_an_arm_takes_what_was_approved_and_refuses_a_gate_and_an_expired_approval(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_answer(pending_question(asked / "lab"), YES)
    ran(asked)
    run = asked / "lab"
    bundle = (run / "bundle").resolve()
    assert approved_bundle(run / "approval") == bundle
    assert released_bundle(run / "approval") == released_bundle(run / "gate") == bundle
    with pytest.raises(HandoffError, match="stage 'gate', expected that of an approval"):
        approved_bundle(run / "gate")
    from flows.deployment import approval

    later = approval.time.time() + 3600 * (SETTINGS.valid_hours + 1)
    monkeypatch.setattr(approval.time, "time", lambda: later)
    with pytest.raises(HandoffError, match="the approval by Ada was valid until"):
        approved_bundle(run / "approval")


def test_a_session_at_an_arm_refuses_a_gate_before_it_connects(asked: Path) -> None:
    from flows.deployment.session import deploy_command
    from real.console.server import ConsoleConfig

    write_answer(pending_question(asked / "lab"), YES)
    ran(asked)
    for address, message in (
        ("172.16.0.2", "gate is not signed; a real arm takes a signed release alone"),
        ("127.0.0.9", "policy.onnx"),
    ):
        with pytest.raises(HandoffError, match=message):
            deploy_command(
                asked / "lab" / "gate",
                (),
                asked / "out",
                ConsoleConfig(port=0),
                arm=address,
                trackers=["ws://127.0.0.1:1"],
                cameras=(),
                instruction=None,
                mode="live",
                recording=None,
                person="",
                episodes=1,
            )


def test_the_terminal_asks_each_item_and_the_name(asked: Path) -> None:
    said: list[str] = []
    replies = iter(["Ada", "y", "yes"])
    run = asked / "lab"
    approve_command(
        run, by=None, reject=None, confirm=False, say=said.append, ask=lambda _: next(replies)
    )
    assert any(line.startswith("gate  ") for line in said)
    assert len(ran(asked).stages) == 4


def test_a_terminal_where_nobody_answers_is_refused(asked: Path) -> None:
    def closed(question: str) -> str:
        raise EOFError

    with pytest.raises(HandoffError, match="nobody answers 'Your name"):
        approve_command(
            asked / "lab", by=None, reject=None, confirm=False, say=lambda _: None, ask=closed
        )


@pytest.mark.nightly
def test_a_failure_of_another_stage_is_reported_before_a_missing_approval(tmp_path: Path) -> None:
    stages = declared()
    bad = replace(stages[3], config=CountingConfig(fail="error"))
    with pytest.raises(HandoffError, match="value 3, limit 2"):
        ran(tmp_path, [*stages[:3], bad])


def test_the_plan_of_a_run_that_waits_says_for_whom(asked: Path) -> None:
    planned = {one.stage: (one.action, one.reason) for one in plan(declared(), asked)}
    assert planned["approval"] == ("resume", "it waits for a person's approval")
    with run_lock(pending_question(asked / "lab").with_suffix(""), "approval", no_progress):
        planned = {one.stage: one.reason for one in plan(declared(), asked)}
    assert planned["approval"] == "a run is computing it"
