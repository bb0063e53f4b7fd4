"""Implements `handoff envs`: makes, lists and checks virtual environments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from flows.config.files import CONFIGS, first_comment
from flows.virtual_envs.check import check_venv
from flows.virtual_envs.create import create_venv, read_state
from flows.virtual_envs.recipe import GROUP, read_venv_recipe, recipe_names, venv_name
from robots.errors import HandoffError
from sim.servers.venvs import python_of, venv_names, venvs_folder

Say = Callable[[str], None]


def create_command(
    name: str, *, python: str | None, folder: Path | None, again: bool, say: Say
) -> None:
    """Makes a virtual environment and checks it.

    Args:
        name: a recipe's name, or the path of its file.
        python: path of the Python program; None takes the running one.
        folder: folder of the virtual environment; None takes that of its name.
        again: whether one that exists is made anew.
        say: prints one line.

    Raises:
        HandoffError: see `create_venv`, or a check that failed.
    """
    recipe = read_venv_recipe(name)
    place = _place(name, folder)
    create_venv(venv_name(name), recipe, place, python or sys.executable, say, again=again)
    check_command(name, folder=folder, say=say)
    by_name = place.parent == venvs_folder()
    say(
        f"use it     engine: server, options: {{server: {{venv: {place.name if by_name else place}}}}}"
    )


def check_command(name: str, *, folder: Path | None, say: Say) -> None:
    """Checks a virtual environment.

    Args:
        name: a recipe's name, or the path of its file.
        folder: folder of the virtual environment; None takes that of its name.
        say: prints one line.

    Raises:
        HandoffError: a check failed.
    """
    failed = 0
    for line in check_venv(venv_name(name), read_venv_recipe(name), _place(name, folder)):
        say(f"{'OK' if line.ok else 'FAILED':<10} {line.text}")
        failed += not line.ok
    if failed:
        raise HandoffError(f"virtual environment {venv_name(name)}: {failed} checks failed.")


def venv_rows() -> Iterator[tuple[str, str, str, str]]:
    """Yields name, state, Python and phrase of the virtual environments that can be made, and of
    others in their folder."""
    known = recipe_names()
    for name in known:
        about = first_comment(CONFIGS / GROUP / f"{name}.yaml")
        yield name, _state(venvs_folder() / name), _python(venvs_folder() / name), about
    for name in venv_names():
        if name not in known:
            folder = venvs_folder() / name
            yield name, _state(folder), _python(folder), str(folder)


def _place(name: str, folder: Path | None) -> Path:
    return venvs_folder() / venv_name(name) if folder is None else folder.expanduser().absolute()


def _state(folder: Path) -> str:
    state = read_state(folder)
    if state is None:
        return "made elsewhere" if python_of(folder).exists() else "not made"
    return "ready" if state.complete else f"{state.finished} of {state.steps} steps"


def _python(folder: Path) -> str:
    """Version of Python as the virtual environment states it; empty if there is none."""
    file = folder / "pyvenv.cfg"
    if not file.exists():
        return ""
    lines = dict(line.split(" = ", 1) for line in file.read_text().splitlines() if " = " in line)
    return lines.get("version", "")
