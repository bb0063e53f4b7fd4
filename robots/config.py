"""Defines configuration classes: frozen dataclasses whose validation rejects unknown keys."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache, wraps
from pathlib import Path
from types import UnionType
from typing import (
    TYPE_CHECKING,
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
from robots.outside import FAMILIES, find_outside, outside_target

if TYPE_CHECKING:
    from pydantic import Field, GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema
else:
    try:
        from pydantic import Field
    except ModuleNotFoundError:
        # The other side of an environment server (`sim.servers`) has NumPy and msgpack only: its
        # options come from a process that has validated them.
        Field = dict

T = TypeVar("T")
LARGEST = 10**12
"""Bound of numbers that need none: what lies beyond it was mistyped."""
Count = Annotated[int, Field(ge=1, le=LARGEST)]
"""A number of things, at least one."""


@dataclass(frozen=True)
class Workload:
    """Annotation of a number of repetitions to which the time of a computation is proportional."""


Repetitions = Annotated[Count, Workload()]
"""A number of repetitions, such as updates, to which the time of a training is proportional."""
Whole = Annotated[int, Field(ge=0, le=LARGEST)]
"""A number of things, or none."""
Index = Annotated[int, Field(ge=-1, le=LARGEST)]
"""A place in a sequence, or -1 for none."""
MOST_SEEDS = 2**63
"""Number of seeds that a generator of random numbers takes."""
Seed = Annotated[int, Field(ge=0, lt=MOST_SEEDS)]
"""A seed, or the first of several; a recipe's seed shifts it."""
Pixels = Annotated[int, Field(ge=1, le=8192)]
"""Width or height of an image [px]."""
Port = Annotated[int, Field(ge=0, le=65535)]
"""A TCP port."""
Finite = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
"""Any finite number."""
Unbounded = Annotated[float, Field(allow_inf_nan=True)]
"""Any number, also an infinite one, which stands for no bound."""
NonNegative = Annotated[float, Field(ge=0.0, le=LARGEST)]
Positive = Annotated[float, Field(gt=0.0, le=LARGEST)]
Share = Annotated[float, Field(ge=0.0, le=1.0)]
"""A fraction of a whole."""
PositiveShare = Annotated[float, Field(gt=0.0, le=1.0)]
"""A fraction of a whole, not nothing."""
ShareBelowOne = Annotated[float, Field(ge=0.0, lt=1.0)]
"""A fraction of a whole, not all of it."""
OpenShare = Annotated[float, Field(gt=0.0, lt=1.0)]
"""A fraction of a whole, neither nothing nor all of it."""
UnitComponent = Annotated[float, Field(ge=-1.0, le=1.0)]
"""A component of a unit vector."""
LearningRate = Annotated[float, Field(gt=0.0, le=1.0)]
Seconds = Annotated[float, Field(gt=0.0, le=86_400.0)]
"""A time of at most a day [s]."""
Delay = Annotated[float, Field(ge=0.0, le=86_400.0)]
"""A time of at most a day, which may be 0 [s]."""
Hertz = Annotated[float, Field(gt=0.0, le=10_000.0)]
"""A rate [1/s]."""
Metres = Annotated[float, Field(ge=-10.0, le=10.0)]
"""A coordinate near the robot [m]."""
Radians = Annotated[float, Field(ge=-2.0 * math.pi, le=2.0 * math.pi)]
"""An angle [rad]."""


@dataclass_transform(frozen_default=True, kw_only_default=True)
def config(cls: type[T]) -> type[T]:
    """Class decorator: a frozen, keyword-only dataclass whose validation rejects unknown keys and
    numbers that are not finite. Every number states its range, e.g. by `Count` or `Positive`."""
    cls.__pydantic_config__ = {"extra": "forbid", "allow_inf_nan": False}  # type: ignore[attr-defined]
    if "__post_init__" in vars(cls):
        cls.__post_init__ = _refusing(cls.__post_init__)  # type: ignore[attr-defined]
    return dataclass(frozen=True, kw_only=True)(cls)


class RefusedOptionsError(HandoffError, ValueError):
    """Options that exclude each other, or that a configuration class refuses for another reason.

    As a `ValueError` it becomes one of the problems that pydantic lists, with its place.
    """


def _refusing(check: Callable[[Any], None]) -> Callable[[Any], None]:
    """A configuration class's own check, whose errors `validate` can place."""

    @wraps(check)
    def checked(self: Any) -> None:
        try:
            check(self)
        except HandoffError as error:
            raise RefusedOptionsError(str(error)) from None

    return checked


