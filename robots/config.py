"""Configuration: frozen dataclasses that refuse unknown keys by their path."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeVar, dataclass_transform, get_args, get_type_hints

from robots.errors import HandoffError

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """A frozen, keyword-only dataclass that refuses unknown keys when validated."""
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True)(cls)


def validate(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Builds the `cls` configuration from plain values.

    Args:
        cls: a class made with `@config`.
        values: plain nested mapping, as read from YAML, a command line or a Prefect parameter.
        path: where `values` stand in the whole configuration; it prefixes the error.

    Raises:
        HandoffError: every misspelt, missing or ill-typed key, each by its dotted path.
    """
    from pydantic import TypeAdapter, ValidationError

    try:
        return TypeAdapter(cls).validate_python(dict(values))
    except ValidationError as error:
        problems = [_explain(cls, path, item) for item in error.errors()]
        raise HandoffError("configuration: " + "; ".join(problems)) from None


def to_plain(value: Any) -> dict[str, Any]:
    """The JSON-ready mapping of a configuration; `validate` reads it back to an equal object."""
    from pydantic import TypeAdapter

    return TypeAdapter(type(value)).dump_python(value, mode="json")


def _explain(cls: type, path: str, item: Any) -> str:
    location = [str(part) for part in item["loc"]]
    where = ".".join([path, *location] if path else location)
    match item["type"]:
        case "unexpected_keyword_argument":
            known = _known_keys(cls, location[:-1])
            close = difflib.get_close_matches(location[-1], known, n=1)
            hint = f"did you mean '{close[0]}'?" if close else f"known keys: {', '.join(sorted(known))}"
            return f"unknown key '{where}', {hint}"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"missing key '{where}'"
        case _:
            return f"'{where}' is {item['input']!r}: {item['msg'].lower()}"


def _known_keys(cls: type, location: list[str]) -> list[str]:
    for part in location:
        hint = get_type_hints(cls).get(part)
        options = [hint, *get_args(hint)]
        cls = next((option for option in options if is_dataclass(option)), cls)  # type: ignore[assignment]
    return [field.name for field in fields(cls)] if is_dataclass(cls) else []
