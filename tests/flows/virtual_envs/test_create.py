"""A virtual environment is made from its recipe, continued after an interruption, and refused with a
reason."""

from __future__ import annotations

import json
import shutil
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from flows.commands.app import main
from flows.virtual_envs import create
from flows.virtual_envs.check import check_venv
from flows.virtual_envs.command import venv_rows
from flows.virtual_envs.create import create_venv, python_version, read_state
from flows.virtual_envs.recipe import (
    InstallStep,
    VenvRecipe,
    read_venv_recipe,
    recipe_names,
    trial_config,
)
from robots.errors import HandoffError
from sim.servers.venvs import ENVS_VARIABLE

RECIPE = VenvRecipe(
    python=">=3.11",
    megabytes=1,
    install=(
        InstallStep(packages=("numpy==2.4.6", "msgpack==1.2.4")),
        InstallStep(packages=("lamp==1.0",), dependencies=False, any_python=True),
    ),
    imports=("lamp",),
)
FAKE = """#!/bin/sh
# A Python that keeps a list of what pip was asked for.
case "$1 $2" in
  "-m venv") {venv} ;;
  "-m pip") shift 3; echo "$*" >> "{folder}/calls"; {pip} ;;
  "-c "*) echo {version} ;;
  *) exit {rest} ;;
esac
"""
MAKE = 'mkdir -p "$4/bin"; cp "$0" "$4/bin/python"; echo "version = 3.11.7" > "$4/pyvenv.cfg"'


def fake(
    folder: Path, *, venv: str = MAKE, pip: str = "exit 0", version: str = "3.11.7", rest: int = 0
) -> str:
    file = folder / "python"
    text = FAKE.format(venv=venv, folder=folder, pip=pip, version=version, rest=rest)
    file.write_text(text)
    file.chmod(0o755)
    return str(file)


def calls(folder: Path) -> list[str]:
    file = folder / "calls"
    return file.read_text().splitlines() if file.exists() else []


def made(folder: Path, python: str, recipe: VenvRecipe = RECIPE, *, again: bool = False) -> None:
    create_venv("lamp", recipe, folder / "envs" / "lamp", python, lambda line: None, again=again)


def test_steps_are_installed_in_order_with_their_options(tmp_path: Path) -> None:
    made(tmp_path, fake(tmp_path))
    first, second = calls(tmp_path)
    assert first.endswith("numpy==2.4.6 msgpack==1.2.4")
    assert "--no-deps" not in first
    assert second.endswith("--no-deps --ignore-requires-python lamp==1.0")
    state = read_state(tmp_path / "envs/lamp")
    assert state is not None
    assert (state.finished, state.steps, state.complete) == (2, 2, True)
    made(tmp_path, fake(tmp_path))
    assert len(calls(tmp_path)) == 2
    made(tmp_path, fake(tmp_path), again=True)
    assert len(calls(tmp_path)) == 4


def test_an_interrupted_one_is_continued_with_the_step_that_failed(tmp_path: Path) -> None:
    failing = 'case "$*" in *lamp*) echo "ERROR: no lamp"; exit 1 ;; esac'
    python = fake(tmp_path, pip=failing)
    with pytest.raises(HandoffError, match=r"pip failed: ERROR: no lamp\. Run the command again"):
        made(tmp_path, python)
    state = read_state(tmp_path / "envs/lamp")
    assert state is not None
    assert (state.finished, state.complete) == (1, False)
    (line,) = check_venv("lamp", RECIPE, tmp_path / "envs/lamp")
    assert (line.ok, line.text) == (False, "1 of 2 steps are installed: handoff envs create lamp")
    shutil.copy(fake(tmp_path), tmp_path / "envs/lamp/bin/python")
    made(tmp_path, python)
    assert [line.split()[-1] for line in calls(tmp_path)] == [
        "msgpack==1.2.4",
        "lamp==1.0",
        "lamp==1.0",
    ]


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ("OSError: [Errno 28] No space left on device", "the disk is full"),
        ("No module named pip", "apt install python3-venv"),
        ("ReadTimeoutError: pypi", "the package index cannot be reached"),
    ],
)
def test_a_failure_of_pip_says_what_to_do(tmp_path: Path, output: str, message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        made(tmp_path, fake(tmp_path, pip=f'echo "{output}"; exit 1'))


def test_another_python_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    with pytest.raises(HandoffError, match=r"is Python 3\.10\.2, it was tested with >=3\.11"):
        made(tmp_path, fake(tmp_path, version="3.10.2"))
    assert not (tmp_path / "envs/lamp").exists()
    with pytest.raises(HandoffError, match=r"--python .*is no Python"):
        python_version("/bin/false")


def test_a_python_without_venv_says_what_to_install(tmp_path: Path) -> None:
    for message in ("No module named venv", "ensurepip is not available"):
        with pytest.raises(HandoffError, match="apt install python3-venv"):
            made(tmp_path, fake(tmp_path, venv=f'echo "{message}"; exit 1'))


def test_too_little_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "free")(500_000)
    monkeypatch.setattr(create.shutil, "disk_usage", lambda place: usage)
    with pytest.raises(HandoffError, match=r"0 MB free .*1 MB needed.*HANDOFF_ENVS"):
        made(tmp_path, fake(tmp_path))


