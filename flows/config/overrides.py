"""Applies overrides of the command line, `key=value` in Hydra's grammar, to plain values."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from robots.errors import HandoffError

EXAMPLE = "teacher.training.steps=2000"


@dataclass(frozen=True)
class Override:
    """One override."""

    keys: tuple[str, ...]
    """Segments of the dotted key."""
    value: Any
    deletes: bool = False
    """Whether the key is removed (`~key`)."""
    text: str = ""
    """The override as it was given."""


def parse_overrides(overrides: Sequence[str]) -> list[Override]:
    """Parses overrides: `key=value`, `~key`.

    Raises:
        HandoffError: no `=`, or a value that is not in Hydra's grammar.
    """
    if not overrides:
        return []
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    parser = OverridesParser.create()
    parsed: list[Override] = []
    for text in overrides:
        if text.startswith("~"):
            parsed.append(Override(_keys(text[1:]), None, deletes=True, text=text))
            continue
        key, equals, value = text.partition("=")
        if not equals:
            raise HandoffError(f"override '{text}' has no '='. Write key=value, e.g. {EXAMPLE}.")
        # Names of copies, such as `scores@teacher`, are not in Hydra's grammar of keys.
        try:
            (entry,) = parser.parse_overrides([f"key={value}"])
        except HydraException as error:
            reason = str(error).splitlines()[0]
            if "LexerNoViableAlt" in reason:
                reason = f'the value has characters that must be quoted, "{key}={quoted(value)}".'
            raise HandoffError(f"override '{text}': {reason}") from None
        if entry.is_sweep_override():
            raise HandoffError(
                f"override '{text}' has several values. Write a list in the recipe's matrix, e.g. "
                "matrix: {seed: [0, 1]}."
            )
        parsed.append(Override(_keys(key.lstrip("+")), entry.value(), text=text))
    return parsed


def arm_overrides(arm: str | None) -> list[str]:
    """The argument `--arm ADDRESS` as overrides of a session's options; without it the session
    starts a simulated arm.

    Raises:
        HandoffError: an empty address, such as that of a variable which is not set: a simulated arm
            would move in place of the one that is meant.
    """
    if arm is None:
        return []
    if not arm.strip():
        raise HandoffError(
            "--arm is empty, expected an address such as 172.16.0.2. Is a variable of the shell not set?"
        )
    return [f"host={quoted(arm)}"]


def quoted(text: object) -> str:
    """A value as it stands in an override, whatever its characters."""
    # Hydra takes a backslash for itself unless it stands before a quotation mark.
    escaped = re.sub(r"(\\*)'", r"\1\1\\'", str(text))
    return "'" + re.sub(r"(\\+)$", r"\1\1", escaped) + "'"


def kind_hint(overrides: Sequence[str], refused: str) -> str:
    """What to write instead of an override that changes the kind of a block, where the block's
    other options are refused; empty where none does.

    Args:
        overrides: as they were given.
        refused: the error, which names a key.
    """
    for override in parse_overrides(overrides):
        *block, last = override.keys
        if last != "kind" or f"unknown key '{'.'.join(block)}." not in refused:
            continue
        path = ".".join(block)
        return (
            f". The override {override.text} keeps the recipe's other options of {path}, which are those of another "
            f"kind; to leave them out: '{path}={{kind: {override.value}}}'"
        )
    return ""


def set_value(values: dict[str, Any], keys: Sequence[str], value: Any) -> None:
    """Sets a nested value in place; a named option on the way becomes a block that uses it."""
    for key in keys[:-1]:
        inner = values.get(key)
        if isinstance(inner, str):
            inner = {"uses": inner}
        elif not isinstance(inner, dict):
            inner = {}
        values[key] = inner
        values = inner
    values[keys[-1]] = value


def _keys(key: str) -> tuple[str, ...]:
    return tuple(key.strip().split("."))
