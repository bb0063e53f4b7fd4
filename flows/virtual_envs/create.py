"""Makes a virtual environment from a recipe, or finishes one that was interrupted.

Its folder has a file that counts the finished calls of pip; a call that was interrupted is made
again, and pip takes what it had downloaded from its cache.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from flows.virtual_envs.recipe import InstallStep, VenvRecipe, recipe_digest
from robots.errors import HandoffError
from robots.storage.durable import WriterLock, remove_tree, write_atomically
from sim.servers.venvs import python_of

STATE = "handoff.json"
"""File in the folder of a virtual environment, with what is installed so far."""
LOCK = ".lock"
"""Ending of the lock beside the folder."""
PYTHON_SECONDS = 60.0
"""Time limit for a Python to state its version [s]."""
SHOWN_LINES = 6
"""Number of lines of pip's output in a message."""
WITHOUT_PIP = (
    "it has no module venv or ensurepip. On Debian and Ubuntu: apt install python3-venv; or give another Python by "
    "--python"
)


class VenvState(NamedTuple):
    """What is installed in a virtual environment."""

    digest: str
    """Digest of its recipe."""
    finished: int
    """Number of finished calls of pip."""
    steps: int
    """Number of calls of pip."""

    @property
    def complete(self) -> bool:
        """Whether all calls are finished."""
        return self.finished == self.steps


def create_venv(
    name: str,
    recipe: VenvRecipe,
    folder: Path,
    python: str,
    say: Callable[[str], None],
    *,
    again: bool = False,
) -> None:
    """Makes the virtual environment at `folder`, or what is missing of it.

    Args:
        name: name in messages.
        recipe: its packages.
        folder: its folder.
        python: path of the Python program that it is made from.
        say: prints one line of progress.
        again: whether a folder that exists is made anew.

    Raises:
        HandoffError: another version of Python, no venv or pip, too little space, another folder
            in its place, other packages in it, or an error of pip.
    """
    about = f"virtual environment {name}"
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        lock = WriterLock(folder.with_name(f".{folder.name}{LOCK}"))
    except HandoffError:
        raise HandoffError(
            f"{about}: another process is making it in {folder}. Wait for it, or end it."
        ) from None
    try:
        if again and folder.exists():
            _check_own(about, folder)
            remove_tree(folder)
        state = read_state(folder)
        digest = recipe_digest(recipe)
        if state is not None and state.digest != digest:
            raise HandoffError(
                f"{about}: {folder} was made from other packages. Make it anew: handoff envs create {name} --again"
            )
        if state is None:
            _make(about, recipe, folder, python, digest)
            say(f"made       {folder}")
        for number in range(0 if state is None else state.finished, len(recipe.install)):
            step = recipe.install[number]
            say(f"installing {number + 1} of {len(recipe.install)}: {len(step.packages)} packages")
            _install(about, folder, step)
            _write_state(folder, VenvState(digest, number + 1, len(recipe.install)))
    finally:
        lock.release()


def read_state(folder: Path) -> VenvState | None:
    """What is installed at `folder`; None if Handoff has made no virtual environment there."""
    try:
        values = json.loads((folder / STATE).read_text())
        return VenvState(str(values["digest"]), int(values["finished"]), int(values["steps"]))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def python_version(python: str) -> str:
    """Version of a Python program, such as 3.11.7.

    Raises:
        HandoffError: it is no Python.
    """
    code = "import sys; print('.'.join(map(str, sys.version_info[:3])))"
    try:
        answer = subprocess.run(
            [python, "-c", code],
            capture_output=True,
            text=True,
            timeout=PYTHON_SECONDS,
            check=True,
            env=_clean_variables(),
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise HandoffError(f"--python {python}: is no Python ({error}).") from None
    return answer.stdout.strip()


def _make(about: str, recipe: VenvRecipe, folder: Path, python: str, digest: str) -> None:
    from packaging.specifiers import SpecifierSet

    if folder.exists() and any(folder.iterdir()):
        _check_own(about, folder)
    version = python_version(python)
    if version not in SpecifierSet(recipe.python):
        raise HandoffError(
            f"{about}: {python} is Python {version}, it was tested with {recipe.python}. Give another one by --python."
        )
    free = shutil.disk_usage(folder.parent).free // 10**6
    if free < recipe.megabytes:
        raise HandoffError(
            f"{about}: {free} MB free in {folder.parent}, {recipe.megabytes} MB needed. Free some space, or set "
            "$HANDOFF_ENVS to another folder."
        )
    command = [python, "-m", "venv", "--clear", str(folder)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env=_clean_variables()
    )
    if done.returncode != 0 or not python_of(folder).exists():
        output = f"{done.stdout}{done.stderr}"
        missing = "ensurepip" in output or "No module named venv" in output
        reason = WITHOUT_PIP if missing else _last_lines(output)
        raise HandoffError(f"{about}: {python} made no virtual environment: {reason}.")
    _write_state(folder, VenvState(digest, 0, len(recipe.install)))


def _check_own(about: str, folder: Path) -> None:
    if not (folder / "pyvenv.cfg").exists():
        raise HandoffError(f"{about}: {folder} exists and is no virtual environment. Move it away.")


def _install(about: str, folder: Path, step: InstallStep) -> None:
    options = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    if not step.dependencies:
        options.append("--no-deps")
    if step.any_python:
        options.append("--ignore-requires-python")
    command = [str(python_of(folder)), "-m", "pip", "install", *options, *step.packages]
    done = subprocess.run(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        check=False,
        env=_clean_variables(),
    )
    if done.returncode != 0:
        raise HandoffError(
            f"{about}: {_pip_problem(done.stdout)} Run the command again to continue."
        )


def _pip_problem(output: str) -> str:
    """A sentence about why pip failed."""
    if "No space left on device" in output or "Disk quota exceeded" in output:
        return "the disk is full. Free some space, or set $HANDOFF_ENVS to another folder."
    if "No module named pip" in output:
        return f"no pip: {WITHOUT_PIP}."
    network = ("NewConnectionError", "Temporary failure in name resolution", "ReadTimeoutError")
    if any(sign in output for sign in network):
        return f"the package index cannot be reached: {_last_lines(output)}."
    return f"pip failed: {_last_lines(output)}."


def _last_lines(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return " | ".join((errors or lines)[-SHOWN_LINES:]).rstrip(".")


def _write_state(folder: Path, state: VenvState) -> None:
    write_atomically(folder / STATE, json.dumps(state._asdict()).encode())


def _clean_variables(names: Sequence[str] = ("PYTHONPATH", "PYTHONHOME")) -> dict[str, str]:
    """The environment variables, without those that add this Python's packages to another one."""
    return {name: value for name, value in os.environ.items() if name not in names}
