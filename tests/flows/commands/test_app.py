"""The program `handoff`: accepted and refused arguments, exit codes, and help."""

from __future__ import annotations

import inspect
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.__main__ import main
from flows.commands import app
from robots.errors import HandoffError
from tests.flows.recipe_stages import options

COMMANDS = app.named_commands()
every_command = pytest.mark.parametrize(("name", "function"), list(COMMANDS.items()))


@pytest.mark.parametrize(
    "line",
    [
        "run demo teacher.training.steps=5 ~twin --debug",
        "run demo --debug teacher.training.steps=5 ~twin",
        "run --debug demo teacher.training.steps=5 ~twin",
        "run demo teacher.training.steps=5 --debug ~twin",
    ],
)
def test_overrides_may_stand_anywhere_behind_the_name(line: str) -> None:
    command = app.parse(line.split())
    assert command.function is COMMANDS["run"]
    assert command.values == {
        "recipe": "demo",
        "overrides": ("teacher.training.steps=5", "~twin"),
        "debug": True,
    }


@pytest.mark.parametrize(
    "line",
    [
        "hil reach corrected.steps=5 --operator simulated seed=1",
        "hil --operator simulated reach corrected.steps=5 seed=1",
    ],
)
def test_overrides_of_a_session_may_stand_anywhere(line: str) -> None:
    values = app.parse(line.split()).values
    assert values["overrides"] == ("corrected.steps=5", "seed=1")
    assert (values["task"], values["operator"]) == ("reach", "simulated")


def test_lists_maps_and_negative_numbers_are_values_of_overrides() -> None:
    given = ("a.b=[1,2]", "c={d:1}", "e=-1", "+f=g")
    assert app.parse(["run", "demo", *given]).values["overrides"] == given


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("hil reach --oparator simulated", "unknown option: --oparator. Did you mean --operator?"),
        ("run demo --debug a=1 --fast", "unknown option: --fast."),
        ("runn demo", 'unknown command "runn". Did you mean "run"?'),
        ("run", "parameter RECIPE requires an argument"),
        ("hil reach --operator nobody", 'invalid value "nobody" for --operator.'),
        ("serve bundle --port 70000", "Must be <= 65535"),
        ("evaluate reach --policy expert --out x --batch 0", "Must be >= 1"),
        ("list everything", 'invalid value "everything"'),
    ],
)
def test_arguments_that_are_not_understood_are_one_line_and_exit_code_2(
    line: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(line.split()) == 2
    said = capsys.readouterr().err
    assert said.startswith("handoff: ")
    assert message in said
    assert len(said.strip().splitlines()) == 1
    helped = f"'handoff {line.split()[0]} --help'" if not line.startswith("runn") else "--help"
    assert helped in said


def test_an_argument_too_many_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "somewhere", "a=1"]) == 2
    assert "a=1" in capsys.readouterr().err


def test_an_error_is_one_line_and_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "no_such_recipe"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("handoff: recipe 'no_such_recipe' does not exist")
    assert len(said.strip().splitlines()) == 1


def test_a_recipe_of_ones_own_is_named_where_its_ending_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.yaml").write_text("stages: {demos: {uses: ingest}}\n")
    assert main(["plan", "mine"]) == 1
    assert capsys.readouterr().err.endswith("named with its ending: mine.yaml\n")


def test_debug_prints_the_traceback_of_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "no_such_recipe", "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_ctrl_c_names_how_to_go_on_and_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("flows.run.run", interrupted)
    assert main(["run", "demo"]) == 130
    said = capsys.readouterr().err
    assert (
        said == "handoff: interrupted. Finished stages are kept; run the same command to resume.\n"
    )
    monkeypatch.setattr("flows.claims.due.repeat_due", interrupted)
    assert main(["reproduce", "--within", "1"]) == 130
    assert capsys.readouterr().err == said
    monkeypatch.setattr("flows.commands.planning.print_plan", interrupted)
    assert main(["plan", "demo"]) == 130
    assert capsys.readouterr().err == "handoff: interrupted.\n"


def test_an_interrupted_deployment_names_its_episodes_where_there_are_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("flows.deployment.session.deploy_command", interrupted)
    monkeypatch.setattr("flows.deployment.blinded.command.compare_command", interrupted)
    assert main(["deploy", "runs/demo/gate"]) == 130
    assert capsys.readouterr().err.endswith("handoff: interrupted.\n")
    for folder in ("runs/deploy", "blinded"):
        (tmp_path / folder / "store.zarr").mkdir(parents=True)
    assert main(["deploy", "runs/demo/gate"]) == 130
    said = capsys.readouterr().err
    assert said.endswith("interrupted. The episodes so far are in runs/deploy/store.zarr.\n")
    assert main(["deploy", "a", "--against", "b", "--out", "blinded"]) == 130
    said = capsys.readouterr().err
    assert said.endswith("blinded/store.zarr; the same command goes on with the comparison.\n")


def test_ctrl_c_while_the_commands_are_imported_is_a_sentence_too() -> None:
    code = (
        "import os, signal, sys\n"
        "class Interrupting:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name == 'cyclopts': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupting())\n"
        "from flows.__main__ import main\n"
        "sys.exit(main(['plan', 'demo']))\n"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr) == (130, "", "handoff: interrupted.\n")


def test_output_that_nobody_reads_is_no_error() -> None:
    command = f"{sys.executable} -m flows completion bash | true; exit ${{PIPESTATUS[0]}}"
    result = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert result.stderr == ""
    assert result.returncode == 141


