"""Finds the Python of an environment server."""

from __future__ import annotations

import os
from pathlib import Path

from robots.errors import HandoffError, suggest
from sim.servers.config import ServerConfig

ENVS_VARIABLE = "HANDOFF_ENVS"
"""Environment variable with the folder of the virtual environments."""


def venvs_folder() -> Path:
    """The folder of the virtual environments: `$HANDOFF_ENVS`, or `handoff/envs` in
    `$XDG_DATA_HOME`, by default `~/.local/share`."""
    if os.environ.get(ENVS_VARIABLE):
        return Path(os.environ[ENVS_VARIABLE]).expanduser()
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "handoff" / "envs"


def venv_names() -> list[str]:
    """Names of the virtual environments in their folder."""
    return sorted(file.parent.name for file in venvs_folder().glob("*/pyvenv.cfg"))


def python_of(folder: Path) -> Path:
    """The Python program of a virtual environment."""
    return folder / "bin" / "python"


def check_place(config: ServerConfig) -> None:
    """Checks that a configuration names one place of the server.

    Raises:
        HandoffError: none, or several, or environment variables of another machine.
    """
    named = [name for name in ("venv", "python", "address") if getattr(config, name)]
    if len(named) != 1:
        raise HandoffError(
            f"environment server: server states {named or 'no place'}, expected exactly one of venv, python and "
            "address."
        )
    if config.address and config.variables:
        raise HandoffError(
            "environment server: server.variables is for servers of this machine. Set the variables where "
            "`python -m sim.servers.listen` is started."
        )


def server_python(config: ServerConfig) -> str:
    """Path of the Python program that runs a server on this machine.

    Raises:
        HandoffError: there is no such virtual environment or program.
    """
    if config.python:
        python = Path(config.python).expanduser()
        if not os.access(python, os.X_OK) or python.is_dir():
            raise HandoffError(
                f"server.python: {config.python} is no program. Give the path of a Python, or a venv."
            )
        # The name of a program, not the file behind it, decides which packages it has.
        return str(python.absolute())
    folder = Path(config.venv).expanduser()
    if len(folder.parts) == 1:
        folder = venvs_folder() / config.venv
    python = python_of(folder)
    if not python.exists():
        hint = suggest(config.venv, venv_names(), "there are") if venv_names() else "there is none"
        raise HandoffError(
            f"server.venv: no virtual environment '{config.venv}' in {folder.parent}, {hint}. Make it: handoff envs "
            f"create {folder.name}"
        )
    return str(python)
