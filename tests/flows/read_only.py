"""A folder as of a share that is mounted read-only, for tests: root may write a folder that its
permissions make read-only, and a mount needs root."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_protected: list[str] = []
_WRITES = ("os.mkdir", "os.rename", "os.symlink", "os.remove", "os.rmdir", "os.chmod", "os.utime")


@contextmanager
def read_only(folder: Path) -> Iterator[None]:
    """Every attempt of this process to write below a folder fails as on a read-only file system,
    while the context lasts."""
    if not _installed:
        sys.addaudithook(_refuse)
        _installed.append(True)
    _protected.append(str(folder.resolve()))
    try:
        yield
    finally:
        _protected.pop()


_installed: list[bool] = []


def _refuse(event: str, arguments: tuple[Any, ...]) -> None:
    if not _protected:
        return
    if event == "open":
        path, _, flags = arguments
        if isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            _check(path)
    elif event in _WRITES:
        # A file system says first that a folder exists, or that a file does not.
        makes, removes = event == "os.mkdir", event in ("os.remove", "os.rmdir")
        if (makes or removes) and os.path.lexists(arguments[0]) == makes:
            return
        for path in arguments[:2]:
            _check(path)


def _check(path: Any) -> None:
    if not isinstance(path, str | bytes | os.PathLike):
        return
    place = os.path.abspath(os.fsdecode(path))
    if any(place == folder or place.startswith(f"{folder}/") for folder in _protected):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), os.fsdecode(path))
