"""Replaces `${matrix:KEY}` in the options of a copy of a stage by the copy's value for the key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
    return any(f"{MATRIX_MARK}{key}{end}" in _written(options) for end in (MATRIX_MARK, "."))


def check_entries(
    name: str, key: str, values: Mapping[str, Any], options: Sequence[Mapping[str, Any]]
) -> None:
    """Checks that no table among the values of a key has an entry that nothing reads and that the
    other values lack, which is one that was misspelt. An entry of all of them may be read by a
    stage that was removed.

    Args:
        name: name of the stage with the matrix, for messages.
        key: the key, which is no option of the stage.
        values: its values, by label.
        options: options of all stages of the recipe.

    Raises:
        HandoffError: there is such an entry.
    """
    tables = {label: value for label, value in values.items() if isinstance(value, Mapping)}
    whole = f"{MATRIX_MARK}{key}{MATRIX_MARK}"
    if any(whole in _written(each) for each in options):
        return
    for label, table in tables.items():
        for entry in table:
            read = any(refers(each, f"{key}.{entry}") for each in options)
            if not read and any(entry not in other for other in tables.values()):
                known = sorted(set().union(*tables.values()) - {entry})
                raise HandoffError(
                    f"stage {name}: matrix.{key}.{label} has the entry '{entry}', which nothing reads by "
                    f"${{matrix:{key}.{entry}}}; {suggest(entry, known)}"
                )


def _written(options: Mapping[str, Any]) -> str:
    """The options as text, with the marks of references."""
    return repr(options).replace("\\x00", MATRIX_MARK)


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
    if not isinstance(value, Mapping):
        raise HandoffError(
            f"stage {name}: ${{matrix:{key}}}, but the copy's {outer} is {value!r} and no table, so it has no entry "
            f"'{inner}'. To leave a copy out, remove its value: ~STAGE.matrix.{outer}.LABEL"
        )
    if inner not in value:
        raise HandoffError(
            f"stage {name}: ${{matrix:{key}}}, but the copy's {outer} has no entry '{inner}', "
            f"{suggest(inner, sorted(value))}"
        )
    return value[inner]
