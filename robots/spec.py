"""Describes named arrays: shape, dtype, unit and frame."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from robots.config import config
from robots.errors import HandoffError


@config
class FieldSpec:
    """One named array, per step (no batch or time dimension)."""

    shape: tuple[int, ...]
    """Shape of one sample."""
    dtype: str = "float32"
    """NumPy name of the number type, such as float32 or uint8."""
    unit: str = "1"
    """SI unit symbol: m, rad, s, N, Nm; "1" when dimensionless; "u8" for images."""
    frame: str = ""
    """The frame its numbers are expressed in, e.g. "board", "base"."""
    about: str = ""
    """One phrase: what it is, and the order of its entries."""


@config
class ActionSpec:
    """What a world accepts as one action."""

    low: tuple[float, ...]
    """(A,) smallest accepted values; -inf where there is no bound."""
    high: tuple[float, ...]
    """(A,) largest accepted values."""
    names: tuple[str, ...] = ()
    """(A,) one short name per entry, such as x, yaw, gripper; empty when the engine does not
    tell."""
    unit: str = "1"
    """SI unit symbol; "1" for entries scaled to [-1, 1]."""
    interface: str = ""
    """How entries become motion, such as `cartesian_delta` or `pd_target`; "" when only the engine
    knows."""

    @property
    def size(self) -> int:
        """A, entries of one action."""
        return len(self.low)


def check_field(name: str, spec: FieldSpec, array: np.ndarray, leading: int = 1) -> None:
    """Checks `array` of shape `(leading dims, *spec.shape)` against its spec.

    Raises:
        HandoffError: wrong shape, wrong kind of dtype, or a non-finite entry; says where.
    """
    if array.shape[leading:] != tuple(spec.shape) or array.ndim != leading + len(spec.shape):
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


def check_fields(
    specs: Mapping[str, FieldSpec], arrays: Mapping[str, np.ndarray], leading: int = 1
) -> None:
    """Checks that `arrays` hold exactly the fields of `specs`, each as declared.

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
