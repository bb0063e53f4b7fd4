"""Maps the arrays of a data set to the fields of an episode store: names, units, rates, rotations.

Without a rule every array keeps its name, and the one action of the data set becomes `action`. A
rule makes one field from one or more arrays: their entries are joined, cut, scaled, turned to
another form of rotation and made relative, in this order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from robots.control.rotations import NAMES, SIZES, UNITS, convert_rotation
from robots.episodes.config import FieldMapConfig, FieldRule, RotationRule, map_hint
from robots.episodes.formats.source import EpisodeSource, SourceEpisode, field_name
from robots.episodes.metadata.capture_times import capture_time_field, capture_time_name
from robots.episodes.resample import resampled
from robots.episodes.schema import EpisodeSchema, StreamSpec, is_picture
from robots.errors import HandoffError, suggest
from robots.language.text import INSTRUCTION
from robots.spec import FieldSpec, entry_units

STREAM = "policy"
_MOST_ENTRIES = 8
"""Largest number of entries that a note lists."""
ACTION = "action"


class MappedEpisodes:
    """The episodes of a data set with the fields of a store; see `robots.episodes.demonstrations`.

    Args:
        source: the data set.
        mapping: how its arrays become fields.

    Raises:
        HandoffError: a rule that does not fit the data set, or a rate that nobody states.
    """

    def __init__(self, source: EpisodeSource, mapping: FieldMapConfig) -> None:
        self._source = source
        self._mapping = mapping
        self._rules = _rules(source, mapping)
        stated = mapping.rate_hz or source.schema.rate_hz
        rate = mapping.resample_hz or stated
        if rate is None:
            raise HandoffError(
                f"{source.schema.form} '{source.schema.task}' does not state its rate. "
                f"{map_hint('rate_hz', '50', 'if it is 50 Hz')} Where fields have capture times of their own, give "
                "resample_hz instead."
            )
        self._stated_rate = stated
        given = source.schema.fields
        specs = {name: _spec(name, rule, given) for name, rule in self._rules.items()}
        if mapping.action_interface is not None:
            if ACTION not in specs:
                raise HandoffError(
                    f"map.action_interface: no field is called '{ACTION}'. Name one in fields or rename; the "
                    f"data set has {sorted(given)}."
                )
            specs[ACTION] = replace(specs[ACTION], interface=mapping.action_interface)
        for name, rule in self._rules.items():
            for key in ("relative_to", "added_to"):
                if (other := getattr(rule, key)) is not None:
                    _check_combined(f"{name}.{key}", specs[name], other, specs)
        notes = list(_unused(self._rules, given, mapping.drop))
        if source.schema.rate_hz not in (None, stated):
            notes.append(
                f"the data set states {source.schema.rate_hz:g} Hz, but rate_hz: {stated:g} of the map is taken"
            )
        if ACTION not in specs:
            notes.append("no field is called 'action', so no policy can imitate these episodes")
        self.notes = tuple(notes)
        """What the map leaves out or overrules, one sentence each."""
        self._captured = _captured(self._rules, specs) if mapping.resample_hz else {}
        specs |= {capture_time_name(name): capture_time_field(name) for name in self._captured}
        self.schema = EpisodeSchema(
            name=mapping.task or source.schema.task,
            streams={STREAM: StreamSpec(rate_hz=rate, fields=specs)},
            robot=mapping.robot or "",
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the data set."""
        return self._source.num_episodes

    def episodes(
        self, first: int, stop: int
    ) -> Iterator[tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]]:
        """Streams and metadata of the episodes `[first, stop)`.

        Raises:
            HandoffError: damaged files, or values that a rule cannot convert.
        """
        for number, episode in enumerate(self._source.episodes(first, stop), start=first):
            try:
                arrays = self._mapped(self._resampled(episode))
            except HandoffError as error:
                raise HandoffError(f"episode {number}: {error}") from None
            metadata = dict(episode.metadata)
            if self._source.schema.robot:
                metadata.setdefault("source_robot", self._source.schema.robot)
            if self._mapping.instruction is not None:
                metadata[INSTRUCTION] = self._mapping.instruction
            yield {STREAM: arrays}, {**metadata, "source_episode": number}

    def _resampled(self, episode: SourceEpisode) -> SourceEpisode:
        rate = self._mapping.resample_hz
        if rate is None:
            if episode.times:
                raise HandoffError(
                    f"its {len(episode.times)} fields have capture times of their own. "
                    f"{map_hint('resample_hz', '10')}"
                )
            return episode
        used = {name for rule in self._rules.values() for name in rule.sources}
        fields = {name: spec for name, spec in self._source.schema.fields.items() if name in used}
        return resampled(episode, fields, self._stated_rate, rate)

    def _mapped(self, episode: SourceEpisode) -> dict[str, np.ndarray]:
        arrays: dict[str, np.ndarray] = {}
        for name, rule in self._rules.items():
            try:
                arrays[name] = _made(rule, episode.arrays)
            except HandoffError as error:
                raise HandoffError(f"field '{name}': {error}") from None
        absolute = dict(arrays)
        for name, rule in self._rules.items():
            for other, sign in ((rule.relative_to, -1.0), (rule.added_to, 1.0)):
                if other is not None:
                    arrays[name] = arrays[name] + sign * absolute[other]
        for name, source in self._captured.items():
            arrays[capture_time_name(name)] = episode.times[source]
        return arrays


