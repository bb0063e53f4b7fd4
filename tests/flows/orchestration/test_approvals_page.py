"""The page of approvals: what it shows, whose answers it takes, and what it asks for again."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import uvicorn
from starlette.testclient import TestClient

from flows.deployment.approval import AUDIT, pending_question, read_answer
from flows.orchestration.serving.results_app import AUTH, results_app
from tests.flows.deployment.test_approval import asked, asked_once, declared, ran
from tests.real.console.tabs import open_browser

__all__ = ["asked", "asked_once"]
HERE = "http://127.0.0.1:4201"
BLOCKED = """() => new Promise((blocked) => {
  document.addEventListener("securitypolicyviolation", (event) => blocked(event.violatedDirective));
  document.forms[0].submit();
})"""
"""Sends the form of a page; returns the rule that forbids it."""
YES = {"decision": "approved", "by": "Ada", "item_0": "yes", "item_1": "yes"}


def client(runs: Path, address: str = HERE) -> TestClient:
    app: Any = results_app(runs)
    return TestClient(app, base_url=address)


def hidden(page: str, run: str = "lab") -> dict[str, str]:
    """The fields of a run's form that a person does not see."""
    form = page.partition(f"<h2>{run}</h2>")[2].partition("</form>")[0]
    return dict(re.findall(r"<input type='hidden' name='(\w+)' value='([^']*)'>", form))


def send(
    page: TestClient, answer: Mapping[str, str], headers: Mapping[str, str] | None = None
) -> Any:
    """Sends the form as it was shown, with an answer."""
    return page.post(
        "/approvals",
        data={**hidden(page.get("/approvals").text), **answer},
        headers={"origin": HERE, **(headers or {})},
    )


def given(runs: Path) -> dict[str, Any] | None:
    return read_answer(pending_question(runs / "lab"))


def audited(runs: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (runs / AUDIT).read_text().splitlines()]


def test_the_page_shows_figures_release_page_checklist_and_name(asked: Path) -> None:
    page = client(asked)
    text = page.get("/approvals").text
    assert "parity 1e-06" in text
    assert len(re.findall("type='checkbox'", text)) == 2
    assert "The stop is near." in text
    assert "name='by'" in text
    asked_at, until = re.findall(r"\d{4}-\d\d-\d\dT[\d:]+Z", text)[:2]
    hours = datetime.fromisoformat(until) - datetime.fromisoformat(asked_at)
    assert hours == timedelta(hours=72)
    (framed,) = re.findall(r"<iframe src='([^']+)'", text)
    assert "Release of a policy" in page.get(f"/{framed}").text
    assert "href='approvals'" in page.get("/").text


def test_an_answer_lets_the_run_finish_and_says_where_it_was_given(asked: Path) -> None:
    page = client(asked)
    response = send(page, YES)
    assert response.status_code == 200
    assert "lab: approved by Ada; run the recipe again to go on." in response.text
    assert "The run has not gone on yet" in response.text
    assert len(ran(asked).stages) == 4
    answer = json.loads((asked / "lab" / "approval" / "answer.json").read_text())
    assert (answer["means"], answer["address"]) == ("page of approvals", "testclient")
    assert "No run waits for an approval." in page.get("/approvals").text


def test_a_bad_answer_is_asked_again_with_its_reason_and_what_was_filled_in(asked: Path) -> None:
    response = send(client(asked), {**YES, "by": "  ", "reason": "<b>", "item_1": "yes"})
    assert response.status_code == 422
    assert "role='alert'>approval: the name is &#x27;&#x27;, expected the name" in response.text
    assert response.text.count(" checked>") == 2
    assert "value='&lt;b&gt;'" in response.text
    response = send(client(asked), {"decision": "approved", "by": "Ada", "item_0": "yes"})
    assert "role='alert'>approval: not confirmed: The stop is near." in response.text
    assert response.text.count(" checked>") == 1
    assert "value='Ada'" in response.text
    assert given(asked) is None
    assert [line["event"] for line in audited(asked)] == ["asked", "refused", "refused"]


def test_a_rejection_is_shown_and_can_be_replaced_by_an_approval(asked: Path) -> None:
    page = client(asked)
    send(page, {"decision": "rejected", "by": "Ada", "reason": "it hits the bin"})
    with pytest.raises(Exception, match="rejected by Ada: it hits the bin"):
        ran(asked)
    assert "page of approvals: it hits the bin." in page.get("/approvals").text
    assert send(page, YES).status_code == 200
    assert len(ran(asked).stages) == 4


