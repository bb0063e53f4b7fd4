"""Checks arrays of a Zarr v2 group from outside before Zarr opens them.

The metadata of an array name the codecs that decode it, and one of numcodecs' codecs unpickles,
which runs code. Here only plain numbers are accepted, compressed by codecs that decompress and do
nothing else, in chunks of a bounded size.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Iterable, Sequence
from math import prod
from pathlib import Path
from typing import Any

from robots.errors import HandoffError

COMPRESSORS = ("blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd")
LARGEST_CHUNK = 2**28
"""Largest size of a decoded chunk [bytes]; the published images have 18 MB."""
LARGEST_RATIO = 100
"""Largest size of a zip's content in units of the zip's own size; chunks are compressed already."""
FREE_BYTES = 2**26
"""Size of a zip's content up to which any ratio is accepted [bytes]."""
_NUMBERS = re.compile(r"[<>|][fiub](1|2|4|8)")


def check_arrays(path: Path, prefix: str, names: Iterable[str]) -> None:
    """Checks the metadata of arrays, without decoding anything; a missing array passes.

    Args:
        path: a folder, or a zip.
        prefix: path of the group inside it; "" for the top level.
        names: paths of the arrays inside the group.

    Raises:
        HandoffError: an array holds objects, has filters, another codec or huge chunks, or its
            metadata cannot be read.
    """
    read = _reader(path)
    for name in names:
        content = read("/".join(part for part in (prefix, name, ".zarray") if part))
        if content is not None:
            _check_array(f"{path}: {name}", content)


def check_zip_size(path: Path, archive: zipfile.ZipFile) -> None:
    """Checks the size that the files of a zip would have on the disk.

    Raises:
        HandoffError: it is many times that of the zip.
    """
    content = sum(entry.file_size for entry in archive.infolist())
    packed = path.stat().st_size
    if content > max(FREE_BYTES, LARGEST_RATIO * packed):
        raise HandoffError(
            f"{path}: would take {content / 1e6:.0f} MB, {content / max(packed, 1):.0f} times its own size, the "
            f"limit is {LARGEST_RATIO} times. Is it a zip of data?"
        )


def _reader(path: Path) -> Callable[[str], bytes | None]:
    """Reads a file below the folder or in the zip at `path`; None if it is missing."""

    def from_folder(name: str) -> bytes | None:
        file = path / name
        return file.read_bytes() if file.is_file() else None

    def from_zip(name: str) -> bytes | None:
        with zipfile.ZipFile(path) as archive:
            check_zip_size(path, archive)
            return archive.read(name) if name in archive.namelist() else None

    return from_folder if path.is_dir() else from_zip


def _check_array(array: str, content: bytes) -> None:
    try:
        metadata = json.loads(content)
        dtype, filters, compressor = (metadata[key] for key in ("dtype", "filters", "compressor"))
        codec = None if compressor is None else compressor["id"]
        chunks = metadata["chunks"]
    except (ValueError, KeyError, TypeError) as error:
        raise HandoffError(
            f"{array}: its .zarray cannot be read ({error}). Was it damaged?"
        ) from None
    if not (isinstance(dtype, str) and _NUMBERS.fullmatch(dtype)):
        raise HandoffError(
            f"{array} has dtype {dtype!r:.40}, expected numbers such as '<f4'. Arrays of objects can run code when "
            "they are read."
        )
    if filters or not (codec is None or codec in COMPRESSORS):
        codecs = filters if filters else compressor
        raise HandoffError(
            f"{array} is encoded by {codecs!r:.80}, expected no filters and one of {', '.join(COMPRESSORS)}. Other "
            "codecs can run code when they are read."
        )
    if _chunk_bytes(chunks, dtype) > LARGEST_CHUNK:
        raise HandoffError(
            f"{array} has chunks of {chunks!r:.60} {dtype}, the limit is {LARGEST_CHUNK / 1e6:.0f} MB each. Was it "
            "made for this purpose?"
        )


def _chunk_bytes(chunks: Any, dtype: str) -> float:
    """Size of a decoded chunk [bytes]; infinite if the shape is none."""
    sizes: Sequence[Any] = chunks if isinstance(chunks, list) else [None]
    if not all(isinstance(size, int) and size > 0 for size in sizes):
        return float("inf")
    return prod(sizes) * int(dtype[-1])
