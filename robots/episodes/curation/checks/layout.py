"""Sorts the fields of a stream by their kind, and numbers the entries that are examined."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from robots.episodes.demonstrations import STREAM, field_role
from robots.episodes.metadata.capture_times import capture_times
from robots.episodes.schema import EpisodeSchema
from robots.language.text import UNIT as TEXT
from robots.spec import FieldSpec, Role

_PICTURE_POINTS = 1024
"""Number of entries from which a field of several axes is thinned as a picture."""
_TIME = re.compile(r"(.*_)?(times?|timestamps?|time_stamp|stamp)|t")
_COUNTER = re.compile(r"(frame|step)(_index|_number|_id)?|index")
_REWARD = re.compile(r"(.*_)?rewards?")
_GRIPPER = re.compile(r"gripper|finger|jaw")
_QUATERNION = re.compile(r"quat")
_ORDERS = (("w", "x", "y", "z"), ("x", "y", "z", "w"))


@dataclass(frozen=True)
class StateField:
    """A field of numbers that is observed or is an action."""

    name: str
    role: Role
    unit: tuple[str, ...]
    """Unit of each entry."""
    labels: tuple[str, ...]
    """Name of each entry, with the field's name."""
    taken: np.ndarray
    """Indices of the entries in a flattened sample."""
    first: int
    """Number of the first entry among all entries of the stream."""
    interface: str = ""
    """Meaning of an action to the controller."""

    @property
    def entries(self) -> slice:
        """The field's entries among those of the stream."""
        return slice(self.first, self.first + len(self.labels))

    @property
    def is_gripper(self) -> np.ndarray:
        """(entries,) bool: entries of a gripper, by their names."""
        return np.array([bool(_GRIPPER.search(label.lower())) for label in self.labels], bool)


@dataclass(frozen=True)
class StreamLayout:
    """Fields of a stream by their kind; D is the number of entries of all `states`."""

    stream: str
    rate_hz: float
    states: tuple[StateField, ...]
    """Numbers that are observed, or actions."""
    pictures: tuple[str, ...]
    """Pictures, depth images and other fields that are thinned to a grid."""
    times: dict[str, float]
    """Capture times, with the length of their unit; 0 where the unit is not stated [s]."""
    captures: dict[str, str]
    """Fields with the capture times of pictures, by the field of the pictures; not in `times`."""
    counters: tuple[str, ...]
    """Whole numbers that count the steps."""
    rewards: tuple[str, ...]
    texts: tuple[str, ...]
    quaternions: tuple[int, ...]
    """Number of the first entry of every quaternion that a name gives away."""
    specs: dict[str, FieldSpec]

    @property
    def labels(self) -> list[str]:
        """(D,) names of the entries."""
        return [label for field in self.states for label in field.labels]

    @property
    def units(self) -> list[str]:
        """(D,) units of the entries."""
        return [unit for field in self.states for unit in field.unit]

    @property
    def is_action(self) -> np.ndarray:
        """(D,) bool: entries of actions."""
        return np.array([f.role == "action" for f in self.states for _ in f.labels], bool)

    @property
    def is_gripper(self) -> np.ndarray:
        """(D,) bool: entries of grippers, by their names."""
        parts = [field.is_gripper for field in self.states]
        return np.concatenate([*parts, np.zeros(0, bool)])

    def field_of(self, entry: int) -> StateField:
        """The field of an entry."""
        return next(f for f in self.states if f.entries.start <= entry < f.entries.stop)

    def rows(self, arrays: Mapping[str, np.ndarray]) -> np.ndarray:
        """(T, D) float64: the entries of one episode.

        Args:
            arrays: `(T, *field shape)` of every field in `states`.
        """
        steps = len(next(iter(arrays.values()))) if arrays else 0
        parts = [
            arrays[field.name].reshape(steps, -1)[:, field.taken].astype(np.float64)
            for field in self.states
        ]
        return np.concatenate([np.zeros((steps, 0)), *parts], axis=1)


