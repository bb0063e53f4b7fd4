"""Opens the arrays of a Zarr v2 group after checking their metadata and their chunks."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from math import ceil, prod
from pathlib import Path
from typing import Any

import numpy as np

from robots.episodes.formats.containers.folder import LARGEST_JSON, check_name
from robots.episodes.formats.containers.zarr_v2 import LARGEST_CHUNK, check_arrays, check_zip_size
from robots.episodes.formats.source import check_size, explain_damage
from robots.errors import HandoffError

_METADATA = ".zarray"
_JPEG_XL = ("imagecodecs_jpegxl", "jpegxl")
_Read = Callable[[str, int], bytes]


@dataclass(frozen=True)
class ReplayArray:
    """One checked array, read by rows."""

    path: Path
    """The data set, for messages."""
    name: str
    """Path in the group."""
    shape: tuple[int, ...]
    """Length, and shape of one row."""
    dtype: np.dtype
    """Number type."""
    read: Callable[[int, int], np.ndarray]
    """Reads the rows from a first one to before a last one."""

    def rows(self, start: int, stop: int) -> np.ndarray:
        """The rows `[start, stop)`.

        Raises:
            HandoffError: a chunk cannot be decoded.
        """
        check_size(self.path, self.name, (stop - start, *self.shape[1:]), self.dtype.itemsize)
        with explain_damage(self.path, self.name):
            try:
                return self.read(start, stop)
            except SystemError as error:
                # Blosc answers some damaged chunks with it.
                raise ValueError(str(error)) from None


@contextmanager
def open_arrays(path: Path, prefix: str, skip_encoded: bool) -> Iterator[dict[str, ReplayArray]]:
    """Opens all arrays of the group `prefix` inside a folder or zip, by their path in the group.

    Args:
        path: the folder or zip.
        prefix: path of the group; "" for the top level.
        skip_encoded: whether arrays of JPEG XL pictures are left out.

    Raises:
        HandoffError: an array is damaged or incomplete, or reading it could run code or needs a
            package that is missing.
    """
    import zarr
    from zarr.storage import LocalStore, ZipStore

    with ExitStack() as stack:
        read, files = _opened(path, prefix, stack)
        names = sorted(
            name.removesuffix(f"/{_METADATA}") for name in files if name.endswith(f"/{_METADATA}")
        )
        for name in names:
            check_name(path, name)
        infos = {name: _read_info(path, name, read) for name in names}
        encoded = [name for name in names if _codec(infos[name]) in _JPEG_XL]
        with explain_damage(path, "metadata"):
            check_arrays(path, prefix, [name for name in names if name not in encoded])
        for name in names:
            _check_chunks(path, name, infos[name], files)
        store = LocalStore(path, read_only=True) if path.is_dir() else ZipStore(path, mode="r")
        stack.callback(store.close)
        arrays: dict[str, ReplayArray] = {}
        with explain_damage(path, "groups"):
            # Consolidated metadata would replace those that were checked.
            group: Any = zarr.open_group(
                store, path=prefix, mode="r", zarr_format=2, use_consolidated=False
            )
        for name in names:
            if name not in encoded:
                with explain_damage(path, name):
                    arrays[name] = _zarr_array(path, name, group[name])
            elif not skip_encoded:
                arrays[name] = _jpeg_xl_array(path, name, infos[name], read)
        yield arrays


def _opened(path: Path, prefix: str, stack: ExitStack) -> tuple[_Read, set[str]]:
    """A function that reads a file of the group up to a limit, and the files by their paths in the
    group.

    Raises:
        HandoffError: a link in the folder, or a zip that cannot be read.
    """
    start = f"{prefix}/" if prefix else ""
    with explain_damage(path, "content"):
        if path.is_dir():
            root = path / prefix
            return lambda name, limit: _read(root / name, name, limit), _folder_files(root)
        archive = stack.enter_context(zipfile.ZipFile(path))
        check_zip_size(path, archive)
        files = {name.removeprefix(start) for name in archive.namelist() if name.startswith(start)}
        return lambda name, limit: _read(zipfile.Path(archive, start + name), name, limit), files


def _folder_files(root: Path) -> set[str]:
    """Files below a folder that has no links."""
    found: set[str] = set()
    for folder, folders, files in os.walk(root):
        inside = Path(folder)
        for name in (*folders, *files):
            if (inside / name).is_symlink():
                raise HandoffError(
                    f"{inside / name}: is a link inside a replay buffer. Copy the data set with its links followed "
                    "(cp -rL) if you trust it."
                )
        found |= {(inside / name).relative_to(root).as_posix() for name in files}
    return found


def _read(file: Path | zipfile.Path, name: str, limit: int) -> bytes:
    with file.open("rb") as opened:
        content: bytes = opened.read(limit + 1)
    if len(content) > limit:
        raise HandoffError(f"{name} has more than {limit} bytes. Was it made for this purpose?")
    return content


def _read_info(path: Path, name: str, read: _Read) -> dict[str, Any]:
    """The metadata of an array."""
    with explain_damage(path, f"{name}/{_METADATA}"):
        info = json.loads(read(f"{name}/{_METADATA}", LARGEST_JSON))
        shape, chunks = info["shape"], info["chunks"]
        sizes = [*shape, *chunks]
        valid = len(shape) == len(chunks) > 0 and all(type(size) is int for size in sizes)
        if not valid or min(shape) < 0 or min(chunks) < 1:
            raise HandoffError(
                f"{path}: {name} has the shape {shape!r:.60} and chunks {chunks!r:.60}, expected lengths. Was it "
                "damaged?"
            )
    return info


def _codec(info: dict[str, Any]) -> str | None:
    compressor = info.get("compressor")
    return str(compressor.get("id")) if isinstance(compressor, dict) else None


def _check_chunks(path: Path, name: str, info: dict[str, Any], files: set[str]) -> None:
    """Checks that every chunk has a file: Zarr reads a missing one as zeros."""
    present = sum(
        file.startswith(f"{name}/") and not file.rpartition("/")[2].startswith(".")
        for file in files
    )
    expected = prod(
        ceil(size / chunk) for size, chunk in zip(info["shape"], info["chunks"], strict=True)
    )
    if present != expected:
        raise HandoffError(
            f"{path}: {name} has {present} of {expected} chunks. Was the copy incomplete?"
        )


def _zarr_array(path: Path, name: str, array: Any) -> ReplayArray:
    return ReplayArray(
        path,
        name,
        tuple(array.shape),
        np.dtype(array.dtype),
        lambda start, stop: np.asarray(array[start:stop]),
    )


def _jpeg_xl_array(path: Path, name: str, info: dict[str, Any], read: _Read) -> ReplayArray:
    """An array of pictures that UMI stores as one JPEG XL per row."""
    shape, chunks = tuple(info["shape"]), tuple(info["chunks"])
    if info.get("dtype") not in ("|u1", "u1") or info.get("filters") or chunks != (1, *shape[1:]):
        raise HandoffError(
            f"{path}: {name} has JPEG XL chunks of {chunks} {info.get('dtype')!r:.20}, expected one uint8 picture "
            "per chunk as UMI writes them."
        )
    check_size(path, name, chunks, 1)
    try:
        from imagecodecs import jpegxl_decode  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise HandoffError(
            f"{path}: {name} holds JPEG XL pictures, which need the package imagecodecs. Run: pip install "
            "imagecodecs; or leave out the pictures (images: false)."
        ) from None
    separator = str(info.get("dimension_separator") or ".")

    def decode(start: int, stop: int) -> np.ndarray:
        pictures = np.empty((stop - start, *shape[1:]), np.uint8)
        zeros = ["0"] * (len(shape) - 1)
        for row in range(start, stop):
            chunk = f"{name}/{separator.join([str(row), *zeros])}"
            content = read(chunk, LARGEST_CHUNK)
            # Decoding into an array of the stated shape refuses pictures of another size.
            jpegxl_decode(content, out=pictures[row - start])
        return pictures

    return ReplayArray(path, name, shape, np.dtype(np.uint8), decode)
