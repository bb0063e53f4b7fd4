"""A recipe with a correction session and an approval, run in a terminal: where it waits, and who
answers how."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from flows.__main__ import main
from flows.reports.explain import explain
from tests.real.console.tabs import Tab, open_browser

SESSION = """# A correction session whose policy a person must approve.
defaults: [hil/smoke]
name: attended
stages:
  demos: {with: {episodes: 3}}
  corrected: {inputs: {classifier: null}, with: {steps: 120, algorithm: {reward: task}}}
  sent: {uses: "tests.flows.approval_stages:bundle_of", inputs: {policy: corrected}}
  tested: {uses: "tests.flows.approval_stages:gate", inputs: {bundle: sent}}
  approval:
    uses: approve
    inputs: {bundle: sent, gate: tested}
    with: {checklist: [The stop is near.]}
"""


def attend(folder: Path) -> int:
    """The first terminal: the session, as the person who corrects starts it."""
    options = ["--operator", "simulated", "--person", "ada", "--until", "approval"]
    return main(["hil", str(folder / "attended.yaml"), *options, "--out", str(folder / "session")])


def record(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "session" / "run.json").read_text())


def test_a_session_waits_behind_its_corrections_and_a_second_terminal_answers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "attended.yaml").write_text(SESSION)
    run = tmp_path / "session"
    # The session ends where it waits, with the corrections finished.
    assert attend(tmp_path) == 1
    assert (
        f"Then: handoff approve {run}, and the same command again; a run on a"
        in capsys.readouterr().err
    )
    assert record(tmp_path)["state"] == "waiting"
    assert "ada" in record(tmp_path)["people"]
    assert (run / "corrected" / "store.zarr").exists()
    # Another person answers in a second terminal: first incompletely, then in full.
    command = [sys.executable, "-m", "flows", "approve", str(run), "--by", "Ben"]
    first = subprocess.run(command, input="n\n", capture_output=True, text=True, check=False)
    assert first.returncode == 1
    assert "approval: not confirmed: The stop is near." in first.stderr
    second = subprocess.run(command, input="y\n", capture_output=True, text=True, check=False)
    assert second.returncode == 0, second.stderr
    assert "approved by Ben; run the recipe again to go on" in second.stdout
    # The same command goes on behind the corrections, which nobody repeats.
    assert attend(tmp_path) == 0
    rows = json.loads((run / "summary.json").read_text())["stages"]
    cached = {name: row["cached"] for name, row in rows.items()}
    assert cached == {
        "demos": True,
        "corrected": True,
        "sent": True,
        "tested": True,
        "approval": False,
    }
    assert record(tmp_path)["state"] == "finished"
    assert {"ada", "Ben"} <= set(record(tmp_path)["people"])
    sent = json.loads((run / "sent" / "artifact.json").read_text())["digest"]
    assert f"bundle {sent[:12]} approved by Ben" in explain(run)
    audit = [json.loads(line) for line in (tmp_path / "approvals.jsonl").read_text().splitlines()]
    assert [line["event"] for line in audit] == ["asked", "refused", "answered"]


AT_CONSOLE = """# A session with a person at the console, whose policy must be approved.
name: watched
stages:
  sent:
    uses: "tests.flows.approval_stages:session"
    with: {env: {task: reach, observation_fields: []}, operator: {kind: console}}
  tested: {uses: "tests.flows.approval_stages:gate", inputs: {bundle: sent}}
  approval:
    uses: approve
    inputs: {bundle: sent, gate: tested}
    with: {checklist: [The stop is near.]}
"""


@contextmanager
def at_console(folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A session in another process, and the address of its console."""
    (folder / "watched.yaml").write_text(AT_CONSOLE)
    options = ["--person", "ada", "--port", "0", "--out", str(folder / "session")]
    command = [sys.executable, "-m", "flows", "hil", str(folder / "watched.yaml"), *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        url = next(line for line in lines if line.startswith("console  ")).split()[1]
        assert any("waits for an approval" in line for line in lines)
        try:
            yield process, url
        finally:
            process.send_signal(signal.SIGINT)


@pytest.mark.needs("chromium")
def test_a_person_at_the_console_answers_there_and_the_session_goes_on(tmp_path: Path) -> None:
    with at_console(tmp_path) as (process, url), open_browser() as browser:
        tab = Tab(browser, url)
        with tab.context.expect_page() as opened:
            tab.page.get_by_role("button", name="Open the question").click()
        assert tab.page.inner_text("#waiting-names") == "session"
        question = opened.value
        question.get_by_label("Your name").fill("Ada")
        question.get_by_role("button", name="Approve").click()
        assert "not confirmed: The stop is near." in question.get_by_role("alert").inner_text()
        assert process.poll() is None
        release = question.frame_locator("iframe")
        assert release.locator("h1").inner_text() == "Release of a policy"
        question.get_by_label("The stop is near.").check()
        question.get_by_role("button", name="Approve").click()
        done = question.get_by_role("status").first.inner_text()
        assert "session: approved by Ada; the session that waits for it goes on." in done
        assert process.wait(60.0) == 0
        assert tab.errors == []
    answer = json.loads((tmp_path / "session" / "approval" / "answer.json").read_text())
    assert (answer["means"], answer["by"]) == ("console", "Ada")
    assert record(tmp_path)["state"] == "finished"
