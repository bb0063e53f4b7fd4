"""Checks whether recipes resolve: files, wiring, names and options, as `handoff plan` would.

Recipes are resolved in processes of their own, because one may import stages that lie beside it,
and because forty of them take seconds.
"""

from __future__ import annotations

import gc
import os
import re
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

from flows.config.files import CONFIGS, read_yaml
from flows.config.files import recipes as shipped_recipes
from flows.doctor.check import Check
from robots.errors import HandoffError, describe
from robots.processes import Child, end

MOST_PROCESSES = 4
"""Maximum number of processes that resolve recipes."""
START_SECONDS = 30.0
"""Time limit for the first recipe, which includes the start of the processes [s]."""
BUDGET_SECONDS = 2.5
"""Time for the other recipes [s], so that all checks together take less than ten seconds."""
STAGES = re.compile(r"^stages\s*:", re.MULTILINE)
"""Key of a recipe, for files that are not YAML."""


def check_recipes(folder: Path | None = None, seconds: float = BUDGET_SECONDS) -> list[Check]:
    """Checks the recipes in a folder and those that Handoff ships.

    Args:
        folder: folder whose files `*.yaml` are checked if they are recipes; None takes the current
            one.
        seconds: time after the first recipe, at whose end the remaining ones are left out [s].
    """
    own = [str(file) for file in recipe_files(Path() if folder is None else folder)]
    shipped = shipped_recipes()
    # What a person is writing is looked at first.
    errors = resolved([*own, *shipped], seconds)
    checks = [_rated("recipes here", own, errors)] if own else []
    return [*checks, _rated("shipped recipes", shipped, errors)]


def recipe_files(folder: Path) -> list[Path]:
    """Returns the recipes in a folder: files `*.yaml` with a mapping `stages`, or with a line
    `stages:` if they are not YAML. Files that begin with an underscore are extended by others."""
    if folder.resolve() == CONFIGS.resolve():
        return []
    files = sorted(file for file in folder.glob("*.yaml") if not file.name.startswith("_"))
    return [file for file in files if _is_recipe(file)]


def resolved(names: Sequence[str], seconds: float) -> Mapping[str, str | None]:
    """Returns the error of each recipe that was reached in time, None for one that resolves.

    Args:
        names: names or paths of recipes.
        seconds: time for recipes behind the first one [s].
    """
    number = max(1, min(MOST_PROCESSES, os.cpu_count() or 1, len(names)))
    parts = [names[index::number] for index in range(number)]
    children: list[Child] = []
    errors: dict[str, str | None] = {}
    try:
        for index, part in enumerate(parts):
            children.append(Child(f"handoff-recipes-{index}", _resolve, (part,), daemon=True))
        unfinished = list(children)
        left = START_SECONDS
        deadline = None
        while unfinished and left > 0.0:
            ready = wait([child.pipe for child in unfinished], left)
            if not ready:
                break
            for child in [child for child in unfinished if child.pipe in ready]:
                message = child.receive()
                if message is None:
                    unfinished.remove(child)
                else:
                    errors[message[0]] = message[1]
            deadline = time.monotonic() + seconds if deadline is None else deadline
            left = deadline - time.monotonic()
    finally:
        end([child.process for child in children])
    return errors


def _is_recipe(file: Path) -> bool:
    try:
        return isinstance(read_yaml(file).get("stages"), Mapping)
    except HandoffError:
        return STAGES.search(file.read_text(errors="replace")) is not None


def _resolve(names: Sequence[str], pipe: Connection) -> None:
    """Sends each recipe with its error, None without one; at the end None."""
    from flows.recipes.graph import stages
    from flows.recipes.recipe import read_recipe

    # Options are objects without circles, and a collection looks at all of them every time.
    gc.disable()
    for name in names:
        try:
            stages(read_recipe(name), fetch=None)
        except Exception as error:  # noqa: BLE001  code beside a recipe may raise anything
            pipe.send((name, describe(error)))
        else:
            pipe.send((name, None))
    pipe.send(None)


def _rated(name: str, recipes: Sequence[str], errors: Mapping[str, str | None]) -> Check:
    """Rates the recipes that were reached."""
    reached = [recipe for recipe in recipes if recipe in errors]
    broken = [recipe for recipe in reached if errors[recipe] is not None]
    rest = "" if reached == list(recipes) else "; there was no time for the others"
    if broken:
        first = broken[0]
        found = f"{len(broken)} of {len(recipes)} do not resolve{rest}; {first}: {errors[first]}"
        return Check(name, "failed", found, f"`handoff plan {first}` checks it again.")
    found = f"{len(reached)} of {len(recipes)} resolve{rest}"
    return Check(name, "not checked" if rest else "ok", found)
