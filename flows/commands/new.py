"""Defines the commands `new recipe`, `new task` and `new stage`, which write commented files that
run as they are."""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from flows.commands.parameters import Debug
from robots.errors import HandoffError

TEMPLATES = Path(__file__).parent / "templates"
"""Folder of the templates; NAME in them stands for the name."""

NewName = Annotated[
    str, Parameter(name="NAME", help="Name of the new file, in small letters, digits and _.")
]


def new_recipe(name: NewName, /, *, debug: Debug = False) -> None:
    """Write NAME.yaml, a recipe that imitates a scripted expert and evaluates the policy.

    Examples:
        handoff new recipe my_recipe
    """
    file = write_template("recipe.yaml", name, ".yaml")
    _say(file, [f"handoff plan {file}", f"handoff run {file}"])


def new_task(name: NewName, /, *, debug: Debug = False) -> None:
    """Write NAME.py, a task of the arm: scene, start, observations, reward, success and expert.

    Examples:
        handoff new task my_task
    """
    file = write_template("task.txt", name, ".py")
    _say(
        file,
        [
            f"task: {file.stem}:task      in recipes and protocols",
            f"handoff console {file.stem}:task",
        ],
    )


def new_stage(name: NewName, /, *, debug: Debug = False) -> None:
    """Write NAME.py, a kind of stage that recipes use: it filters episodes.

    Examples:
        handoff new stage my_stage
    """
    file = write_template("stage.txt", name, ".py")
    _say(file, [f"uses: {file.stem}:run      in a recipe"])


def write_template(template: str, name: str, ending: str) -> Path:
    """Writes a template to the working directory; returns the file.

    Args:
        template: name of the template.
        name: name of the new file, with or without its ending.
        ending: ending of the new file, with its full stop.

    Raises:
        HandoffError: the name is no name of a module, it belongs to one, or the file exists.
    """
    stem = name.removesuffix(ending)
    if not re.fullmatch(r"[a-z][a-z0-9_]*", stem) or keyword.iskeyword(stem):
        raise HandoffError(
            f"new: '{name}', expected a name of small letters, digits and _, such as my_recipe."
        )
    file = Path(f"{stem}{ending}")
    if file.exists():
        raise HandoffError(f"new: {file} exists already. Choose another name, or remove it.")
    if ending == ".py" and (stem in sys.stdlib_module_names or find_spec(stem) is not None):
        raise HandoffError(f"new: there is a Python module {stem} already. Choose another name.")
    text = (TEMPLATES / template).read_text()
    file.write_text(re.sub(r"\bNAME\b", stem, text))
    return file


def _say(file: Path, following: Sequence[str]) -> None:
    from rich.console import Console

    lines = [f"wrote  {file}", *(f"  next  {line}" for line in following)]
    Console().print("\n".join(lines), highlight=False, soft_wrap=True, markup=False)
