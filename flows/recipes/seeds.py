"""Shifts the seeds of a stage's options."""

from __future__ import annotations

from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from robots.seed_ranges import SESSION_SPACING
from sim.evaluation.protocol import Protocol

T = TypeVar("T")


def reseeded(options: T, shift: int) -> T:
    """Returns the options with shifted seeds.

    Every `seed` rises by `shift`, every `first_seed` by `shift` times `SESSION_SPACING`, so that
    two seeds share neither weights nor starts. Protocols keep theirs: policies of all seeds are
    evaluated from the same starts.

    Args:
        options: an object of a configuration class.
        shift: the seed of the recipe or of a matrix, 0 or more.
    """
    if shift == 0:
        return options
    return _shifted(options, shift)


def _shifted(value: Any, shift: int) -> Any:
    if isinstance(value, tuple):
        return tuple(_shifted(entry, shift) for entry in value)
    if not is_dataclass(value) or isinstance(value, type | Protocol):
        return value
    changed: dict[str, Any] = {}
    for entry in fields(value):
        old = getattr(value, entry.name)
        if isinstance(old, int) and not isinstance(old, bool):
            step = {"seed": shift, "first_seed": shift * SESSION_SPACING}.get(entry.name, 0)
            new: Any = old + step
        else:
            new = _shifted(old, shift)
        if new is not old and new != old:
            changed[entry.name] = new
    return replace(value, **changed) if changed else value