def test_without_arguments_the_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    shown = capsys.readouterr().out
    first_words = {name.split()[0] for name in COMMANDS}
    assert {word for word in first_words if f"│ {word} " not in shown} == set()


def test_version_is_that_of_the_installed_package(capsys: pytest.CaptureFixture[str]) -> None:
    from importlib.metadata import version

    assert main(["--version"]) == 0
    assert capsys.readouterr().out.strip() == version("handoff")


@every_command
def test_every_parameter_has_a_description(name: str, function: Callable[..., None]) -> None:
    arguments = app.command_arguments(name)
    assert len(arguments) == len(inspect.signature(function).parameters)
    assert [entry.name for entry in arguments if not entry.parameter.help] == []


@every_command
def test_every_command_has_examples_that_it_accepts(
    name: str, function: Callable[..., None]
) -> None:
    lines = app.examples(function).splitlines()[1:]
    assert lines
    for line in lines:
        words = shlex.split(line.partition(" > ")[0])
        assert words[0] == "handoff"
        assert app.parse(words[1:]).function is function, line


@every_command
def test_every_command_shows_its_examples(
    name: str, function: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*name.split(), "--help"]) == 0
    shown = capsys.readouterr().out
    assert app.examples(function).splitlines()[1] in shown


@every_command
def test_every_command_takes_debug_and_reads_no_variable_arguments(
    name: str, function: Callable[..., None]
) -> None:
    parameters = inspect.signature(function).parameters
    assert parameters["debug"].default is False
    assert inspect.Parameter.VAR_KEYWORD not in {entry.kind for entry in parameters.values()}


def test_host_and_port_are_the_same_options_everywhere() -> None:
    with_port = {
        name: inspect.signature(function).parameters
        for name, function in COMMANDS.items()
        if "port" in inspect.signature(function).parameters
    }
    assert {name: entry["port"].default for name, entry in with_port.items()} == {
        "serve": 8000,
        "record": 8700,
        "hil": 8700,
        "console": 8700,
        "episodes review": 8720,
        "deploy": 8700,
        "server": 4200,
    }
    assert {entry["host"].default for entry in with_port.values()} == {"127.0.0.1"}


def test_parsing_raises_the_error_of_the_command_line() -> None:
    with pytest.raises(app.CommandLineError, match="unknown option"):
        app.parse(["plan", "demo", "--fast"])
    assert issubclass(app.CommandLineError, HandoffError)


def test_a_reproduction_that_differs_has_exit_code_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from types import SimpleNamespace

    from flows.reports.reproduce import TOLERANCE

    stages = (
        SimpleNamespace(name="demos", status="same"),
        SimpleNamespace(name="teacher", status="differs"),
    )
    result = SimpleNamespace(text="the comparison", ok=False, stages=stages, folder="runs/again")
    given: list[Any] = []

    def repeat(*arguments: Any, **options: Any) -> SimpleNamespace:
        given.append((arguments, options))
        return result

    monkeypatch.setattr("flows.reports.reproduce.reproduce", repeat)
    assert main(["reproduce", "demo", "--tolerance", "0.2", "--anyway"]) == 1
    assert given == [((Path("demo"), None), {"tolerance": 0.2, "anyway": True})]
    shown = capsys.readouterr()
    assert "the comparison" in shown.out
    assert shown.err == "handoff: reproduce: teacher differ; see runs/again.\n"
    result.ok = True
    assert main(["reproduce", "demo"]) == 0
    assert given[-1][1]["tolerance"] == TOLERANCE


def test_lineage_is_also_written_as_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from flows.runner.artifact import seal

    partial = tmp_path / "artifacts" / "demos-1.partial"
    partial.mkdir(parents=True)
    (partial / "data").write_text("x")
    record = {
        "stage": "demos",
        "uses": "scripted",
        "inputs": {},
        "input_paths": {},
        "config": {},
        "code": "0" * 64,
        "seeds": {},
        "metrics": {"episodes": 1, "frames": 2},
        "seconds": 1.0,
        "finished": "2026-11-01T00:00:00Z",
        "environment": {"commit": "abc"},
    }
    artifact = seal(partial, tmp_path / "artifacts" / "demos-1", "episodes", record)
    page = tmp_path / "lineage.html"
    assert main(["explain", str(artifact.path), "--page", str(page)]) == 0
    assert artifact.digest[:12] in capsys.readouterr().out
    assert artifact.digest[:12] in page.read_text()


def test_tune_passes_store_folder_and_overrides(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Any] = []
    monkeypatch.setattr("flows.tune.tune_command", lambda *arguments: given.append(arguments))
    assert main(["tune", "recordings", "parameters.kind=per_joint"]) == 0
    assert given == [(Path("recordings"), Path("runs/tune"), ("parameters.kind=per_joint",))]


def test_the_operator_of_the_command_line_is_that_of_every_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import attended

    file = tmp_path / "own.yaml"
    file.write_text(
        "shared: {env: {task: reach}}\nstages:\n"
        "  demos: {uses: demonstrate, with: {operator: {kind: console}}}\n"
        "  others: {uses: demonstrate}\n"
    )
    given: list[str] = []

    def note(recipe: str, overrides: list[str], **options: object) -> Path:
        given.extend(overrides)
        return tmp_path / "summary.json"

    monkeypatch.setattr(attended, "run_attended", note)
    assert main(["hil", str(file), "--operator", "simulated"]) == 0
    assert given == ["shared.operator.kind=simulated", "demos.operator.kind=simulated"]
    found = options(str(file), given)
    assert {name: found[name].operator.kind for name in found} == dict.fromkeys(found, "simulated")
