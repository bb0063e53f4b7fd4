"""Checks the labels that a person gives to recorded episodes: their names, and the types of their
values.

Handoff knows the type of the entries that its recorders and trainings use (`LABELS`). Any other
entry that episodes state is a label of the user, whose values keep their kind. A name that is
neither is refused as misspelt, unless it is said to be new.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from types import UnionType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

from robots.config import LARGEST, NonNegative, Whole
from robots.episodes.metadata.episode_metadata import EpisodeEnd, EpisodeOrigin
from robots.errors import HandoffError, suggest
from robots.language.text import INSTRUCTION

if TYPE_CHECKING:
    from pydantic import TypeAdapter

LINEAGE = ("source_store", "source_digest", "source_episode", "origin", "edits")
"""Entries that a copy writes, and no person."""
LABELS: Mapping[str, Any] = {
    "success": bool,
    INSTRUCTION: str,
    "weight": NonNegative,
    "note": str,
    "operator": str,
    "device": str,
    "began": str,
    "ended": str,
    "people": list[dict[str, Any]],
    "policy_versions": tuple[Whole, Whole],
    "split": list[str],
    **get_type_hints(EpisodeOrigin, include_extras=True),
    **get_type_hints(EpisodeEnd, include_extras=True),
}
"""Types of the entries of an episode's metadata that Handoff knows."""


def parse_labels(words: Sequence[str]) -> dict[str, Any]:
    """Entries of metadata from words `KEY=VALUE`. A value is JSON, or text if it is none; what
    stands behind an entry that is text is text also where it looks like a number; `True` and
    `False` mean what they mean in JSON in lower case; `null` removes an entry.

    Raises:
        HandoffError: a word without `=` or without a key.
    """
    labels: dict[str, Any] = {}
    for word in words:
        key, separator, value = word.partition("=")
        if not key or not separator:
            raise HandoffError(f"{word}: expected KEY=VALUE, such as success=true.")
        labels[key] = _parsed(key, value)
    return labels


def check_labels(
    labels: Mapping[str, Any], metadata: Iterable[Mapping[str, Any]], *, new: bool = False
) -> None:
    """Checks new entries of an episode's metadata; None, which removes an entry, has no type.

    Args:
        labels: new entries.
        metadata: metadata of all episodes of the store.
        new: whether an entry that no episode states and Handoff does not know is accepted.

    Raises:
        HandoffError: an entry that a copy writes, an unknown one, or a value of another type.
    """
    stated: dict[str, set[str]] = {}
    for entries in metadata:
        for key, value in entries.items():
            stated.setdefault(key, set()).add(_kind(value))
    for key, value in labels.items():
        if key in LINEAGE:
            raise HandoffError(f"{key}: is written by every copy, and is no label.")
        if key not in LABELS and key not in stated and not new:
            known = sorted({*LABELS, *stated} - {*LINEAGE})
            hint = suggest(key, known, "known are")
            raise HandoffError(
                f"label '{key}': is unknown; {hint}{'' if hint.endswith('?') else '.'} --new accepts a label of your "
                "own."
            )
        if value is None:
            continue
        if key in LABELS:
            _check_type(key, value)
        elif key in stated and _kind(value) not in stated[key] - {"null"}:
            kinds = " or ".join(sorted(stated[key] - {"null"})) or "null"
            raise HandoffError(
                f"label '{key}': is {_shown(value)} ({_kind(value)}), the episodes of the store state {kinds}."
            )


def _parsed(key: str, text: str) -> Any:
    if text in ("True", "False"):
        text = text.lower()
    try:
        value = json.loads(text)
    except ValueError:
        return text
    is_words = _is_text(LABELS.get(key))
    return text if is_words and value is not None and not isinstance(value, str) else value


def _is_text(hint: Any) -> bool:
    """Whether a type is text, or text that may be missing."""
    return hint is str or (isinstance(hint, UnionType) and str in get_args(hint))


def _check_type(key: str, value: Any) -> None:
    from pydantic import ValidationError

    try:
        _adapter(key).validate_json(json.dumps(value), strict=True)
    except ValidationError as error:
        first = error.errors()[0]
        within = ".".join(map(str, first["loc"]))
        expected = _expected(LABELS[key]) or f"'{within}': {first['msg'].lower()}"
        raise HandoffError(
            f"label '{key}': is {_shown(value)} ({_kind(value)}), expected {expected}."
        ) from None


@cache
def _adapter(key: str) -> TypeAdapter[Any]:
    from pydantic import TypeAdapter

    return TypeAdapter(LABELS[key])


def _expected(hint: Any) -> str:
    """Words for a type; empty for one of several parts."""
    if hint is bool:
        return "true or false"
    if hint is NonNegative:
        return f"a number of 0 to {LARGEST:.0e}"
    if _is_text(hint):
        return "text"
    if get_origin(hint) is Literal:
        return f"one of {', '.join(map(str, get_args(hint)))}"
    return ""


def _kind(value: Any) -> str:
    """Kind of a JSON value."""
    match value:
        case None:
            return "null"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
        case str():
            return "text"
        case Mapping():
            return "a mapping"
        case _:
            return "a list"


def _shown(value: Any) -> str:
    return json.dumps(value)[:80]