def test_another_folder_is_not_touched(tmp_path: Path) -> None:
    kept = tmp_path / "envs/lamp/kept"
    kept.parent.mkdir(parents=True)
    kept.write_text("mine")
    for again in (False, True):
        with pytest.raises(HandoffError, match=r"is no virtual environment\. Move it away"):
            made(tmp_path, fake(tmp_path), again=again)
    assert kept.read_text() == "mine"


def test_other_packages_need_a_new_one(tmp_path: Path) -> None:
    made(tmp_path, fake(tmp_path))
    changed = VenvRecipe(
        python=">=3.11", megabytes=1, install=RECIPE.install[:1], imports=("lamp",)
    )
    with pytest.raises(HandoffError, match=r"made from other packages.*--again"):
        made(tmp_path, fake(tmp_path), changed)
    (line,) = check_venv("lamp", changed, tmp_path / "envs/lamp")
    assert not line.ok


def test_one_process_makes_it_at_a_time(tmp_path: Path) -> None:
    inner = fake(tmp_path)
    problems: list[str] = []

    def say(line: str) -> None:
        with pytest.raises(HandoffError) as raised:
            made(tmp_path, inner)
        problems.append(str(raised.value))

    create_venv("lamp", RECIPE, tmp_path / "envs/lamp", inner, say)
    assert all("another process is making it" in problem for problem in problems)
    assert problems


def test_a_failed_import_is_a_failed_check(tmp_path: Path) -> None:
    made(tmp_path, fake(tmp_path))
    bin_python = tmp_path / "envs/lamp/bin/python"
    listed = json.dumps([["numpy", "2.4.6"], ["msgpack", "1.0.0"]])
    bin_python.write_text(
        '#!/bin/sh\ncase "$3" in *metadata*) echo \'' + listed + "' ;; "
        "*) echo 'ModuleNotFoundError: lamp' >&2; exit 1 ;; esac\n"
    )
    complete, packages, module = check_venv("lamp", RECIPE, tmp_path / "envs/lamp")
    assert complete.ok
    assert packages.text == "msgpack 1.0.0, expected ==1.2.4; lamp is missing, expected ==1.0"
    assert (module.ok, module.text) == (False, "import lamp: ModuleNotFoundError: lamp")


@pytest.mark.parametrize(
    ("packages", "message"),
    [
        (("numpy>=2", "msgpack==1"), r"not pinned by ==: \['numpy'\]"),
        (("numpy==2",), r"missing: \['msgpack'\]"),
        (("numpy==2", "msgpack==1", "not a name"), "virtual environment"),
    ],
)
def test_a_recipe_pins_its_packages(packages: tuple[str, ...], message: str) -> None:
    with pytest.raises(HandoffError, match=message):
        VenvRecipe(
            python=">=3.11", megabytes=1, install=(InstallStep(packages=packages),), imports=()
        )


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_valid_and_has_a_trial(name: str) -> None:
    recipe = read_venv_recipe(name)
    assert trial_config(recipe, Path("/envs") / name).engine == "server"
    assert recipe.imports


@pytest.mark.peers
@pytest.mark.needs("index")
@pytest.mark.timeout(600)
def test_numpy_msgpack_and_gymnasium_are_enough_for_an_environment(tmp_path: Path) -> None:
    recipe = VenvRecipe(
        python=">=3.11",
        megabytes=200,
        install=(InstallStep(packages=("numpy==2.4.6", "msgpack==1.2.4", "gymnasium==1.4.0")),),
        imports=("gymnasium",),
        trial={"task": "Pendulum-v1", "gym": {"success": "never"}},
    )
    made(tmp_path, sys.executable, recipe)
    lines = list(check_venv("lamp", recipe, tmp_path / "envs/lamp"))
    assert [line.text for line in lines if not line.ok] == []
    assert len(lines) == 4


def test_the_commands_list_and_check(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ENVS_VARIABLE, str(tmp_path / "envs"))
    assert {row[0]: row[1] for row in venv_rows()} == dict.fromkeys(recipe_names(), "not made")
    assert main(["envs", "check", "gym_hil"]) == 1
    assert "handoff envs create gym_hil" in capsys.readouterr().out
    made(tmp_path, fake(tmp_path))
    assert ("lamp", "ready", "3.11.7", str(tmp_path / "envs/lamp")) in list(venv_rows())
    assert main(["envs", "list"]) == 0
    assert "lamp" in capsys.readouterr().out
    assert main(["envs", "create", "gymhil"]) == 1
    assert "did you mean 'gym_hil'" in capsys.readouterr().err
