"""Describes named arrays: shape, dtype, unit and frame."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from itertools import groupby
from math import prod
from typing import Literal

import numpy as np

from robots.config import Finite, Unbounded, Whole, config
from robots.errors import HandoffError

XYZ = (("x", "y", "z"),)
"""Names of the entries of a position or rotation vector."""
WXYZ = (("w", "x", "y", "z"),)
"""Names of the entries of a quaternion."""
POSE = (("x", "y", "z", "rx", "ry", "rz"),)
"""Names of the entries of a position followed by a rotation vector."""

_DEGREE = "0.017453292519943295"
_FACTORS = {
    "deg": (_DEGREE, "rad"),
    "degree": (_DEGREE, "rad"),
    "degrees": (_DEGREE, "rad"),
    "deg/s": (_DEGREE, "rad/s"),
    "mm": ("0.001", "m"),
    "cm": ("0.01", "m"),
    "mm/s": ("0.001", "m/s"),
    "cm/s": ("0.01", "m/s"),
    "ms": ("0.001", "s"),
    "us": ("0.000001", "s"),
}
"""Factor to the SI unit, and that unit, by the symbols that data sets often have."""

Role = Literal["", "observation", "action", "outcome", "other"]
"""Part of a recorded field: `observation` of a policy, `action`, `outcome` (reward, success, end of
the episode), `other` (what is recorded beside them); empty where it is not stated, as in older
stores."""

_RESULTS = {"offset": 3, "quarter_turns": 2, "square_turn": 1, "lean": 2}
"""Entries of the result of a relation by its kind."""


@config
class Place:
    """A point fixed to a thing, and the thing's orientation, where both are measured."""

    position: str = ""
    """Field that begins with the position (3) of the thing [m], base frame; empty takes that of the
    fixture, on the plane z = 0."""
    quaternion: str = ""
    """Field with the orientation (4) of the thing, wxyz, base frame; empty takes the fixture's."""
    fixture: str = ""
    """Field with x, y [m] and yaw [rad] of a fixture to which the thing belongs, base frame; empty
    if there is none."""
    point: tuple[Finite, Finite, Finite] = (0.0, 0.0, 0.0)
    """The point in the axes of the thing, or of the base where it has no orientation [m]."""


@config
class Relation:
    """What a field, or a part of it, is computed from where its quantities are measured."""

    kind: Literal["offset", "quarter_turns", "square_turn", "lean"]
    """`offset`: the difference of two positions (3) [m]. `quarter_turns`: cosine and sine of four
    times a box's yaw relative to the gripper's, equal for all its sides. `square_turn`: yaw (1) of
    the target relative to the origin, up to quarter turns, from -pi/4 to pi/4 [rad]. `lean`: x and
    y (2) of the target's z axis, a unit vector."""
    origin: str | Place = ""
    """Place, or field with the position or the pose, from which it is measured, base frame; empty
    for `lean`, which is measured from the base."""
    target: str | Place
    """The other place or field: a position [m], base frame, or a box's quaternion."""
    fixture: str = ""
    """Field with x, y [m] and yaw [rad] of the frame in whose axes an offset is stated; empty for
    those of the base."""
    entries: tuple[Whole, ...] = ()
    """Entries of the result that the field has, in this order; empty for all."""

    def __post_init__(self) -> None:
        """Checks that its ends are of the kind that it is computed from.

        Raises:
            HandoffError: an end without what the relation needs of it, or an entry that it lacks.
        """
        size = _RESULTS[self.kind]
        turns = self.kind in ("square_turn", "lean")
        ends = {"target": self.target} | ({} if self.kind == "lean" else {"origin": self.origin})
        for name, end in ends.items():
            place = end if isinstance(end, Place) else Place(position=end)
            if self.kind == "quarter_turns" and not (isinstance(end, str) and end):
                raise HandoffError(f"relation {self.kind}: {name} is {end!r}, expected a field.")
            if turns and not (place.quaternion or place.fixture):
                raise HandoffError(
                    f"relation {self.kind}: {name} is {end!r}, expected a place with a quaternion or a fixture."
                )
            if end == "":
                raise HandoffError(
                    f"relation {self.kind}: {name} is empty, expected a field or a place."
                )
        if any(entry >= size for entry in self.entries):
            raise HandoffError(
                f"relation {self.kind}: entries {list(self.entries)}, expected below {size}."
            )


@config
class FieldSpec:
    """One named array, per step (no batch or time dimension)."""

    shape: tuple[Whole, ...]
    """Shape of one sample."""
    dtype: str = "float32"
    """NumPy name of the number type, such as float32 or uint8."""
    unit: str = "1"
    """SI unit symbol: m, rad, s, N, Nm; "1" when dimensionless; "u8" for images."""
    frame: str = ""
    """Coordinate frame of the values, e.g. "board", "base"."""
    about: str = field(default="", compare=False)
    """One phrase: the meaning of the field, and the order of its entries."""
    names: tuple[tuple[str, ...], ...] = field(default=(), compare=False)
    """Names of the entries along each axis, such as x, y; empty if they are not named. Specs
    that differ only in `about`, `names`, `points`, `interface`, `role` or `relations` are
    equal, because these only describe the array, and older stores have less of them."""
    points: tuple[tuple[Finite, ...], ...] = field(default=(), compare=False)
    """(N, D) positions of the field's N points in the frame of the body to which they are fixed
    [unit of the field]; empty for fields of other kinds."""
    interface: str = field(default="", compare=False)
    """Meaning of an action to the controller, see `ActionSpec.interface`; empty for observations,
    and for actions whose meaning is not known."""
    role: Role = field(default="", compare=False)
    """Part that the field plays in an episode."""
    relations: tuple[Relation, ...] = field(default=(), compare=False)
    """What the field is computed from, part after part along its only axis; empty for fields that
    are measured, or that do not state it."""