@pytest.mark.parametrize(
    ("headers", "answer", "status"),
    [
        ({"origin": "https://evil.example"}, YES, 403),
        ({"origin": "null"}, YES, 403),
        ({"origin": "http://127.0.0.1:4200"}, YES, 403),
        ({"origin": "http://["}, YES, 403),
        ({"host": "evil.example:4201", "origin": "http://evil.example:4201"}, YES, 403),
        ({}, {**YES, "token": "guessed"}, 403),
        ({}, {**YES, "token": ""}, 403),
        ({"content-type": "text/plain"}, YES, 400),
        ({}, {**YES, "reason": "x" * 70_000}, 400),
        ({}, {**YES, "run": "../lab"}, 409),
        ({}, {**YES, "question": "0" * 64}, 422),
        ({}, {**YES, "question": ""}, 422),
        ({}, {**YES, "decision": "perhaps"}, 422),
        ({}, {**YES, "by": "Ada\nresult  approved by Eve"}, 422),
    ],
)
def test_no_form_but_the_one_of_this_page_and_question_counts(
    asked: Path, headers: Mapping[str, str], answer: Mapping[str, str], status: int
) -> None:
    assert send(client(asked), answer, headers).status_code == status
    assert given(asked) is None


def test_a_name_that_leads_to_this_computer_gets_no_form_without_a_password(
    asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = client(asked, "http://evil.example:4201").get("/approvals")
    assert (refused.status_code, hidden(refused.text)) == (403, {})
    assert client(asked, "http://localhost:9999").get("/approvals").status_code == 200
    assert client(asked, "http://[::1]:4201").get("/approvals").status_code == 200
    monkeypatch.setenv(AUTH, "anna:word")
    page = client(asked, "http://lab.example:4201")
    assert page.get("/approvals").status_code == 401
    assert page.post("/approvals", data=YES).status_code == 401
    assert page.get("/approvals", auth=("anna", "word")).status_code == 200


def test_what_was_confirmed_of_another_question_is_not_filled_in(asked: Path) -> None:
    page = client(asked)
    earlier = {**hidden(page.get("/approvals").text), **YES, "by": ""}
    again = pending_question(asked / "lab") / "request.json"
    again.write_text(again.read_text().replace("The stop is near.", "Nobody is near."))
    response = page.post("/approvals", data=earlier)
    assert response.status_code == 422
    assert "the question has changed since it was shown" in response.text
    assert " checked>" not in response.text


def test_scripts_and_forms_of_files_that_stages_wrote_do_not_work(asked: Path) -> None:
    (asked / "page.html").write_text("<script>1</script>")
    policy = client(asked).get("/page.html").headers["content-security-policy"]
    assert "script-src 'none'" in policy
    assert "form-action 'none'" in policy
    own = client(asked).get("/approvals").headers["content-security-policy"]
    assert own.startswith("default-src 'none'")
    assert "frame-ancestors 'none'" in own


@pytest.fixture
def listening(asked: Path) -> Iterator[str]:
    """The address of a server of the runs folder."""
    app: Any = results_app(asked)
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=0, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(20)


@pytest.mark.needs("chromium")
def test_a_person_answers_in_a_browser(asked: Path, listening: str) -> None:
    (asked / "attack.html").write_text(
        "<form method=post action=approvals></form><script>document.title = 'it ran'</script>"
    )
    with open_browser() as browser:
        page = browser.new_page()
        errors: list[str] = []
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda line: errors.append(line.text) if line.type == "error" else None)
        page.goto(f"{listening}/approvals")
        release = page.frame_locator("iframe")
        assert release.locator("h1").inner_text() == "Release of a policy"
        page.get_by_label("Your name").fill("Ada")
        page.get_by_label("I have looked.").check()
        page.get_by_label("Your name").press("Enter")
        assert given(asked) is None
        page.get_by_role("button", name="Approve").click()
        assert "not confirmed: The stop is near." in page.get_by_role("alert").inner_text()
        assert page.get_by_label("I have looked.").is_checked()
        page.get_by_label("The stop is near.").check()
        page.get_by_role("button", name="Approve").click()
        assert "lab: approved by Ada" in page.get_by_role("status").first.inner_text()
        # Browsers report the status 422 of the refused answer; nothing else went wrong.
        assert [error for error in errors if "422" not in error] == []
        page.goto(f"{listening}/attack.html")
        assert page.title() != "it ran"
        assert page.evaluate(BLOCKED) == "form-action"
    answer = given(asked)
    assert answer is not None
    assert (answer["by"], answer["address"]) == ("Ada", "127.0.0.1")
    assert [stage.name for stage in declared()] == [stage.name for stage in ran(asked).stages]
