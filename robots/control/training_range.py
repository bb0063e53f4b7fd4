"""Compares observations with the range of the training data, and refuses those far outside.

The rule: an entry farther outside the range of the training data than `REFUSED_WIDTHS` times the
range's width is refused; anything nearer is passed unchanged. Factor 10 separates the two cases
that occur. States a little outside the data (another starting pose, a harder push) are what
policies are evaluated on, and clipping them would make the exported policy differ from the
evaluated one and hide a lost object behind a plausible value. Wrong units (millimetres or pixels
for metres: factor 1000, degrees for radians: 57) are beyond it. A range may be narrow because the
data vary little, such as a constant goal; therefore widths have a lower bound, `SMALLEST_WIDTHS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from math import prod

import numpy as np

from robots.config import Finite, config
from robots.errors import SafetyError
from robots.spec import FieldSpec

REFUSED_WIDTHS = 10.0
"""Distance from the range beyond which an entry is refused [widths of the range]."""
SMALLEST_WIDTHS = {
    "m": 0.1,
    "rad": 0.5,
    "m/s": 0.5,
    "rad/s": 1.0,
    "N": 10.0,
    "Nm": 5.0,
    "s": 1.0,
    "1": 1.0,
}
"""Lower bounds of a range's width by unit [unit]. For other units it is the largest absolute value
in the data, at least 1."""
_QUANTILES = (0.01, 0.99)


@config
class DataRange:
    """Range of a field in the training data. Every tuple has one number per entry of the flattened
    field; for a point cloud, one per coordinate, over all points [unit of the field]."""

    low: tuple[Finite, ...]
    """Smallest values."""
    high: tuple[Finite, ...]
    """Largest values."""
    q01: tuple[Finite, ...]
    """1 % quantiles."""
    q99: tuple[Finite, ...]
    """99 % quantiles."""


@config
class InputRange(DataRange):
    """Range of an observation field, with the bounds of accepted values."""

    refuse_below: tuple[Finite, ...]
    """Smaller values are refused."""
    refuse_above: tuple[Finite, ...]
    """Larger values are refused."""


def data_range(rows: np.ndarray) -> DataRange:
    """Range of a flattened field (N, entries) of N steps."""
    first, last = np.quantile(rows, _QUANTILES, axis=0)
    return DataRange(
        low=_plain(rows.min(axis=0)),
        high=_plain(rows.max(axis=0)),
        q01=_plain(first),
        q99=_plain(last),
    )


def input_range(
    unit: str, rows: np.ndarray, fitted: tuple[np.ndarray, np.ndarray] | None = None
) -> InputRange:
    """Range of an observation field, with the bounds of accepted values.

    Args:
        unit: unit of the field, see `robots.spec.FieldSpec.unit`.
        rows: (N, entries) the field in all steps of the data, flattened.
        fitted: lowest and highest values (entries,) to which the policy's normaliser was fitted, if
            it has any; the range contains them too, as a policy may have been trained on more data.
    """
    known = data_range(rows)
    low, high = np.array(known.low), np.array(known.high)
    if fitted is not None:
        low, high = np.minimum(low, fitted[0]), np.maximum(high, fitted[1])
    margin = REFUSED_WIDTHS * np.maximum(high - low, _smallest_widths(unit, low, high))
    return InputRange(
        low=_plain(low),
        high=_plain(high),
        q01=known.q01,
        q99=known.q99,
        refuse_below=_plain(low - margin),
        refuse_above=_plain(high + margin),
    )


def _smallest_widths(unit: str, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """(entries,) lower bounds of the widths. Fields of several units list one per entry, such as
    "m, m, rad", or less; the largest bound then holds for all entries."""
    magnitude = np.maximum(1.0, np.maximum(np.abs(low), np.abs(high)))
    widths = [
        np.full(len(low), SMALLEST_WIDTHS[name]) if name in SMALLEST_WIDTHS else magnitude
        for name in (part.strip() for part in unit.split(","))
    ]
    if len(widths) == len(low):
        return np.array([width[i] for i, width in enumerate(widths)])
    return np.max(widths, axis=0)


class RangeCheck:
    """Refuses observations far outside the training data.

    Args:
        specs: fields of one step, in the order of the vector to be checked.
        ranges: ranges by field; fields without one are not checked.
    """

    def __init__(self, specs: Mapping[str, FieldSpec], ranges: Mapping[str, InputRange]) -> None:
        self._ranges = ranges
        self._entries = [
            (name, spec, index)
            for name, spec in specs.items()
            for index in product(*(range(size) for size in spec.shape))
        ]
        self.names = tuple(specs)
        """Fields of the vector, in order."""
        self._low = _joined("refuse_below", specs, ranges, -np.inf)
        self._high = _joined("refuse_above", specs, ranges, np.inf)
        self._known = np.flatnonzero(np.isfinite(self._low))
        self._data_low = _joined("low", specs, ranges, -np.inf)[self._known]
        self._data_high = _joined("high", specs, ranges, np.inf)[self._known]
        self._width = (self._data_low - self._low[self._known]) / REFUSED_WIDTHS

    def distance(self, vector: np.ndarray) -> float:
        """Distance of an observation vector (O,) from the range of the training data, of the entry
        that is farthest outside [widths of its range, with the lower bounds of the rule]; 0
        inside."""
        entries = vector[self._known]
        outside = np.maximum(self._data_low - entries, entries - self._data_high)
        return float((outside / self._width).max(initial=0.0))

    def __call__(self, vector: np.ndarray) -> None:
        """Checks observation vectors (..., O).

        Raises:
            SafetyError: an entry far outside the training data.
        """
        if not ((vector < self._low) | (vector > self._high)).any():
            return
        where = np.argwhere((vector < self._low) | (vector > self._high))[0]
        name, spec, index = self._entries[int(where[-1])]
        position = sum(1 for other, _, _ in self._entries[: int(where[-1])] if other == name)
        known = self._ranges[name]
        raise SafetyError(
            f"policy: {_entry_name(name, spec, index)} is {vector[tuple(where)]:.4g} {spec.unit}, in the training data "
            f"it was {known.low[position]:.4g} to {known.high[position]:.4g}, limits "
            f"{known.refuse_below[position]:.4g} to {known.refuse_above[position]:.4g}. Is it in other units, such as "
            "pixels, millimetres or degrees?"
        )


def _joined(
    bound: str, specs: Mapping[str, FieldSpec], ranges: Mapping[str, InputRange], unknown: float
) -> np.ndarray:
    """(O,) one bound of every entry; `unknown` for fields without a range."""
    values = [
        getattr(ranges[name], bound) if name in ranges else (unknown,) * prod(spec.shape)
        for name, spec in specs.items()
    ]
    return np.array([value for entries in values for value in entries], np.float64)


def _entry_name(name: str, spec: FieldSpec, index: tuple[int, ...]) -> str:
    if len(spec.names) == len(spec.shape):
        named = [names[i] for names, i in zip(spec.names, index, strict=True)]
    else:
        named = [str(i) for i in index]
    return f"{name}[{', '.join(named)}]" if named else name


def _plain(values: np.ndarray) -> tuple[float, ...]:
    return tuple(float(value) for value in values)
