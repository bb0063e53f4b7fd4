"""Virtual environments of `configs/envs` for tests, made once per process."""

from __future__ import annotations

import atexit
import shutil
import sys
from functools import cache
from pathlib import Path
from tempfile import mkdtemp


@cache
def venv_folder(name: str) -> Path:
    """Folder of a virtual environment: that of `$HANDOFF_ENVS` if it is ready, else a new one, made
    from the package index."""
    from flows.virtual_envs.create import create_venv, read_state
    from flows.virtual_envs.recipe import read_venv_recipe, recipe_digest
    from sim.servers.venvs import venvs_folder

    recipe = read_venv_recipe(name)
    state = read_state(venvs_folder() / name)
    if state is not None and state.complete and state.digest == recipe_digest(recipe):
        return venvs_folder() / name
    folder = Path(mkdtemp(prefix=f"handoff-{name}-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    create_venv(name, recipe, folder / name, sys.executable, lambda line: None)
    return folder / name
