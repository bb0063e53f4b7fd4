"""Finds the modules outside Handoff that the options of a stage name: their code decides the result
as well."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from robots.code_version import code_version
from robots.outside import FAMILIES, FORMATS, ROBOTS, TASKS, entry_targets, outside_module

GROUPS = (TASKS, ROBOTS, FAMILIES, FORMATS)
"""Groups whose entry points options name."""


def outside_code(options: Any) -> dict[str, str]:
    """Returns the version of the code of every module outside Handoff that options name, by dotted
    path or entry point, or whose classes they are objects of.

    Args:
        options: an object of a configuration class.
    """
    modules = {module for module in _modules(options) if module is not None}
    return {module: code_version(module) for module in sorted(modules)}


def _modules(value: Any) -> Iterator[str | None]:
    if isinstance(value, str):
        yield from _named(value)
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from _modules(entry)
    elif isinstance(value, list | tuple | set | frozenset):
        for entry in value:
            yield from _modules(entry)
    elif is_dataclass(value) and not isinstance(value, type):
        yield outside_module(f"{type(value).__module__}:{type(value).__name__}")
        # The policy class of a family outside Handoff.
        yield from _named(getattr(value, "family", ""))
        for entry in fields(value):
            yield from _modules(getattr(value, entry.name))


def _named(text: Any) -> Iterator[str | None]:
    if not isinstance(text, str) or os.path.exists(text):
        # A file or folder is data, also where a script beside it has the first part of its name.
        return
    yield outside_module(text)
    for group in GROUPS:
        target = entry_targets(group).get(text)
        if target is not None:
            yield outside_module(target)
