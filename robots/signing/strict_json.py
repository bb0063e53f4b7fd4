"""Parses JSON that comes from outside: duplicate keys, unknown keys and other types are refused."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any, Never, TypeVar

from robots.errors import HandoffError

T = TypeVar("T")


def parse(data: bytes, where: str) -> Any:
    """Parses UTF-8 JSON.

    Args:
        data: the text.
        where: what it is, for the message of an error.

    Raises:
        HandoffError: not UTF-8, not JSON, a key twice in one map, or a number that is not finite.
    """
    try:
        return json.loads(
            data.decode(), object_pairs_hook=_unique_keys, parse_constant=_refuse_constant
        )
    except (ValueError, RecursionError) as error:
        raise HandoffError(f"{where} is not valid JSON ({error!s:.80}).") from None


def expect_map(
    value: Any, required: Collection[str], optional: Collection[str], where: str
) -> dict[str, Any]:
    """Returns a map with all required keys and no others than the optional ones.

    Raises:
        HandoffError: another type, a missing or an unknown key.
    """
    table = expect(value, dict, where)
    missing = sorted(set(required) - table.keys())
    unknown = sorted(table.keys() - set(required) - set(optional))
    if missing:
        raise HandoffError(f"{where} has no '{missing[0]}'.")
    if unknown:
        raise HandoffError(f"{where} has the unknown key {unknown[0]!r:.40}.")
    return table


def expect(value: Any, kind: type[T], where: str) -> T:
    """Returns a value of the given type.

    Raises:
        HandoffError: another type.
    """
    if not isinstance(value, kind):
        raise HandoffError(f"{where} is a {type(value).__name__}, expected a {kind.__name__}.")
    return value


def expect_text(value: Any, allowed: Sequence[str], where: str) -> str:
    """Returns a text that is one of those allowed.

    Raises:
        HandoffError: another one.
    """
    if value not in allowed:
        raise HandoffError(f"{where} is {value!r:.80}, expected {' or '.join(map(repr, allowed))}.")
    return expect(value, str, where)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key occurs twice in one map")
    return table


def _refuse_constant(name: str) -> Never:
    raise ValueError(f"the number {name}")
