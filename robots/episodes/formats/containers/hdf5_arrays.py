"""Reads arrays of HDF5 files whose numbers or words lie in the file itself.

An array can lie in other files, need a decompressor of the computer, and declare any size; all of
this is refused before a byte is decoded.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.episodes.formats.source import check_size, explain_damage
from robots.errors import HandoffError

if TYPE_CHECKING:
    import h5py

FREE_BYTES = 2**26
"""Size of an array up to which any ratio to its stored size is accepted [bytes]."""
LARGEST_RATIO = 1100
"""Largest size of an array in units of its stored size; gzip reaches 1032."""
LARGEST_CHUNK = 2**30
"""Largest size of a decoded chunk [bytes]."""
LARGEST_WORDS = 2**26
"""Largest size of all words of one array [bytes]."""
_FILTERS = {1: "deflate", 2: "shuffle", 3: "fletcher32", 5: "nbit", 6: "scaleoffset", 32000: "lzf"}
"""Decompressors inside the library or h5py; others would be loaded from the computer."""


class Hdf5Array:
    """An array of a file whose numbers or words lie in the file.

    Args:
        path: the file.
        name: name of the array, for messages.
        dataset: the array.

    Raises:
        HandoffError: its content lies in other files, or needs a decompressor of the computer.
    """

    def __init__(self, path: Path, name: str, dataset: h5py.Dataset) -> None:
        import h5py

        self.path = path
        self.name = name
        self._dataset = dataset
        plist = dataset.id.get_create_plist()
        if plist.get_layout() == h5py.h5d.VIRTUAL or plist.get_external_count():
            raise HandoffError(
                f"{path}: {name} lies in other files (a virtual data set or external storage), outside the data set. "
                "Copy the data into one file if you trust it."
            )
        filters = [plist.get_filter(number)[0] for number in range(plist.get_nfilters())]
        unknown = [code for code in filters if code not in _FILTERS]
        if unknown:
            raise HandoffError(
                f"{path}: {name} is compressed by the HDF5 filter {unknown[0]}, expected one of "
                f"{', '.join(_FILTERS.values())}. Write the file again with gzip (h5repack -f GZIP=4)."
            )

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the whole array; `(0,)` if it is empty."""
        with explain_damage(self.path, self.name):
            shape = self._dataset.shape
        return (0,) if shape is None else tuple(int(size) for size in shape)

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """Type of the numbers in native byte order; kind "O" or "S" for words and others."""
        with explain_damage(self.path, self.name):
            dtype = self._dataset.dtype
        return np.dtype(dtype.newbyteorder("=").str) if dtype.kind in "biuf" else dtype

    @property
    def is_numeric(self) -> bool:
        """Whether it holds truth values, integers or real numbers."""
        return self.dtype.kind in "biuf"

    @property
    def is_text(self) -> bool:
        """Whether it holds words."""
        import h5py

        return self.dtype.kind == "S" or h5py.check_string_dtype(self.dtype) is not None

    @property
    def is_bytes(self) -> bool:
        """Whether every row is a byte string of its own length, such as an encoded picture."""
        import h5py

        inner = h5py.check_vlen_dtype(self.dtype)
        return inner is not None and inner == np.dtype(np.uint8)

    @property
    def is_picture(self) -> bool:
        """Whether every row is a picture (height, width, 3) uint8."""
        return self.dtype == np.uint8 and len(self.shape) == 4 and self.shape[3] == 3

    def rows(self, first: int = 0, stop: int | None = None) -> np.ndarray:
        """The rows `[first, stop)` in native byte order.

        Raises:
            HandoffError: they are no numbers, too large for the file or for the memory, or damaged.
        """
        if not self.is_numeric or not self.shape:
            raise HandoffError(
                f"{self.path}: {self.name} is {self.dtype}{self.shape}, expected numbers (T, ...). Was it damaged?"
            )
        stop = self.shape[0] if stop is None else stop
        self._check(max(stop - first, 0))
        with explain_damage(self.path, self.name):
            rows = self._dataset[first:stop]
            return np.ascontiguousarray(rows, dtype=self.dtype)

    def words(self) -> list[str]:
        """The words of an array `()` or `(N,)`.

        Raises:
            HandoffError: they are no words, or too long.
        """
        if not self.is_text or len(self.shape) > 1:
            raise HandoffError(
                f"{self.path}: {self.name} is {self.dtype}{self.shape}, expected words. Was it damaged?"
            )
        return [content.decode(errors="replace").rstrip("\0") for content in self._bytes()]

    def byte_rows(self, first: int = 0, stop: int | None = None) -> Iterator[bytes]:
        """The rows `[first, stop)` as bytes, one after another: rows of uint8 that are padded, or
        byte strings of their own lengths.

        Raises:
            HandoffError: it holds something else.
        """
        padded = self.dtype == np.uint8 and len(self.shape) == 2
        if not (padded or (self.is_bytes and len(self.shape) == 1)):
            raise HandoffError(
                f"{self.path}: {self.name} is {self.dtype}{self.shape}, expected encoded pictures uint8 (T, bytes)."
            )
        self._check(self.shape[0])
        for row in range(first, self.shape[0] if stop is None else stop):
            with explain_damage(self.path, f"row {row} of {self.name}"):
                content = np.asarray(self._dataset[row], dtype=np.uint8).tobytes()
            yield content

    def _bytes(self) -> Iterator[bytes]:
        """Words: those of one length at once, others one by one, because many of them may share one
        large string."""
        self._check(self.shape[0] if self.shape else 1)
        total = 0
        pieces = range(self.shape[0]) if self.shape and self.dtype.kind != "S" else [()]
        if self.dtype.kind == "S":
            total = self.dtype.itemsize * prod(self.shape)
        for piece in pieces:
            if total > LARGEST_WORDS:
                raise HandoffError(
                    f"{self.path}: {self.name} has more than {LARGEST_WORDS / 1e6:.0f} MB of words. Was it made for "
                    "this purpose?"
                )
            with explain_damage(self.path, self.name):
                values = np.asarray(self._dataset[piece], dtype=object).reshape(-1).tolist()
                words = [word.encode() if isinstance(word, str) else bytes(word) for word in values]
            total += sum(map(len, words)) if self.dtype.kind != "S" else 0
            yield from words

    def _check(self, count: int) -> None:
        """Checks the declared size before `count` rows are decoded."""
        rows = (count, *self.shape[1:]) if self.shape else ()
        check_size(self.path, self.name, rows, self.dtype.itemsize)
        size = float(self.dtype.itemsize) * prod(map(float, self.shape))
        stored, chunk = self._stored
        if size and stored == 0:
            raise HandoffError(
                f"{self.path}: {self.name} {self.shape} was never written. Was the recording interrupted?"
            )
        if stored > self.path.stat().st_size or size > max(FREE_BYTES, LARGEST_RATIO * stored):
            raise HandoffError(
                f"{self.path}: {self.name} has the shape {self.shape}, {size / 1e6:.0f} MB, stored in "
                f"{stored / 1e6:.1f} MB; the file has {self.path.stat().st_size / 1e6:.1f} MB. Was it cut short?"
            )
        if chunk > LARGEST_CHUNK:
            raise HandoffError(
                f"{self.path}: {self.name} has chunks of {chunk / 1e6:.0f} MB, the limit is {LARGEST_CHUNK / 1e6:.0f} "
                "MB. Was it made for this purpose?"
            )

    @cached_property
    def _stored(self) -> tuple[int, float]:
        """Stored size, and size of a decoded chunk [bytes]."""
        with explain_damage(self.path, self.name):
            chunks: Sequence[int] = self._dataset.chunks or ()
            chunk = float(self.dtype.itemsize) * prod(map(float, chunks)) if chunks else 0.0
            return int(self._dataset.id.get_storage_size()), chunk
