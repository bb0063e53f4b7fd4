"""Defines configuration classes: frozen dataclasses whose validation rejects unknown keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from types import UnionType
from typing import (
    Annotated,
    Any,
    TypeVar,
    Union,
    dataclass_transform,
    get_args,
    get_origin,
    get_type_hints,
)

from robots.errors import HandoffError, suggest

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, keyword-only dataclass whose validation rejects unknown keys."""
    cls.__pydantic_config__ = {"extra": "forbid"}  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True)(cls)


def validate(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Builds a configuration of class `cls` from plain values.

    Args:
        cls: a class made with `@config`.
        values: plain nested mapping, as read from YAML, a command line or a Prefect parameter.
        path: dotted path of `values` in the whole configuration, which prefixes keys in errors.

    Raises:
        HandoffError: misspelt, missing or ill-typed keys; the message lists all of them by path.
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


def key_paths(cls: type) -> list[str]:
    """Dotted paths of all keys of `cls`, including those of every class in a union.

    Args:
        cls: a class made with `@config`.
    """
    return list(dict.fromkeys(_key_paths(cls, "")))


def classes_of(hint: Any) -> tuple[type, ...]:
    """The configuration classes that a field with the type `hint` may hold: one, or a union's."""
    options = get_args(hint) if get_origin(hint) in (Annotated, Union, UnionType) else ()
    if options:
        return tuple(cls for option in options for cls in classes_of(option))
    return (hint,) if isinstance(hint, type) and is_dataclass(hint) else ()


def _key_paths(cls: type, prefix: str) -> Iterator[str]:
    hints = get_type_hints(cls)
    for field in fields(cls):
        yield prefix + field.name
        for option in classes_of(hints[field.name]):
            yield from _key_paths(option, f"{prefix}{field.name}.")


def _explain(cls: type, path: str, item: Any) -> str:
    location, owner = _locate(cls, [str(part) for part in item["loc"]])
    where = ".".join([path, *location] if path else location)
    match item["type"]:
        case "unexpected_keyword_argument":
            known = sorted(field.name for field in fields(owner)) if is_dataclass(owner) else []
            return f"unknown key '{where}', {suggest(location[-1], known, 'known keys:')}"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"missing key '{where}'"
        case _:
            return f"'{where}' is {item['input']!r}: {item['msg'].lower()}"


def _locate(cls: type, location: list[str]) -> tuple[list[str], type]:
    """`location` without the tags that pydantic inserts for unions, and the class of its last
    key."""
    path, options = [], [cls]
    for part in location[:-1]:
        tagged = [
            option
            for option in options
            if len(options) > 1 and getattr(option, "kind", None) == part
        ]
        if tagged:
            options = tagged
            continue
        path.append(part)
        hint = get_type_hints(options[0]).get(part)
        options = [option for option in (hint, *get_args(hint)) if is_dataclass(option)] or options
    return [*path, *location[-1:]], options[0]  # type: ignore[return-value]
