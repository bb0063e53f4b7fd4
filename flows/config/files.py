"""Finds YAML files and reads them: recipes, and named options in the folders of `configs/`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from copy import deepcopy
from functools import lru_cache
from io import StringIO
from pathlib import Path
from typing import Any

import configs
from robots.config import yaml_problem
from robots.errors import HandoffError, suggest

CONFIGS = Path(configs.__path__[0])
"""Folder of the recipes and named options that Handoff ships."""
ENDINGS = (".yaml", ".yml")


def available(group: str = "", folders: Sequence[Path] = ()) -> list[str]:
    """Names of the files in `configs/<group>/` and in `group` below other folders; without a group,
    the names of the recipes."""
    places = [CONFIGS, *folders]
    return sorted({file.stem for place in places for file in (place / group).glob("*.yaml")})


def recipes() -> list[str]:
    """Names of the recipes that Handoff ships, those of correction sessions as `hil/NAME`; files
    that other recipes extend and that are no recipes themselves begin with an underscore."""
    names = [*available(), *(f"hil/{name}" for name in available("hil"))]
    return [name for name in names if not name.rpartition("/")[2].startswith("_")]


def hil_recipe(task: str) -> str:
    """Returns the recipe of a correction session: `hil/TASK`, or the path that is `task`."""
    return task if task.endswith(ENDINGS) else f"hil/{task}"


def find_file(name: str, folders: Sequence[Path] = ()) -> Path:
    """Returns the path of a recipe.

    Args:
        name: a file in `configs/` without its ending, or the path of a YAML file.
        folders: folders that are searched before `configs/`.

    Raises:
        HandoffError: no such file.
    """
    path = Path(name)
    if path.suffix in ENDINGS:
        if path.is_file():
            return path
        raise HandoffError(f"recipe {path} does not exist. Is it relative to another folder?")
    for folder in (*folders, CONFIGS):
        file = folder / f"{name}.yaml"
        if file.is_file():
            return file
    beside = next(
        (f"{name}{ending}" for ending in ENDINGS if Path(f"{name}{ending}").is_file()), ""
    )
    if beside:
        raise HandoffError(
            f"recipe '{name}' does not exist in configs/. A file of your own is named with its ending: {beside}"
        )
    raise HandoffError(f"recipe '{name}' does not exist, {suggest(name, recipes())}")


def read_options(group: str, name: str, folders: Sequence[Path], where: str) -> dict[str, Any]:
    """Reads a file of named options.

    Args:
        group: folder of such files, e.g. `protocol`.
        name: a file in that folder without its ending, or the path of a YAML file.
        folders: folders that may hold a folder `group`, in the order of the search.
        where: the key that names the option, for messages.

    Raises:
        HandoffError: no such file, or its content is not a mapping.
    """
    if name.endswith(ENDINGS):
        for path in (Path(name), *(folder / name for folder in folders)):
            if path.is_file():
                return read_yaml(path, group)
        raise HandoffError(f"{group or where} {name} does not exist.")
    if group:
        for folder in folders:
            file = folder / group / f"{name}.yaml"
            if file.is_file():
                return read_yaml(file, group)
    known = available(group, folders) if group else []
    if not known:
        raise HandoffError(
            f"'{where}' is '{name}', expected keys and values: there are no named options in a "
            f"folder '{group}'."
        )
    raise HandoffError(f"{group} '{name}' does not exist, {suggest(name, known)}")


def read_yaml(path: Path, about: str = "") -> dict[str, Any]:
    """Reads a YAML file whose content is a mapping; interpolations are kept as they are.

    Raises:
        HandoffError: no such file, not YAML (a repeated key included), or not a mapping.
    """
    import yaml
    from omegaconf.errors import OmegaConfBaseException

    label = f"{about} {path}".strip()
    try:
        content = _parsed(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise HandoffError(f"{label}: no such file. Is it relative to another folder?") from None
    except OSError as error:
        raise HandoffError(f"{label}: cannot be read ({error.strerror}).") from None
    except (yaml.YAMLError, UnicodeDecodeError, OmegaConfBaseException) as error:
        raise HandoffError(f"{label}: not YAML ({yaml_problem(error)}).") from None
    if not isinstance(content, dict):
        raise HandoffError(f"{label}: holds a list, expected keys and values.")
    # The caller may change its values.
    return {str(key): deepcopy(value) for key, value in content.items()}


@lru_cache(maxsize=256)
def _parsed(text: str) -> Any:
    """The content of a YAML file. A recipe of 60 stages reads some files of named options 30 times,
    and parsing them takes most of the time of its plan."""
    from omegaconf import OmegaConf

    return OmegaConf.to_container(OmegaConf.load(StringIO(text)), resolve=False)


def first_comment(file: Path) -> str:
    """Returns the first sentence of the comment at the top of a file."""
    lines: list[str] = []
    for line in file.read_text().splitlines():
        if not line.startswith("#"):
            break
        lines.append(line.lstrip("# "))
    return first_sentence(" ".join(lines))


def first_sentence(text: str) -> str:
    """Returns the first sentence of a text, without its full stop."""
    plain = " ".join(text.split("\n\n")[0].split()).replace("`", "")
    return re.split(r"(?<=[^.][^.])\.(?= [A-Z]|$)", plain, maxsplit=1)[0]
