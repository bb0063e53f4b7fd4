"""Finds what packages outside Handoff provide: tasks, robots, policy families, dataset formats and
stages, by dotted path or by the name of an entry point.

A dotted path is that of a module (`my_lab.tasks.wipe`), whose member has the name that its kind
prescribes, or of a member (`my_lab.tasks:wipe`, `my_lab.tasks.wipe`).
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from robots.errors import HandoffError, suggest

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema

STAGES = "handoff.stages"
TASKS = "handoff.tasks"
ROBOTS = "handoff.robots"
FAMILIES = "handoff.families"
FORMATS = "handoff.formats"
GROUPS = (STAGES, TASKS, ROBOTS, FAMILIES, FORMATS)
"""Groups of entry points with which installed packages name what they provide."""
OWN = ("flows", "robots", "policies", "sim", "real", "configs")
"""Packages of Handoff."""
DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)+(:[A-Za-z_]\w*)?|[A-Za-z_]\w*:[A-Za-z_]\w*")
"""Form of a dotted path."""


class KnownName:
    """Annotation of a name in configurations: one of Handoff's, the dotted path of something
    outside, or an entry point.

    Args:
        names: Handoff's own names.
        group: group of entry points.
        what: noun for the thing in errors.
    """

    def __init__(self, names: Sequence[str], group: str, what: str) -> None:
        self.names = names
        self._group = group
        self._what = what

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        return core_schema.no_info_after_validator_function(self._known, handler(source))

    def _known(self, name: str) -> str:
        if name not in self.names and outside_target(name, self._group) is None:
            from pydantic_core import PydanticCustomError

            hint = suggest(name, self.names, "expected")
            message = f"{hint} (or the dotted path of a {self._what} of your own)"
            raise PydanticCustomError(self._what, message)  # type: ignore[arg-type]
        return name


@cache
def entry_targets(group: str) -> Mapping[str, str]:
    """Dotted paths of the entry points of a group, by name."""
    from importlib.metadata import entry_points

    return {entry.name: entry.value for entry in entry_points(group=group)}


def outside_target(name: str, group: str) -> str | None:
    """The dotted path of something outside Handoff: `name` itself, or that of the entry point with
    this name; None if it is neither.

    Args:
        name: a value in a configuration.
        group: group of entry points.
    """
    target = entry_targets(group).get(name)
    if target is not None:
        return target
    return name if DOTTED.fullmatch(name) else None


def find_outside(target: str, member: str, about: str, what: str = "member") -> Any:
    """Imports a member of a module outside Handoff.

    Args:
        target: dotted path of the module or of the member.
        member: name of the member if `target` is a module; empty if `target` must name it.
        about: beginning of errors: who names the target.
        what: noun for the member in errors.

    Raises:
        HandoffError: there is no such module, or it has no such member.
    """
    module, named = split_target(target)
    imported = import_outside(module, about)
    if not (named or member):
        raise HandoffError(f"{about}: is a module, expected a {what} of it: {target}:NAME.")
    found = getattr(imported, named or member, None)
    if found is None:
        raise HandoffError(f"{about}: the module {module} has no {what} {named or member}.")
    return found


def split_target(target: str) -> tuple[str, str]:
    """The module of a dotted path, and the member that it names; empty for a module."""
    module, colon, name = target.partition(":")
    if colon or _is_module(module):
        return module, name
    parent, _, last = module.rpartition(".")
    return (parent, last) if parent and _is_module(parent) else (module, "")


def outside_module(target: str) -> str | None:
    """The module of a dotted path if it exists and is not one of Handoff's; None otherwise."""
    if not DOTTED.fullmatch(target) or target.partition(".")[0].partition(":")[0] in OWN:
        return None
    module, _ = split_target(target)
    return module if _is_module(module) else None


def import_outside(module: str, about: str) -> ModuleType:
    """Imports a module of an installed package, of the working directory, or of a place that was
    added.

    Args:
        module: dotted name of the module.
        about: beginning of the error: who names the module.

    Raises:
        HandoffError: there is no such module.
    """
    add_place(Path.cwd())
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        missing = error.name or module
        if module != missing and not module.startswith(missing + "."):
            raise
        raise HandoffError(
            f"{about}: there is no module {missing}. It must be installed, or lie beside the recipe "
            f"or in the working directory {Path.cwd()}."
        ) from None


def add_place(folder: Path) -> None:
    """Adds a folder in which modules outside Handoff are found, after all others; spawned processes
    inherit it."""
    place = str(folder.resolve())
    if place not in sys.path:
        sys.path.append(place)


def _is_module(name: str) -> bool:
    """Whether there is a module of that name; neither it nor the packages around it are imported,
    since an option that only looks like a dotted path, such as `towel.zarr`, must run nothing."""
    add_place(Path.cwd())
    if name in sys.modules:
        return True
    parts = name.split(".")
    try:
        spec = find_spec(parts[0])
        for end in range(2, len(parts) + 1):
            if spec is None or spec.submodule_search_locations is None:
                return False
            inside = list(spec.submodule_search_locations)
            spec = PathFinder.find_spec(".".join(parts[:end]), inside)
    except (ModuleNotFoundError, ValueError):
        return False
    return spec is not None
