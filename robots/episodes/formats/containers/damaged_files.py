"""Tells a file that was cut short from one of an unknown format, by its name and its first bytes.

Readers recognise a format by its content, so that none of them claims a file without a readable
one.
"""

from __future__ import annotations

import re
import zipfile
from itertools import islice
from pathlib import Path

from robots.episodes.formats.containers.hdf5 import SIGNATURE, open_hdf5
from robots.errors import HandoffError

_HDF5 = (".hdf5", ".h5", ".hdf")
_ZIPS = (".npz", ".zip")
_OTHERS = (".pkl", ".pickle", ".mcap", ".bag", ".db3")
_IN_FOLDERS = (*_HDF5, ".npz")
"""Endings of files that are one episode of a folder."""
_ZIP_STARTS = (b"PK\x03\x04", b"PK\x05\x06")
_MOST_FILES = 1000
"""Largest number of entries of a folder that are looked at."""
_SIZES = re.compile(r"truncated file: eof = (\d+),.* stored_eof = (\d+)")
"""Sizes in the message of the library about a file that was cut short."""


def check_undamaged(path: Path) -> None:
    """Checks a file whose name ends as those of a known format do, but that no format recognised,
    or the files of arrays right inside a folder.

    Args:
        path: file or folder.

    Raises:
        HandoffError: one of them is empty, cut short, or no file of the kind that its name says.
    """
    if not path.is_dir():
        _check_file(path, path.suffix.lower())
        return
    for file in islice(sorted(path.iterdir()), _MOST_FILES):
        if file.suffix.lower() in _IN_FOLDERS and file.is_file():
            _check_file(file, file.suffix.lower())


def _check_file(path: Path, ending: str) -> None:
    size = path.stat().st_size
    if size == 0 and ending in (*_HDF5, *_ZIPS, *_OTHERS):
        raise HandoffError(f"{path}: is empty (0 bytes). Did the recording or the copy fail?")
    with path.open("rb") as file:
        start = file.read(len(SIGNATURE))
    if ending in _HDF5:
        _check_start(path, size, start, "HDF5 file", (SIGNATURE,))
        _check_hdf5(path)
    elif ending in _ZIPS:
        _check_start(path, size, start, "zip archive", _ZIP_STARTS)
        _check_zip(path, size)


def _check_start(
    path: Path, size: int, start: bytes, kind: str, expected: tuple[bytes, ...]
) -> None:
    if not start.startswith(expected):
        raise HandoffError(
            f"{path}: is no {kind}, as its name says; its {size:,} bytes begin with {start!r}. Was it damaged, or only "
            "half downloaded?"
        )


def _check_hdf5(path: Path) -> None:
    try:
        with open_hdf5(path):
            pass
    except HandoffError as error:
        sizes = _SIZES.search(str(error))
        if sizes is None:
            raise
        raise HandoffError(
            f"{path}: has {int(sizes[1]):,} of the {int(sizes[2]):,} bytes that it states. Was the copy or the "
            "recording cut short?"
        ) from None


def _check_zip(path: Path, size: int) -> None:
    try:
        zipfile.ZipFile(path).close()
    except (zipfile.BadZipFile, OSError, ValueError) as error:
        raise HandoffError(
            f"{path}: the list of files at the end of the archive cannot be read ({error}); it has {size:,} bytes. Was "
            "it cut short?"
        ) from None