def _captured(rules: Mapping[str, FieldRule], specs: Mapping[str, FieldSpec]) -> dict[str, str]:
    """Arrays of the data set by the pictures of the store that are made of them, whose capture
    times resampling states; those that the data set states itself are kept instead."""
    return {
        name: rule.sources[0]
        for name, rule in rules.items()
        if is_picture(specs[name]) and capture_time_name(name) not in specs
    }


def _rules(source: EpisodeSource, mapping: FieldMapConfig) -> dict[str, FieldRule]:
    """The rules of all fields of the store, in the order of the data set's arrays."""
    given = source.schema.fields
    for name in (*mapping.rename, *(s for rule in mapping.fields.values() for s in rule.sources)):
        if name not in given:
            raise HandoffError(
                f"map: the data set has no array '{name}'; {suggest(name, sorted(given), 'it has')}"
            )
    for pattern in mapping.drop:
        if not any(fnmatchcase(name, pattern) for name in given):
            raise HandoffError(
                f"map.drop: no array is called '{pattern}'; the data set has {sorted(given)}."
            )
    ruled = {name for rule in mapping.fields.values() for name in rule.sources}
    # One instruction for all episodes replaces the recorded ones.
    replaced = {INSTRUCTION} if mapping.instruction is not None else set()
    kept = [
        name
        for name in given
        if (name not in ruled or name in mapping.rename)
        and name not in replaced
        and not any(fnmatchcase(name, pattern) for pattern in mapping.drop)
        and (mapping.rest == "keep" or name in mapping.rename)
    ]
    renamed = {name: mapping.rename.get(name, field_name(name)) for name in kept}
    actions = [name for name in kept if given[name].role == "action"]
    if len(actions) == 1 and ACTION not in {*mapping.fields, *renamed.values()}:
        renamed[actions[0]] = ACTION
    rules = dict(mapping.fields)
    for name, new in renamed.items():
        if new in rules:
            raise HandoffError(
                f"map: two fields would be called '{new}', one of them made from '{name}'. Rename or drop one."
            )
        rules[new] = FieldRule(source=name)
    if not rules:
        raise HandoffError("map: no field is left. Is rest: drop set without fields?")
    return rules