def describe(spec: FieldSpec) -> str:
    """One phrase about a field, such as `float32 (7) [rad], observation`."""
    kind = {"u8": "picture", "utf8": "text"}.get(spec.unit, spec.dtype)
    size = " x ".join(str(length) for length in spec.shape)
    unit = "" if spec.unit in ("1", "u8", "utf8") else f" [{unit_words(spec)}]"
    role = f", {spec.role}" if spec.role else ""
    return f"{kind} ({size}){unit}{role}"


def unit_words(spec: FieldSpec) -> str:
    """The unit of a field in short: where every entry has one, as in `rad, rad, 1`, equal
    neighbours are counted, `rad (2), 1 (1)`, and one that all entries share stands alone."""
    parts = entry_units(spec)
    if parts is None:
        return spec.unit
    runs = [(name, len(list(same))) for name, same in groupby(parts)]
    if len(runs) == 1:
        return runs[0][0]
    return ", ".join(f"{name} ({count})" for name, count in runs)


def entry_units(spec: FieldSpec) -> list[str] | None:
    """The unit of every entry of a flattened sample; None where several are stated without saying
    which entries have them."""
    parts = [part.strip() for part in spec.unit.split(",")]
    entries = prod(spec.shape)
    if len(parts) == 1:
        return parts * entries
    return parts if len(parts) == entries else None


@config
class ActionSpec:
    """Bounds and meaning of one action of an environment."""

    low: tuple[Unbounded, ...]
    """(A,) smallest accepted values; -inf where there is no bound."""
    high: tuple[Unbounded, ...]
    """(A,) largest accepted values."""
    names: tuple[str, ...] = ()
    """(A,) one short name per entry, such as x, yaw, gripper; empty if the engine does not name
    them."""
    unit: str = "1"
    """SI unit symbol; "1" for entries scaled to [-1, 1]."""
    interface: str = ""
    """Meaning of the entries, such as `cartesian_delta` or `pd_target`; "" if only the engine
    defines it."""

    @property
    def size(self) -> int:
        """Number of entries of one action, A."""
        return len(self.low)

    def field_spec(self, about: str = "") -> FieldSpec:
        """The recorded array of such actions, described as `about`."""
        return FieldSpec(
            shape=(self.size,),
            unit=self.unit,
            about="; ".join(filter(None, (about, f"{self.interface}: {', '.join(self.names)}"))),
            names=(self.names,) if self.names else (),
            interface=self.interface,
            role="action",
        )


def check_field(name: str, spec: FieldSpec, array: np.ndarray, leading: int = 1) -> None:
    """Checks `array` of shape `(leading dims, *spec.shape)` against its spec.

    Raises:
        HandoffError: wrong shape, wrong kind of dtype, or a non-finite entry; names its index.
    """
    if array.shape[leading:] != tuple(spec.shape) or array.ndim != leading + len(spec.shape):
        if spec.unit == "u8" and array.shape[leading:] == (spec.shape[-1], *spec.shape[:-1]):
            raise HandoffError(
                f"{name}: shape {array.shape}, expected {tuple(spec.shape)} at the end: put the colours last."
            )
        raise HandoffError(
            f"{name}: shape {array.shape}, expected {leading} leading dimension(s) followed by {tuple(spec.shape)}. "
            "Does the data belong to another task?"
        )
    if not np.can_cast(array.dtype, np.dtype(spec.dtype), casting="same_kind"):
        raise HandoffError(
            f"{name}: dtype {array.dtype} cannot become {spec.dtype} without loss of kind."
        )
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise HandoffError(
            f"{name}: value at index {where} is {array[where]}, expected finite {spec.unit}. Was a sensor lost?"
        )


def is_immutable(array: np.ndarray) -> bool:
    """Whether an array need not be copied to be kept: it and the arrays that it is a view of are
    read-only."""
    owner: object = array
    while isinstance(owner, np.ndarray):
        if owner.flags.writeable:
            return False
        owner = owner.base
    return owner is None


def check_fields(
    specs: Mapping[str, FieldSpec], arrays: Mapping[str, np.ndarray], leading: int = 1
) -> None:
    """Checks that `arrays` have exactly the fields of `specs`, with matching shapes and dtypes.

    Raises:
        HandoffError: missing or unknown field, or what `check_field` finds.
    """
    missing, unknown = sorted(specs.keys() - arrays.keys()), sorted(arrays.keys() - specs.keys())
    if missing or unknown:
        raise HandoffError(
            f"fields: missing {missing}, unknown {unknown}; the schema has {sorted(specs)}."
        )
    for name, spec in specs.items():
        check_field(name, spec, arrays[name], leading)


def check_unit(name: str, unit: str) -> None:
    """Checks that a unit is no common one beside the SI.

    Args:
        name: what has the unit, for the message.
        unit: symbol of the unit.

    Raises:
        HandoffError: it is one of those, with its factor.
    """
    if unit in _FACTORS:
        factor, si = _FACTORS[unit]
        raise HandoffError(
            f"{name}: {unit} is no SI unit; values are stored in {si}: multiply by {factor} (scale in a map), and "
            f"state {si}."
        )
