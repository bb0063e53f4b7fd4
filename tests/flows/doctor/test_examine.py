"""The command `doctor`: its lines, its JSON, its exit code."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

from flows.__main__ import main
from flows.doctor import examine
from flows.doctor.check import Check
from flows.doctor.examine import examinations, made
from flows.doctor.report import as_json, failed_names, text_line
from tests import house

GOOD = Check("memory", "ok", "3.0 of 4.0 GB available")
BAD = Check("kernel", "warning", "no PREEMPT_RT kernel", "Install one.", lines=("a bar",))
FAILED = Check("arm x", "failed", "no connection", "Is it on?")
HEAVY = {"torch", "mujoco", "prefect", "gymnasium", "zarr", "onnxruntime"}

Replace = Callable[..., None]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> Replace:
    """Replaces all checks of the machine."""

    def replace(*results: Check) -> None:
        made_checks = {check.name: lambda check=check: check for check in results}
        monkeypatch.setattr(examine, "examinations", lambda robot, seconds: made_checks)

    return replace


def test_every_check_is_a_line_and_only_those_that_are_not_ok_say_what_to_do(
    checks: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    checks(GOOD, BAD)
    assert main(["doctor"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "OK           memory              3.0 of 4.0 GB available",
        "warning      kernel              no PREEMPT_RT kernel. Install one.",
        "                                 a bar",
    ]


def test_a_failed_check_is_exit_code_1_with_its_name(
    checks: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    checks(GOOD, BAD, FAILED)
    assert main(["doctor"]) == 1
    assert capsys.readouterr().err == "handoff: doctor: 1 of 3 failed: arm x.\n"


def test_json_is_one_object_with_every_field(
    checks: Replace, capsys: pytest.CaptureFixture[str]
) -> None:
    checks(GOOD, FAILED)
    assert main(["doctor", "--json"]) == 1
    content = json.loads(capsys.readouterr().out)
    assert content["ok"] is False
    assert content["checks"][1] == {
        "name": "arm x",
        "status": "failed",
        "found": "no connection",
        "advice": "Is it on?",
        "lines": [],
        "values": {},
    }


def test_warnings_are_no_failures() -> None:
    assert failed_names([GOOD, BAD]) == []
    assert json.loads(as_json([GOOD, BAD]))["ok"] is True


def test_advice_behind_a_question_has_no_further_full_stop() -> None:
    assert text_line(Check("a", "failed", "Is it?", "Do.")).endswith("Is it? Do.")


def test_a_check_that_raises_hides_no_other() -> None:
    def broken() -> Sequence[Check]:
        raise OSError("no /proc")

    (check,) = made("memory", broken)
    assert (check.name, check.status) == ("memory", "not checked")
    assert "no /proc" in check.found


def test_an_arm_adds_the_checks_of_its_controller() -> None:
    assert set(examinations("10.0.0.1", 0.0)) - set(examinations(None, 0.0)) == {"arm 10.0.0.1"}


@pytest.mark.parametrize("line", ["doctor --seconds -1", "doctor --robot"])
def test_impossible_options_are_refused(line: str) -> None:
    assert main(line.split()) == 2


def test_the_machine_is_examined_without_heavy_packages() -> None:
    code = (
        "import json, sys\n"
        "from flows.doctor import examine, recipes\n"
        "recipes.shipped_recipes = lambda: ['demo']\n"
        "if __name__ == '__main__':\n"
        "    found = list(examine.examine(None, 0.01))\n"
        "    names = sorted({name.split('.')[0] for name in sys.modules})\n"
        "    print(json.dumps([[check.name, check.status, check.advice] for check in found]))\n"
        "    print(json.dumps(names))\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, cwd=house.ROOT, check=True)
    results, loaded = map(json.loads, done.stdout.splitlines())
    assert {name.split(" ")[0] for name, _, _ in results} >= {"Python", "clock", "wake-ups"}
    # A warning or a failure says what to do; what is ok asks for nothing.
    assert [
        name
        for name, status, advice in results
        if (status in ("ok", "not checked")) == bool(advice)
    ] == []
    assert HEAVY.isdisjoint(loaded)


def test_the_process_that_measures_imports_nothing_heavy() -> None:
    code = "import sys, flows.doctor.latency, flows.__main__; print(*sys.modules)"
    command = [sys.executable, "-c", code]
    loaded = subprocess.run(command, capture_output=True, text=True, cwd=house.ROOT, check=True)
    assert HEAVY.isdisjoint({name.split(".")[0] for name in loaded.stdout.split()})
