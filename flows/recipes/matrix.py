"""Replaces `${matrix:KEY}` in the options of a copy of a stage by the copy's value for the key."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from flows.recipes.recipe import MATRIX_MARK
from robots.errors import HandoffError, suggest


@dataclass(frozen=True)
class Choice:
    """The value that a copy of a stage has for one key of a matrix, or one stage of a list."""

    label: str
    """Part of the copy's name."""
    value: Any


Binding = Mapping[str, Choice]
"""Choices of a copy, by the key of the matrix or by the input."""


def refers(options: Mapping[str, Any], key: str) -> bool:
    """Whether any option has `${matrix:KEY}`, or an entry of it."""
    written = repr(options).replace("\\x00", MATRIX_MARK)
    return any(f"{MATRIX_MARK}{key}{end}" in written for end in (MATRIX_MARK, "."))


def substituted(name: str, value: Any, binding: Binding) -> Any:
    """The value with every `${matrix:KEY}` replaced by the copy's value, or by an entry of it.

    Args:
        name: name of the stage, for messages.
        value: options as read from the recipe.
        binding: choices of the copy.

    Raises:
        HandoffError: a key that the copy has no choice for, or an entry that its value lacks.
    """
    if isinstance(value, Mapping):
        return {key: substituted(name, entry, binding) for key, entry in value.items()}
    if isinstance(value, list):
        return [substituted(name, entry, binding) for entry in value]
    if not isinstance(value, str) or MATRIX_MARK not in value:
        return value
    parts = value.split(MATRIX_MARK)
    if len(parts) == 3 and not parts[0] and not parts[2]:
        return deepcopy(_chosen(name, parts[1], binding))
    return "".join(
        str(_chosen(name, part, binding)) if number % 2 else part
        for number, part in enumerate(parts)
    )


def _chosen(name: str, key: str, binding: Binding) -> Any:
    """The copy's value for a key, or an entry of the value: `skill.task` of `skill`.

    Raises:
        HandoffError: there is no such key or entry.
    """
    if key in binding:
        return binding[key].value
    outer, _, inner = key.rpartition(".")
    if not outer or not any(key.startswith(f"{known}.") for known in binding):
        known = [entry for entry in binding if "." not in entry]
        raise HandoffError(
            f"stage {name}: ${{matrix:{key}}}, but neither the stage nor its inputs have a "
            f"matrix with this key; {suggest(key.partition('.')[0], known)}"
        )
    value = _chosen(name, outer, binding)
    if not isinstance(value, Mapping) or inner not in value:
        entries = suggest(inner, sorted(value)) if isinstance(value, Mapping) else "it has none"
        raise HandoffError(
            f"stage {name}: ${{matrix:{key}}}, but the copy's {outer} has no entry '{inner}', {entries}"
        )
    return value[inner]
