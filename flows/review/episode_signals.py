"""Reads what a page draws of one episode: curves of its fields, events, and who acted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import pairwise
from math import floor, log10, prod
from typing import Any

import numpy as np

from flows.reports.episode_view import PROPOSED, events, plotted_entries
from flows.review.data_set import PERSON, TAKEOVER, ReviewedData
from robots.episodes.formats.source import SourceEpisode
from robots.language.text import UNIT as TEXT
from robots.spec import FieldSpec, unit_words

MOST_POINTS = 2000
"""Largest number of points of a curve; those of longer episodes are thinned."""
LARGEST_FIELD = 4096
"""Largest number of entries of a field that is drawn; larger ones, such as depth pictures, are
named."""
LONGEST_ENTRY = 400
"""Largest number of characters of an entry of the metadata."""
MAIN_WORDS = ("gripper", "width", "reward", "probability", "score", "success")
"""Words in the names of fields that are drawn first, beside actions and outcomes."""
ACTED_BY = "person"
"""Field with the place of who acted in the entry `people` of the metadata."""
_IDENTITY = (PERSON, TAKEOVER, ACTED_BY)


def cameras(fields: Mapping[str, FieldSpec]) -> list[str]:
    """Names of the fields with pictures."""
    return [name for name, spec in fields.items() if spec.unit == "u8"]


def episode_signals(data: ReviewedData, episode: int) -> dict[str, Any]:
    """Everything of an episode but its pictures, as a JSON map.

    Args:
        data: the data set.
        episode: number of the episode.

    Returns:
        `steps`; `every`, the steps between two points of a curve; `curves`; `acted`, `[first, stop,
        name]` of every part in which one actor acted; `events`; `left_out`, names of fields that
        are too large; and `metadata`, names and words of the entries.
    """
    numbers = {name: spec for name, spec in data.fields.items() if spec.unit not in ("u8", TEXT)}
    drawn = {name: spec for name, spec in numbers.items() if prod(spec.shape) <= LARGEST_FIELD}
    about = data.outlines[episode]
    arrays = data.read(episode, list(drawn))
    steps = about.steps
    every = max(1, -(-steps // MOST_POINTS))
    outcomes = {name: spec for name, spec in drawn.items() if spec.role == "outcome"}
    return {
        "steps": steps,
        "every": every,
        "curves": list(_curves(drawn, arrays, every)),
        "acted": acted(arrays, about.metadata),
        "events": [
            {"step": event.step, "what": event.what}
            for event in events(outcomes, SourceEpisode(arrays, {}))
        ],
        "left_out": sorted(numbers.keys() - drawn.keys()),
        "metadata": [
            (name, json.dumps(value, default=str)[:LONGEST_ENTRY])
            for name, value in about.metadata.items()
        ],
    }


def acted(
    arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
) -> list[tuple[int, int, str | None]]:
    """Parts of an episode in which one actor acted: first step, end (exclusive), and the person's
    name, `a person` without one; None for the policy. Empty if the data set does not say."""
    flags = arrays.get(PERSON)
    if flags is None:
        return []
    person = (flags.reshape(len(flags), -1) > 0).any(axis=1)
    places = np.where(person, 0, -1)
    people = metadata.get("people")
    if ACTED_BY in arrays and isinstance(people, list):
        places = np.where(person, arrays[ACTED_BY].reshape(-1).astype(np.int64), -1)
    borders = [0, *(np.flatnonzero(np.diff(places)) + 1).tolist(), len(places)]
    return [(first, stop, _name(int(places[first]), people)) for first, stop in pairwise(borders)]


def _name(place: int, people: Any) -> str | None:
    if place < 0:
        return None
    if isinstance(people, list) and place < len(people) and isinstance(people[place], Mapping):
        return str(people[place].get("name") or "a person")
    return "a person"


def _curves(
    fields: Mapping[str, FieldSpec], arrays: Mapping[str, np.ndarray], every: int
) -> Iterator[dict[str, Any]]:
    """Yields the curves of every field, actions first; those of the action with the proposed
    one."""
    proposed = next((name for name in PROPOSED if name in fields), None)
    for name, spec in sorted(fields.items(), key=lambda item: item[1].role != "action"):
        if name in PROPOSED or name in _IDENTITY:
            continue
        values, names = plotted_entries(spec, arrays[name])
        constant = arrays[name].dtype.kind in "biu" and np.ptp(values, axis=0).max() == 0
        if values.shape[1] == 0 or constant:
            continue
        other = None
        if name == "action" and proposed is not None:
            other, _ = plotted_entries(fields[proposed], arrays[proposed])
        main = spec.role in ("action", "outcome") or any(word in name for word in MAIN_WORDS)
        yield {
            "name": name,
            "unit": "" if spec.unit == "1" else unit_words(spec),
            "main": main,
            "entries": names,
            "values": _numbers(values[::every]),
            "proposed": None if other is None else _numbers(other[::every]),
            "proposed_name": proposed if other is not None else None,
        }


def _numbers(values: np.ndarray) -> list[list[float | None]]:
    """Points of every entry, `(entries, points)`, with as many digits as a drawing shows; None
    where a value is not finite."""
    finite = np.isfinite(values)
    span = float(np.abs(values[finite]).max()) if finite.any() else 0.0
    digits = 4 - floor(log10(span)) if span > 0.0 else 4
    rounded = np.round(values, digits).T.tolist()
    if finite.all():
        return rounded
    return [
        [number if known else None for number, known in zip(row, mask, strict=True)]
        for row, mask in zip(rounded, finite.T, strict=True)
    ]