def check_positive(where: str, options: Any, names: Sequence[str]) -> None:
    """Refuses options that are not positive and finite, where an object was made without
    `validate`.

    Args:
        where: what has the options, for messages.
        options: object with the options as attributes.
        names: names of the options.

    Raises:
        HandoffError: names the first one that is not.
    """
    for name in names:
        value = getattr(options, name)
        if not 0.0 < value < math.inf:
            raise HandoffError(f"{where}: {name} is {value}, expected a positive number.")


def changed_options(options: Any) -> list[str]:
    """Names of the options of a configuration whose values differ from their plain defaults."""
    return [each.name for each in fields(options) if getattr(options, each.name) != each.default]


class ByKind:
    """Annotation of a union of configuration classes: the entry `kind` chooses one of them, and a
    dotted path chooses a class outside Handoff (`robots.outside`)."""

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic import Discriminator
        from pydantic_core import core_schema

        closed = Discriminator("kind").__get_pydantic_core_schema__(source, handler)
        members = classes_of(source)

        def read(value: Any, inner: Any) -> Any:
            cls = outside_class(_kind_of(value), members)
            if cls is None:
                return inner(value)
            return value if isinstance(value, cls) else validate(cls, value)

        def write(value: Any, inner: Any) -> Any:
            return inner(value) if type(value) in members else to_plain(value)

        return core_schema.no_info_wrap_validator_function(
            read,
            closed,
            serialization=core_schema.wrap_serializer_function_ser_schema(write, schema=closed),
        )


@dataclass(frozen=True)
class DefaultKind:
    """Annotation of a union of configuration classes that `kind` discriminates: a block without the
    entry is of this kind, as blocks are that were written before there were others."""

    kind: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        from pydantic_core import core_schema

        def with_kind(value: Any) -> Any:
            missing = isinstance(value, Mapping) and "kind" not in value
            return {**value, "kind": self.kind} if missing else value

        return core_schema.no_info_before_validator_function(with_kind, handler(source))


def outside_class(kind: Any, members: Sequence[type]) -> type[Any] | None:
    """The class outside Handoff that `kind` names by dotted path or entry point; None if `kind` is
    that of a member, or no path.

    Args:
        kind: entry `kind` of a block.
        members: classes of the union.

    Raises:
        HandoffError: there is no such class, or it lacks what the members have in common.
    """
    names = [getattr(member, "kind", "") for member in members]
    if not isinstance(kind, str) or kind in names:
        return None
    target = outside_target(kind, FAMILIES)
    if target is None:
        return None
    about = f"kind '{kind}'"
    try:
        cls = find_outside(target, "", about, "configuration class")
    except HandoffError as error:
        close = get_close_matches(re.sub(r"\W", "", kind), names, n=1)
        raise HandoffError(f"{error} Or did you mean '{close[0]}'?") if close else error from None
    if not isinstance(cls, type) or not is_dataclass(cls):
        raise HandoffError(f"{about}: is no configuration class, expected one made with @config.")
    if not hasattr(cls, "kind"):
        raise HandoffError(f"{about}: the class has no `kind: str`, which its card needs.")
    base = _common_base(members)
    if not issubclass(cls, base):
        raise HandoffError(f"{about}: the class is no {base.__module__}.{base.__name__}.")
    return cls


def _common_base(members: Sequence[type]) -> type:
    first, *others = members
    shared = (base for base in first.__mro__ if all(issubclass(cls, base) for cls in others))
    return next(shared)


def _kind_of(value: Any) -> Any:
    return value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)


def validate(cls: type[T], values: Mapping[str, Any], path: str = "") -> T:
    """Builds a configuration of class `cls` from plain values.

    Args:
        cls: a class made with `@config`.
        values: plain nested mapping, as read from YAML, a command line or a Prefect parameter.
        path: dotted path of `values` in the whole configuration, which prefixes keys in errors.

    Raises:
        HandoffError: misspelt, missing or ill-typed keys; the message lists all of them by path.
    """
    from pydantic import ValidationError

    try:
        return _adapter(cls).validate_python(dict(values))
    except ValidationError as error:
        found = error.errors()
        problems = [_explain(cls, path, item) for item in found]
        if len(found) == 1 and not (path or found[0]["loc"]):
            # The error of the class itself begins with what it is about.
            raise HandoffError(problems[0]) from None
        raise HandoffError("configuration: " + "; ".join(problems)) from None


