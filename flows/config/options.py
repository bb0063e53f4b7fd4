"""Builds the options of a stage from plain values: defaults of the classes, named options, and
classes chosen by `kind`.

Values override the defaults key by key. Three spellings choose more than one value:

- `kind: flow` in a block chooses another class of the field's union; the other keys of the block
  then have that class's defaults.
- `protocol: reach` reads the named option `configs/protocol/reach.yaml`; the folder has the name of
  the field. A path of a YAML file is accepted as well. Keys that the file lacks have the defaults
  of the class, not those of the stage (a mandatory key of the class keeps the stage's).
- `uses: reach` inside a block does the same, and the block's other keys override the file's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import MISSING as DATACLASS_MISSING
from dataclasses import dataclass, fields, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from flows.config.files import CONFIGS, read_options
from flows.config.overrides import parse_overrides, set_value
from robots.config import classes_of, outside_class, validate
from robots.errors import HandoffError, suggest

USES = "uses"
"""Key that names an option, on which the other keys of its block are based."""
KIND = "kind"
"""Key that chooses a class of a union."""
NAME = "name"
MISSING = object()
"""Stands for a default that does not exist."""

T = TypeVar("T")


def build(cls: type[T], values: Mapping[str, Any], path: str, folders: Sequence[Path] = ()) -> T:
    """Builds an object of a configuration class.

    Args:
        cls: a class made with `@config`.
        values: plain nested mapping; keys that it lacks keep the defaults.
        path: dotted path of `values` for messages.
        folders: folders with named options, besides those of Handoff.

    Raises:
        HandoffError: an unknown key, a named option that does not exist, or an invalid value.
    """
    outside: dict[tuple[str, ...], Any] = {}
    scope = _Scope(folders, outside)
    values = _with_named("", values, path, folders)
    built = validate(cls, _block(cls, MISSING, values, (path,) if path else (), scope), path)
    for keys, chosen in outside.items():
        built = _replaced(built, keys[1:] if path else keys, chosen)
    return built


def build_session(cls: type[T], name: str, overrides: Sequence[str] = ()) -> T:
    """Builds the options of a session at an arm: `configs/deploy/<name>.yaml` over the defaults of
    the class, with overrides.

    Raises:
        HandoffError: no such file, unknown key, ill-typed value, or an option that would be
            removed.
    """
    values = read_options("deploy", name, [CONFIGS], "deploy")
    for override in parse_overrides(overrides):
        if override.deletes:
            raise HandoffError(
                f"override '{override.text}': a session's options cannot be removed."
            )
        set_value(values, override.keys, override.value)
    return build(cls, values, "", [CONFIGS])


def merge(old: Any, new: Any) -> Any:
    """Merges plain values: mappings key by key, except that a block with another `kind` or another
    `uses` replaces the old one. A name of an option under a block becomes its `uses`."""
    if not isinstance(new, Mapping):
        return new
    if isinstance(old, str):
        old = {USES: old}
    if not isinstance(old, Mapping) or any(
        key in new and new[key] != old.get(key) for key in (KIND, USES)
    ):
        return dict(new)
    return {**old, **{key: merge(old.get(key), value) for key, value in new.items()}}


@dataclass(frozen=True)
class _Scope:
    folders: Sequence[Path]
    outside: dict[tuple[str, ...], Any]
    """Objects of classes outside Handoff, by their path, which pydantic's unions do not know."""


def _replaced(built: Any, keys: tuple[str, ...], chosen: Any) -> Any:
    if not keys:
        return chosen
    return replace(built, **{keys[0]: _replaced(getattr(built, keys[0]), keys[1:], chosen)})


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls, include_extras=True)


def _block(
    cls: type, default: Any, values: Mapping[str, Any], keys: tuple[str, ...], scope: _Scope
) -> dict[str, Any]:
    """Returns the values of a block of class `cls` over those of `default`, if that has the same
    class; nested blocks are plain, for one validation of the whole."""
    known = [entry.name for entry in fields(cls)]
    built: dict[str, Any] = {}
    if type(default) is cls:
        built = {name: getattr(default, name) for name in known}
    elif hasattr(cls, KIND):
        built = {KIND: getattr(cls, KIND)}
    for key, value in values.items():
        if key not in known:
            raise HandoffError(
                f"unknown key '{'.'.join((*keys, str(key)))}', "
                f"{suggest(str(key), sorted(known), 'known keys:')}"
            )
        chosen = _value(key, cls, _default(cls, default, key), value, (*keys, key), scope)
        if chosen is not MISSING:
            built[key] = chosen
    return built