def _unused(
    rules: Mapping[str, FieldRule], given: Mapping[str, FieldSpec], drop: Sequence[str]
) -> Iterator[str]:
    """Yields a sentence for every vector of which rules take some entries, but not all; an array
    that `drop` names is passed over."""
    taken: dict[str, set[int]] = {}
    for rule in rules.values():
        first = 0
        for name in rule.sources:
            width = given[name].shape[-1] if len(given[name].shape) == 1 else 0
            start, end = rule.entries or (first, first + width)
            taken.setdefault(name, set()).update(range(max(start - first, 0), end - first))
            first += width
    for name, entries in taken.items():
        labels = _labels(given[name]) if len(given[name].shape) == 1 else []
        left = [number for number in range(len(labels)) if number not in entries]
        if left and not any(fnmatchcase(name, pattern) for pattern in drop):
            words = [
                f"{number} ({labels[number]})" if labels[number] else number for number in left
            ]
            shown = ", ".join(map(str, words[:_MOST_ENTRIES]))
            more = f" and {len(left) - _MOST_ENTRIES} more" if len(left) > _MOST_ENTRIES else ""
            yield (
                f"{name}: no field takes the entries {shown}{more} of {len(labels)}, so they are not in the store; "
                "name the array in drop to leave them out without this note"
            )


def _spec(name: str, rule: FieldRule, given: Mapping[str, FieldSpec]) -> FieldSpec:
    """Specification of the field that a rule makes."""
    parts = [given[source] for source in rule.sources]
    first = parts[0]
    if _unchanged(rule):
        spec = first
    elif rule.image is not None or rule.size is not None:
        spec = replace(first, shape=_image_shape(name, rule, parts), dtype="uint8", unit="u8")
    else:
        labels = [_labels(part) for part in parts]
        entries = [label for part in labels for label in part]
        if any(len(part.shape) != 1 for part in parts):
            shapes = [tuple(part.shape) for part in parts]
            raise HandoffError(
                f"map.fields.{name}: arrays of the shapes {shapes} per step, expected vectors (entries,)."
            )
        entries = _cut(name, rule, entries)
        if rule.rotation is not None:
            entries = _with_rotation_names(name, rule.rotation, entries)
        named = all(entries)
        spec = replace(
            first,
            shape=(len(entries),),
            dtype="float32",
            names=(tuple(entries),) if named and entries else (),
            unit=_unit(rule, parts),
            points=(),
        )
    about = {
        "unit": rule.unit,
        "frame": rule.frame,
        "about": rule.about,
        "role": rule.role or None,
        "interface": rule.interface,
        "names": None if rule.names is None else (rule.names,),
    }
    spec = replace(spec, **{key: value for key, value in about.items() if value is not None})
    if rule.names is not None and len(rule.names) != spec.shape[-1]:
        raise HandoffError(
            f"map.fields.{name}.names: {len(rule.names)} names, expected {spec.shape[-1]}."
        )
    return replace(spec, role="action") if name == ACTION and not rule.role else spec


def _unchanged(rule: FieldRule) -> bool:
    """Whether the array is stored as it is."""
    return (
        len(rule.sources) == 1
        and rule.entries is None
        and rule.rotation is None
        and (rule.image, rule.size) == (None, None)
        and (rule.scale, rule.offset) == (1.0, 0.0)
        and (rule.relative_to, rule.added_to) == (None, None)
    )


def _labels(spec: FieldSpec) -> list[str]:
    """Names of the entries of a vector; empty strings where they have none."""
    width = spec.shape[-1] if spec.shape else 1
    return list(spec.names[-1]) if spec.names else [""] * width


def _cut(name: str, rule: FieldRule, entries: list[str]) -> list[str]:
    if rule.entries is None:
        return entries
    first, end = rule.entries
    if not first < end <= len(entries):
        raise HandoffError(
            f"map.fields.{name}.entries: [{first}, {end}] of {len(entries)} entries, expected a first entry and an end "
            "within them."
        )
    return entries[first:end]


def _with_rotation_names(name: str, rule: RotationRule, entries: list[str]) -> list[str]:
    end = rule.first + SIZES[rule.given]
    if end > len(entries):
        raise HandoffError(
            f"map.fields.{name}.rotation: entries {rule.first} to {end} of {len(entries)}; the form {rule.given} has "
            f"{SIZES[rule.given]}."
        )
    if rule.degrees and UNITS[rule.given] != "rad":
        raise HandoffError(
            f"map.fields.{name}.rotation.degrees: is true, but the form {rule.given} has no angles."
        )
    stored = list(NAMES[rule.stored])
    named = all(entries) or len(entries) == SIZES[rule.given]
    return [*entries[: rule.first], *(stored if named else [""] * len(stored)), *entries[end:]]