def stream_layout(schema: EpisodeSchema, entries_per_field: int) -> StreamLayout:
    """The fields of the stream `policy`, or of the first stream, by their kind."""
    stream = STREAM if STREAM in schema.streams else next(iter(schema.streams))
    spec = schema.streams[stream]
    states: list[StateField] = []
    others: dict[str, list[str]] = {kind: [] for kind in ("picture", "counter", "reward", "text")}
    times: dict[str, float] = {}
    first = 0
    for name, field in spec.fields.items():
        kind = _kind(name, field)
        if kind == "state":
            states.append(_state_field(name, field, first, entries_per_field))
            first += len(states[-1].labels)
        elif kind == "time":
            times[name] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9}.get(field.unit, 0.0)
        elif kind in others:
            others[kind].append(name)
    taken = capture_times(spec.fields)
    captures = {name: taken[name] for name in others["picture"] if name in taken}
    return StreamLayout(
        stream=stream,
        rate_hz=spec.rate_hz,
        states=tuple(states),
        pictures=tuple(others["picture"]),
        times={name: unit for name, unit in times.items() if name not in captures.values()},
        captures=captures,
        counters=tuple(others["counter"]),
        rewards=tuple(others["reward"]),
        texts=tuple(others["text"]),
        quaternions=tuple(start for state in states for start in _quaternions(state)),
        specs=dict(spec.fields),
    )


def _kind(name: str, spec: FieldSpec) -> str:
    """Kind of a field: state, picture, time, counter, reward, text, or empty."""
    last = re.split(r"[/.]", name.lower())[-1]
    entries, kind = prod(spec.shape), np.dtype(spec.dtype).kind
    role = field_role(name, spec)
    if entries == 0:
        return ""
    if spec.unit == TEXT:
        return "text"
    if spec.unit == "u8" or (len(spec.shape) >= 2 and entries >= _PICTURE_POINTS):
        return "picture" if len(spec.shape) >= 2 else ""
    if entries == 1 and kind in "iuf" and role != "action" and _TIME.fullmatch(last):
        return "time"
    if entries == 1 and kind in "iu" and role != "action" and _COUNTER.fullmatch(last):
        return "counter"
    if entries == 1 and _REWARD.fullmatch(last):
        return "reward"
    return "state" if role in ("observation", "action") else ""


def _state_field(name: str, spec: FieldSpec, first: int, most: int) -> StateField:
    entries = prod(spec.shape)
    taken = np.unique(np.linspace(0, entries - 1, min(entries, most)).round().astype(int))
    names = _entry_names(spec)
    units = [unit.strip() for unit in spec.unit.split(",")]
    units = units if len(units) == entries else [spec.unit] * entries
    return StateField(
        name=name,
        role=field_role(name, spec),
        unit=tuple(units[i] for i in taken),
        labels=tuple(_label(name, names, int(i), entries) for i in taken),
        taken=taken,
        first=first,
        interface=spec.interface,
    )


def _entry_names(spec: FieldSpec) -> list[str]:
    """Names of the entries of a flattened sample; empty if some are missing."""
    if not spec.names or [len(names) for names in spec.names] != list(spec.shape):
        return []
    return [".".join(parts) for parts in product(*spec.names)]


def _label(name: str, names: Sequence[str], index: int, entries: int) -> str:
    if names:
        return f"{name}.{names[index]}"
    return name if entries == 1 else f"{name}[{index}]"


def _quaternions(field: StateField) -> list[int]:
    """Numbers of the first entries of a field's quaternions, by the names of entries or field."""
    last = [label.rpartition(".")[2].lower() for label in field.labels]
    last = [re.sub(r"^.*(?=[wxyz]$)", "", name) if _names_axis(name) else name for name in last]
    starts = [i for i in range(len(last) - 3) if tuple(last[i : i + 4]) in _ORDERS]
    if not starts and len(last) == 4 and _QUATERNION.search(field.name.lower()):
        starts = [0]
    return [field.first + start for start in starts]


def _names_axis(name: str) -> bool:
    """Whether a name is one of an axis, such as x, qx, quat_w or rotation_z."""
    return bool(
        re.fullmatch(r"(q|quat_?|quaternion_?|rot_?|rotation_?|orientation_?)?[wxyz]", name)
    )
