"""Describes options from the configuration classes: type, default and meaning of each."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

from flows.config.options import KIND
from robots.config import LARGEST, MOST_SEEDS, classes_of

BOUNDS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
SCALARS = {int: "integer", float: "number", str: "text", Any: "anything"}


class Style(NamedTuple):
    """How a value and the name of a class are written."""

    code: Callable[[str], str]
    link: Callable[[type], str]


PLAIN = Style(str, lambda cls: f"options of {cls.__name__}")
"""As in a terminal."""


class OptionRow(NamedTuple):
    """An option."""

    name: str
    type: str
    default: str
    meaning: str


def option_rows(cls: type, style: Style = PLAIN, values: Any = None) -> Iterator[OptionRow]:
    """Yields the options of a configuration class, without those of the classes inside it.

    Args:
        cls: the class.
        style: how values and names of classes are written.
        values: an object of the class, whose values are then the defaults.
    """
    hints = get_type_hints(cls, include_extras=True)
    texts = descriptions(cls)
    for field in fields(cls):
        hint = hints[field.name]
        text = texts.get(field.name, "")
        if not text and _is_tag(hint):
            text = "Chooses this class."
        value = _value(field) if values is None else getattr(values, field.name)
        yield OptionRow(field.name, _type(hint, style), _default(value, style), text)


def nested_option_rows(cls: type, path: str = "", values: Any = None) -> Iterator[OptionRow]:
    """Yields the options of a class and of those inside it, each by its path, e.g.
    `training.steps`; the options of a class that is chosen by its kind stand behind
    `algorithm (kind: iql)`.

    Args:
        cls: a configuration class.
        path: path of the class; empty for the outermost one.
        values: see `option_rows`.
    """
    hints = get_type_hints(cls)
    usual = {field.name: _value(field) for field in fields(cls)}
    for row in option_rows(cls, values=values):
        inside = classes_of(hints[row.name])
        name = f"{path}{row.name}"
        if not inside:
            if row.name != KIND:
                yield row._replace(name=name)
            continue
        kinds = [str(getattr(each, KIND)) for each in inside if hasattr(each, KIND)]
        kind = f"{KIND}: {', '.join(kinds)}" if kinds else "options below"
        yield row._replace(name=name, type=kind)
        for each in inside:
            chosen = f" ({KIND}: {getattr(each, KIND)})" if len(inside) > 1 and kinds else ""
            held = usual[row.name] if values is None else getattr(values, row.name)
            stated = held if type(held) is each else None
            yield from nested_option_rows(each, f"{name}{chosen}.", stated)


def descriptions(cls: type) -> dict[str, str]:
    """Returns the docstrings of the attributes of a class and its bases, each on one line."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__[:-1]):
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for statement, after in zip(node.body, node.body[1:], strict=False):
            if (
                isinstance(statement, ast.AnnAssign)
                and isinstance(statement.target, ast.Name)
                and isinstance(after, ast.Expr)
                and isinstance(after.value, ast.Constant)
            ):
                found[statement.target.id] = _one_line(str(after.value.value))
    return found


def _is_tag(hint: Any) -> bool:
    """Whether a field only tells its class from the others of a union."""
    return get_origin(hint) is Literal and len(get_args(hint)) == 1


def _type(hint: Any, style: Style) -> str:
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        bounds = [f"{BOUNDS[name]} {_number(value)}" for name, value in _bounds(arguments[1:])]
        return " ".join([_type(arguments[0], style), *bounds])
    if origin in (Union, UnionType):
        return " or ".join(_type(argument, style) for argument in arguments)
    if origin is Literal:
        return ", ".join(style.code(str(value)) for value in arguments)
    if origin is tuple and arguments[-1] is not Ellipsis:
        return f"list of {len(arguments)}: {_type(arguments[0], style)}"
    if origin in (tuple, list):
        return f"list of {_type(arguments[0], style)}"
    if origin in (dict, Mapping):
        return f"map to {_type(arguments[1], style)}"
    if hint in (None, NoneType):
        return style.code("null")
    if is_dataclass(hint) and isinstance(hint, type):
        return style.link(hint)
    if hint is bool:
        return f"{style.code('true')} or {style.code('false')}"
    return SCALARS[hint]


def _bounds(metadata: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Limits that an annotation states, such as ("ge", 1), without those that only catch typing
    errors."""
    for item in metadata:
        for part in getattr(item, "metadata", [item]):
            for name in BOUNDS:
                value = getattr(part, name, None)
                if value is not None and abs(value) not in (LARGEST, MOST_SEEDS):
                    yield name, value


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:g}"


def _default(value: Any, style: Style) -> str:
    if value is MISSING:
        return "must be given"
    if not is_dataclass(value):
        return style.code(_plain(value))
    changed = [style.code(f"{key}: {_plain(part)}") for key, part in _changes(value)]
    kind = getattr(value, KIND, None)
    chosen = [style.code(f"{KIND}: {kind}")] if kind is not None else []
    return ", ".join(chosen + changed) or "those of the class"


def _value(field: Field[Any]) -> Any:
    if field.default_factory is not MISSING:
        return field.default_factory()
    return field.default


def _changes(value: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Options of a configuration object whose values are not the defaults of its class."""
    for field in fields(value):
        held, usual = getattr(value, field.name), _value(field)
        if held == usual:
            continue
        if is_dataclass(held) and type(held) is type(usual):
            yield from _changes(held, f"{prefix}{field.name}.")
        elif is_dataclass(held):
            yield f"{prefix}{field.name}", type(held).__name__
        else:
            yield f"{prefix}{field.name}", held


def _plain(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value or '""'
    if isinstance(value, tuple | list):
        return f"[{', '.join(_plain(part) for part in value)}]"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key}: {_plain(part)}' for key, part in value.items())}}}"
    return str(value)


def _one_line(text: str) -> str:
    return " ".join(text.split())
