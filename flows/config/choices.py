"""Finds the values that an option can have, where they are a few: for the Tab key."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import MISSING, fields, is_dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from flows.config.files import CONFIGS, available, read_options
from flows.config.options import KIND
from robots.config import classes_of
from robots.outside import KnownName


def choices(options: Any, keys: Sequence[str], folders: Sequence[Path] = ()) -> list[str]:
    """Returns the values that an option can have, as they are written in an override.

    Args:
        options: object of a configuration class.
        keys: path of the option below it, e.g. `("training", "precision")`.
        folders: folders with named options, besides those of Handoff.

    Returns:
        Words of a literal, names of robots or tasks, named options of a block, kinds of a union,
        `true` and `false`, and `null` where the option may be absent; empty for other values.
    """
    owner = _block(options, keys[:-2])
    if keys[-1] == KIND and len(keys) > 1:
        return _kinds(_hint(owner, keys[-2]))
    hint = _hint(_block(options, keys[:-1]), keys[-1])
    if not classes_of(hint):
        return list(dict.fromkeys(_words(hint)))
    # Blocks of several stages have one name and one folder.
    fitting = {None, *_kinds(hint)}
    return [
        name
        for name in available(keys[-1], folders)
        if read_options(keys[-1], name, [*folders, CONFIGS], keys[-1]).get(KIND) in fitting
    ]


def absent_block(options: Any, keys: Sequence[str]) -> type | None:
    """Returns the class of a block of options that is absent and would have its defaults; None if
    there is none."""
    block = _block(options, keys)
    if not isinstance(block, type) or any(
        item.default is MISSING and item.default_factory is MISSING
        for item in fields(block)
        if item.init
    ):
        return None
    return block


def _block(options: Any, keys: Sequence[str]) -> Any:
    """The block of options at a path, or of an absent one the first class that it can have; None if
    there is none."""
    block = options
    for key in keys:
        inner = None if isinstance(block, type) else getattr(block, key, None)
        if inner is None:
            inner = next(iter(classes_of(_hint(block, key))), None)
        block = inner
    return block


def _kinds(hint: Any) -> list[str]:
    """Kinds of the classes of a union, of which a class may have several."""
    return sorted({kind for cls in classes_of(hint) for kind in _words(_hint(cls, KIND))})


def _hint(owner: Any, key: str) -> Any:
    """The annotation of a field; None if there is no such field."""
    if not is_dataclass(owner):
        return None
    cls = owner if isinstance(owner, type) else type(owner)
    return get_type_hints(cls, include_extras=True).get(key)


def _words(hint: Any) -> Iterator[str]:
    """The values of an annotation as words of YAML."""
    if hint is bool:
        yield from ("true", "false")
    elif hint is NoneType:
        yield "null"
    elif get_origin(hint) is Literal:
        yield from (str(value) for value in get_args(hint))
    elif get_origin(hint) is Annotated:
        inner, *notes = get_args(hint)
        for note in notes:
            if isinstance(note, KnownName):
                yield from note.names
        yield from _words(inner)
    elif get_origin(hint) in (Union, UnionType):
        words = [word for part in get_args(hint) for word in _words(part)]
        # That an option may be absent says nothing about its other values.
        yield from () if words == ["null"] else words
