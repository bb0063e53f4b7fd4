"""Writes paths for a record, relative where they can be, and reads them back."""

from __future__ import annotations

import os
from pathlib import Path

from robots.code_version import ROOT


def written_folder(folder: Path, base: Path) -> str:
    """Returns a folder relative to one inside it, e.g. `../..`, otherwise absolute.

    Args:
        folder: the folder.
        base: the folder to which the result is relative if it lies inside `folder`.
    """
    folder, base = folder.resolve(), base.resolve()
    return os.path.relpath(folder, base) if base.is_relative_to(folder) else _absolute(folder)


def written_path(path: Path, base: Path) -> str:
    """Returns a path relative to `base`, or to Handoff's checkout, if it lies inside one of them,
    otherwise absolute."""
    path = path.resolve()
    for folder in (base.resolve(), ROOT):
        if path.is_relative_to(folder):
            return str(path.relative_to(folder))
    return _absolute(path)


def _absolute(path: Path) -> str:
    """An absolute path, with `~` for the home folder."""
    home = Path.home()
    if path.is_relative_to(home) and home != Path(home.anchor):
        return str(Path("~") / path.relative_to(home))
    return str(path)


def read_path(written: str, base: Path) -> Path:
    """Returns the path that was written; a relative one is below `base`, or in Handoff's checkout
    if it exists there alone."""
    path = Path(written).expanduser()
    if path.is_absolute():
        return path
    inside, shipped = (base / path).resolve(), ROOT / path
    return shipped if shipped.exists() and not inside.exists() else inside