def _unit(rule: FieldRule, parts: list[FieldSpec]) -> str:
    """Unit of the entries that a rule makes: one for all, one for each, or every unit once where
    an array does not say which entries have it."""
    known = [entry_units(part) for part in parts]
    units = [unit for part in known for unit in part or ()]
    if not all(known):
        units = [unit for part in parts for unit in part.unit.split(", ")]
        return ", ".join(dict.fromkeys(units))
    units = units if rule.entries is None else units[slice(*rule.entries)]
    if (turn := rule.rotation) is not None:
        turned = [UNITS[turn.stored]] * SIZES[turn.stored]
        units[turn.first : turn.first + SIZES[turn.given]] = turned
    return units[0] if len(set(units)) == 1 else ", ".join(units)


def _image_shape(name: str, rule: FieldRule, parts: list[FieldSpec]) -> tuple[int, int, int]:
    shape = tuple(parts[0].shape)
    height, width = _plane(shape)
    fits = len(parts) == 1 and parts[0].dtype == "uint8" and height > 0
    if not fits:
        raise HandoffError(
            f"map.fields.{name}: {len(parts)} array(s) of the shape {shape} and type {parts[0].dtype} per step, "
            "expected one uint8 picture (height, width, 3), (3, height, width) or (height, width)."
        )
    return (*(rule.size or (height, width)), 3)


def _plane(shape: tuple[int, ...]) -> tuple[int, int]:
    """Height and width of a picture; 0, 0 for other arrays."""
    if len(shape) == 2:
        return shape[0], shape[1]
    if len(shape) == 3 and shape[2] in (1, 3):
        return shape[0], shape[1]
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[1], shape[2]
    return 0, 0


def _check_combined(rule: str, spec: FieldSpec, other: str, specs: Mapping[str, FieldSpec]) -> None:
    """Checks the field that the rule `field.key` subtracts or adds."""
    if other not in specs:
        raise HandoffError(
            f"map.fields.{rule}: names '{other}'; {suggest(other, sorted(specs), 'the store has')}"
        )
    if tuple(specs[other].shape) != tuple(spec.shape):
        raise HandoffError(
            f"map.fields.{rule}: '{other}' has the shape {tuple(specs[other].shape)}, the field {tuple(spec.shape)}; "
            "expected the same entries. Cut one of them with entries:."
        )


def _made(rule: FieldRule, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    """One field of an episode, without what is relative to other fields."""
    first = arrays[rule.sources[0]]
    if _unchanged(rule):
        return first
    if rule.image is not None or rule.size is not None:
        return _picture(first, rule)
    columns = [arrays[name].astype(np.float64) for name in rule.sources]
    values = np.concatenate(columns, axis=-1)
    if rule.entries is not None:
        values = values[:, slice(*rule.entries)]
    values = values * rule.scale + rule.offset
    if rule.rotation is not None:
        start, end = rule.rotation.first, rule.rotation.first + SIZES[rule.rotation.given]
        given = values[:, start:end]
        if rule.rotation.degrees:
            given = np.deg2rad(given)
        turned = convert_rotation(given, rule.rotation.given, rule.rotation.stored)
        values = np.concatenate([values[:, :start], turned, values[:, end:]], axis=1)
    return values.astype(np.float32)


def _picture(pictures: np.ndarray, rule: FieldRule) -> np.ndarray:
    """(T, height, width, 3) uint8 RGB."""
    if pictures.ndim == 3:
        pictures = pictures[..., None]
    if pictures.shape[-1] not in (1, 3):
        pictures = np.moveaxis(pictures, 1, -1)
    if rule.image == "bgr":
        pictures = pictures[..., ::-1]
    pictures = np.broadcast_to(pictures, (*pictures.shape[:3], 3))
    if rule.size is None or tuple(pictures.shape[1:3]) == rule.size:
        return np.ascontiguousarray(pictures)
    from PIL import Image

    height, width = rule.size
    resized = [
        np.asarray(Image.fromarray(picture).resize((width, height), Image.Resampling.BOX))
        for picture in np.ascontiguousarray(pictures)
    ]
    return np.stack(resized)