def read_yaml(path: Path) -> Any:
    """The content of a YAML file.

    Raises:
        HandoffError: the file cannot be read, or is not YAML.
    """
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except OSError as error:
        raise HandoffError(f"{path}: {error.strerror}.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise HandoffError(f"{path}: not YAML ({yaml_problem(error)}).") from None


def yaml_problem(error: Exception) -> str:
    """Says on one line what is wrong with YAML that cannot be read, and where."""
    mark = getattr(error, "problem_mark", None)
    problem = getattr(error, "problem", None)
    if mark is None or not problem:
        return " ".join(str(error).split())
    return f"line {mark.line + 1}, column {mark.column + 1}: {' '.join(problem.split())}"


def to_plain(value: Any) -> dict[str, Any]:
    """The JSON-ready mapping of a configuration; `validate` reads it back to an equal object."""
    return _adapter(type(value)).dump_python(value, mode="json")


@cache
def _adapter(cls: type[T]) -> TypeAdapter[T]:
    """Returns the validator of a class; building one takes milliseconds, and a plan needs many."""
    from pydantic import TypeAdapter

    return TypeAdapter(cls)


def repetitions(options: Any) -> dict[str, int]:
    """Returns the numbers to whose product the time of a computation is proportional, by dotted
    path: those of the outermost blocks that state any; nested ones are a part of the work.

    Args:
        options: object of a class made with `@config`; another has none.
    """
    level = {"": options} if is_dataclass(options) else {}
    while level:
        values = {
            f"{path}{field.name}": (getattr(block, field.name), field.name, type(block))
            for path, block in level.items()
            for field in fields(block)
        }
        counts = {
            path: value
            for path, (value, name, cls) in values.items()
            if isinstance(value, int) and name in _repetition_fields(cls)
        }
        if counts:
            return counts
        level = {f"{path}.": value for path, (value, _, _) in values.items() if is_dataclass(value)}
    return {}


@cache
def _repetition_fields(cls: type) -> frozenset[str]:
    """Names of the fields of a class that are annotated with `Workload`."""
    hints = get_type_hints(cls, include_extras=True)
    return frozenset(
        name
        for name, hint in hints.items()
        if any(isinstance(note, Workload) for note in getattr(hint, "__metadata__", ()))
    )


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
    refusal = item.get("ctx", {}).get("error")
    parts = [str(part) for part in item["loc"]]
    location, owner = _locate(cls, parts)
    if isinstance(refusal, RefusedOptionsError):
        # The problem is of the whole section, whose kind is no key of it.
        location = _locate(cls, [*parts, ""])[0][:-1]
    where = ".".join([path, *location] if path else location)
    if path.endswith((".yaml", ".yml")):
        # A file and what is in it, rather than a key of the file's name.
        where = ": ".join(filter(None, (path, ".".join(location))))
    match item["type"]:
        case "value_error" if isinstance(refusal, RefusedOptionsError):
            return f"'{where}': {refusal}" if where else str(refusal)
        case "unexpected_keyword_argument":
            known = sorted(field.name for field in fields(owner)) if is_dataclass(owner) else []
            return f"unknown key '{where}', {suggest(location[-1], known, 'known keys:')}"
        case "missing" if isinstance(item["loc"][-1], int):
            whole = where.rpartition(".")[0]
            return f"'{whole}' is {item['input']!r}: expected more entries"
        case "missing" | "missing_argument" | "missing_keyword_only_argument":
            return f"missing key '{where}'"
        case "tuple_type" | "list_type" | "set_type":
            return f"'{where}' is {item['input']!r}: expected a list, such as [{item['input']!r}]"
        case "dict_type" | "dataclass_type":
            return f"'{where}' is {item['input']!r}: expected keys and values"
        case _:
            return f"'{where}' is {item['input']!r}: {item['msg'].lower()}"


def _locate(cls: type, location: list[str]) -> tuple[list[str], type]:
    """`location` without the tags that pydantic inserts for unions, and the class of its last
    key."""
    path: list[str] = []
    options: list[Any] = [cls]
    entries: list[Any] = []
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
        if entries:
            options, entries = entries, []
            continue
        hint = get_type_hints(options[0]).get(part)
        if get_origin(hint) is dict:
            entries = list(classes_of(get_args(hint)[1]))
            continue
        options = [option for option in (hint, *get_args(hint)) if is_dataclass(option)] or options
    return [*path, *location[-1:]], options[0]  # type: ignore[return-value]
