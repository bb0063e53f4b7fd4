"""Reads rows of the arrays in a NumPy archive, after checking their sizes and types."""

from __future__ import annotations

import tokenize
import zipfile
from contextlib import ExitStack
from math import prod
from pathlib import Path
from typing import IO

import numpy as np

from robots.episodes.formats.containers.folder import check_name
from robots.episodes.formats.containers.zarr_v2 import check_zip_size
from robots.episodes.formats.source import check_size, explain_damage
from robots.errors import HandoffError

_KINDS = "biufUS"


class NpzMember:
    """One array of an archive; reading rows in rising order decompresses each byte once."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> None:
        """Reads the header of the array.

        Raises:
            HandoffError: it is damaged, holds objects, or states another size than the archive.
        """
        self.name = entry.filename.removesuffix(".npy")
        """Name of the array."""
        check_name(path, self.name)
        self._path = path
        self._archive = archive
        self._entry = entry
        self._file: IO[bytes] | None = None
        with explain_damage(path, self.name), archive.open(entry) as file:
            shape, fortran, dtype = _read_header(file)
            self._start = file.tell()
        self.shape: tuple[int, ...] = shape
        """Shape of the whole array."""
        self.dtype: np.dtype = dtype
        """Number type, or that of words."""
        self._fortran = fortran and len(shape) > 1
        if dtype.kind not in _KINDS:
            raise HandoffError(
                f"{path}: {self.name} has dtype {str(dtype)[:40]}, expected numbers or words. Arrays of objects can "
                "run code when they are read."
            )
        if self._fortran:
            check_size(path, self.name, shape, dtype.itemsize)
        size = prod(shape) * dtype.itemsize
        if size != entry.file_size - self._start:
            raise HandoffError(
                f"{path}: {self.name} has {entry.file_size - self._start} bytes, expected {size} of its shape "
                f"{shape}. Was it cut short?"
            )

    def rows(self, start: int, stop: int | None) -> np.ndarray:
        """The rows from `start` to before `stop`, in native byte order; None reads all.

        Raises:
            HandoffError: the archive is damaged, or the rows are too large.
        """
        count = self.shape[0] if self.shape else 1
        stop = count if stop is None else stop
        shape = (stop - start, *self.shape[1:]) if self.shape else ()
        if self._fortran and (start, stop) != (0, count):
            return self.rows(0, None)[start:stop]
        check_size(self._path, self.name, shape, self.dtype.itemsize)
        row = prod(self.shape[1:]) * self.dtype.itemsize
        with explain_damage(self._path, self.name):
            if self._file is None:
                self._file = self._archive.open(self._entry)
            self._file.seek(self._start + start * row)
            content = self._file.read(prod(shape) * self.dtype.itemsize)
            order = "F" if self._fortran else "C"
            values = np.frombuffer(content, self.dtype).reshape(shape, order=order)
        return np.array(values, dtype=self.dtype.newbyteorder("="), order="C")


def read_members(path: Path, stack: ExitStack) -> dict[str, NpzMember]:
    """The arrays of an archive by name.

    Args:
        path: the file.
        stack: closes it.

    Raises:
        HandoffError: it is no archive, or holds something else than arrays.
    """
    with explain_damage(path, "the file"):
        archive = stack.enter_context(zipfile.ZipFile(path))
        check_zip_size(path, archive)
        entries = archive.infolist()
    for entry in entries:
        if not entry.filename.endswith(".npy"):
            raise HandoffError(
                f"{path}: holds {entry.filename[:60]!r}, expected arrays (.npy). Is it a NumPy archive?"
            )
    members = [NpzMember(path, archive, entry) for entry in entries]
    if len({member.name for member in members}) != len(members):
        raise HandoffError(f"{path}: holds two arrays of one name. Was it made for this purpose?")
    return {member.name: member for member in members}


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype]:
    """Shape, whether the first axis runs fastest, and type of an array."""
    version = np.lib.format.read_magic(file)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of NumPy's format is unknown")
    try:
        if version == (1, 0):
            return np.lib.format.read_array_header_1_0(file)
        return np.lib.format.read_array_header_2_0(file)
    except (SyntaxError, tokenize.TokenError) as error:
        raise ValueError(f"its header is no literal: {error}") from None
