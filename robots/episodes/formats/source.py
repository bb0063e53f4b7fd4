"""Defines what every reader of a published format gives: the fields of a data set, and its episodes
one after another.

A format is one module of this package with two functions: `recognises(path)` tells cheaply whether
a file or folder has the format, and `open_source(path, images)` is a context manager that opens it.
`robots.episodes.field_map` turns a source into episodes of a store.
"""

from __future__ import annotations

import re
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from robots.errors import HandoffError
from robots.spec import FieldSpec

LARGEST_EPISODE = 2**33
"""Largest size of a decoded episode [bytes]."""
_DAMAGE = (
    OSError,
    ValueError,
    KeyError,
    IndexError,
    RuntimeError,
    SystemError,
    TypeError,
    AttributeError,
    EOFError,
    MemoryError,
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
)
"""Exceptions with which libraries answer damaged files."""


@dataclass(frozen=True)
class SourceSchema:
    """Fields of a data set of a published format."""

    form: str
    """Name and version of the format, such as "LeRobot v3.0"."""
    task: str
    """Name of the task; the name of the file or folder if the format states none."""
    rate_hz: float | None
    """Steps per second; None if the format does not state it."""
    fields: Mapping[str, FieldSpec]
    """Fields of one step by name, in the order of the data set; each with its `role`."""
    robot: str = ""
    """Robot as the data set names it; empty if it does not."""
    notes: tuple[str, ...] = ()
    """What a reader left out or had to assume, one sentence each."""
    own_times: bool = False
    """Whether fields have capture times of their own, so that a map has to give `resample_hz`."""


class SourceEpisode(NamedTuple):
    """One episode of T steps."""

    arrays: dict[str, np.ndarray]
    """`(T, *shape)` per field."""
    metadata: dict[str, Any]
    """JSON values; `instruction` and `success` where the data set states them."""
    times: Mapping[str, np.ndarray] = {}
    """`(T,)` ascending capture times of fields that are not sampled together [s]; empty if all
    fields are sampled together at the rate of the schema."""


class EpisodeSource(Protocol):
    """A data set of a published format, opened for reading."""

    schema: SourceSchema

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        ...

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`, one in memory at a time.

        Raises:
            HandoffError: damaged files, or an episode that does not have the fields of the schema.
        """
        ...


@dataclass
class StepFields:
    """Collects the fields of a data set from its first episode, and checks the others against it.

    Args:
        path: the data set, for messages.
    """

    path: Path
    fields: dict[str, FieldSpec] = field(default_factory=dict)

    def check(self, episode: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Checks that an episode has all fields, with equal lengths and the shapes of the schema.

        Raises:
            HandoffError: it has not; the message names the episode and the field.
        """
        missing = sorted(self.fields.keys() - arrays.keys())
        if missing:
            raise HandoffError(
                f"{self.path}: episode {episode} lacks {missing}, which the first episode has."
            )
        for name, spec in self.fields.items():
            if arrays[name].shape[1:] != tuple(spec.shape):
                raise HandoffError(
                    f"{self.path}: {name} of episode {episode} has the shape {arrays[name].shape[1:]}, "
                    f"expected {tuple(spec.shape)} as in the first episode."
                )
        lengths = {name: len(arrays[name]) for name in self.fields}
        if len(set(lengths.values())) > 1 or 0 in lengths.values():
            raise HandoffError(
                f"{self.path}: episode {episode} has fields of the lengths {lengths}, expected one length above 0. "
                "Was it cut short?"
            )


def array_field(array: np.ndarray, role: str, *, image: bool = False, **about: Any) -> FieldSpec:
    """The specification of one field of a data set from its array.

    Args:
        array: `(T, *shape)`.
        role: see `FieldSpec.role`.
        image: whether it holds pictures (height, width, 3) uint8 RGB.
        about: further attributes of the specification, such as `unit` and `names`.
    """
    unit = {"unit": "u8"} if image else {}
    return FieldSpec(
        shape=tuple(int(size) for size in array.shape[1:]),
        dtype=array.dtype.name,
        role=role,  # type: ignore[arg-type]
        **{**unit, **about},
    )


def field_name(name: str) -> str:
    """A name of a data set's array as the name of a field: parts are separated by "/", and
    characters that a field's name cannot have become "_"."""
    parts = [re.sub(r"[^A-Za-z0-9_.-]", "_", part) for part in name.split("/") if part]
    return "/".join(part if part[0].isalnum() or part[0] == "_" else f"_{part}" for part in parts)


@contextmanager
def explain_damage(path: Path, name: str) -> Iterator[None]:
    """Turns the exceptions with which libraries answer damaged files into one clear line.

    Args:
        path: the file or folder.
        name: the part of it that is read.

    Raises:
        HandoffError: the part cannot be read.
    """
    try:
        yield
    except HandoffError:
        raise
    except _DAMAGE as error:
        what = str(error).splitlines()
        reason = what[0][:160] if what else type(error).__name__
        raise HandoffError(
            f"{path}: {name} cannot be read ({reason}). Was the file damaged or cut short?"
        ) from None


def check_size(path: Path, name: str, shape: tuple[int, ...], itemsize: int) -> None:
    """Checks the size of an array before it is decoded.

    Raises:
        HandoffError: it has more than `LARGEST_EPISODE` bytes.
    """
    size = float(itemsize)
    for length in shape:
        size *= length
    if size > LARGEST_EPISODE:
        raise HandoffError(
            f"{path}: {name} has the shape {shape}, {size / 1e9:.0f} GB, the limit is "
            f"{LARGEST_EPISODE / 1e9:.0f} GB per episode. Was it made for this purpose?"
        )