def _default(cls: type, default: Any, key: str) -> Any:
    """The default of a field: that of the default object, else that of the class."""
    if type(default) is cls:
        return getattr(default, key)
    for entry in fields(cls):
        if entry.name == key:
            if callable(entry.default_factory):
                return entry.default_factory()
            return MISSING if entry.default is DATACLASS_MISSING else entry.default
    return MISSING


def _value(
    key: str, owner: type, default: Any, value: Any, keys: tuple[str, ...], scope: _Scope
) -> Any:
    """Returns the plain value of one field; `MISSING` if it is an object of an outside class."""
    classes = classes_of(_hints(owner)[key])
    if not classes:
        if isinstance(value, Mapping) and isinstance(default, Mapping):
            return {**default, **value}
        return value
    path = ".".join(keys)
    if isinstance(value, str):
        value = {USES: value}
    if not isinstance(value, Mapping):
        return value
    named = USES in value
    value = _with_named(key, value, path, scope.folders)
    cls = _chosen(classes, default, value, path)
    _refuse_keys_of_others(cls, classes, value, path)
    if named:
        value = {**_mandatory(cls, default), **value}
        default = MISSING
    if cls in classes:
        return _block(cls, default, value, keys, scope)
    scope.outside[keys] = build(cls, value, path, scope.folders)
    return MISSING


def _mandatory(cls: type, default: Any) -> dict[str, Any]:
    """Values that a named option may leave to the stage: those without a default in the class,
    unless the class names its objects, as protocols do."""
    if type(default) is not cls:
        return {}
    needed = [
        entry.name
        for entry in fields(cls)
        if entry.default is entry.default_factory is DATACLASS_MISSING
    ]
    return {} if NAME in needed else {key: getattr(default, key) for key in needed}


def _chosen(
    classes: Sequence[type], default: Any, value: Mapping[str, Any], path: str
) -> type[Any]:
    """The class of a block: by its `kind`, else that of the default, else the only one."""
    kind = value.get(KIND)
    try:
        outside = outside_class(kind, classes)
    except HandoffError as error:
        raise HandoffError(f"'{path}': {error}") from None
    if outside is not None:
        return outside
    if len(classes) == 1:
        return classes[0]
    by_kind = {getattr(cls, KIND): cls for cls in classes if hasattr(cls, KIND)}
    if kind is None or not by_kind:
        if type(default) in classes:
            return type(default)
        raise HandoffError(f"'{path}' has no kind, expected one of {', '.join(sorted(by_kind))}.")
    if kind in by_kind:
        return by_kind[kind]
    raise HandoffError(
        f"'{path}.kind' is '{kind}', {suggest(str(kind), sorted(by_kind), 'expected one of')} "
        "(or the dotted path of a class of your own)"
    )


def _refuse_keys_of_others(
    cls: type, classes: Sequence[type], value: Mapping[str, Any], path: str
) -> None:
    """Refuses a key that no class of the union has, then one that another class has, with the kinds
    that read it."""
    known = {entry.name for entry in fields(cls)}
    anywhere = {entry.name for other in classes for entry in fields(other)}
    for key in value:
        if key not in known | anywhere:
            raise HandoffError(
                f"unknown key '{path}.{key}', {suggest(str(key), sorted(known), 'known keys:')}"
            )
    for key in value:
        if key in known:
            continue
        readers = sorted(
            str(getattr(other, KIND, other.__name__))
            for other in classes
            if other is not cls and key in {entry.name for entry in fields(other)}
        )
        if readers:
            raise HandoffError(
                f"'{path}.{key}' is not read by the kind '{getattr(cls, KIND, cls.__name__)}', only "
                f"by {', '.join(readers)}."
            )


def _with_named(
    group: str, values: Mapping[str, Any], path: str, folders: Sequence[Path]
) -> dict[str, Any]:
    """The values over those of the named option that they use, if they use one."""
    if USES not in values:
        return dict(values)
    name = values[USES]
    rest = {key: value for key, value in values.items() if key != USES}
    if not isinstance(name, str):
        raise HandoffError(f"'{path}.{USES}' is {name!r}, expected the name of an option.")
    folder, _, stem = name.rpartition("/") if not name.endswith(".yaml") else ("", "", name)
    named = read_options(folder or group, stem, [*folders, CONFIGS], path)
    base = _with_named(group, named, path, folders)
    return {**base, **{key: merge(base.get(key), value) for key, value in rest.items()}}
