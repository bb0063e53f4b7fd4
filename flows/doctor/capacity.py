"""Checks the free disk and memory of this machine, and the user's cache folder."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from flows.doctor.check import Check
from robots.storage.parsed_sources import cache_folder

GB = 1e9
LITTLE_DISK = 5 * GB
LEAST_DISK = 1 * GB
"""Free bytes of a disk below which a run is likely to end early, and below which it is refused."""
LITTLE_MEMORY = 2 * GB
LEAST_MEMORY = 0.5 * GB
"""Free bytes of memory below which the largest stage of `demo` (1.6 GB) does not fit, and below
which no stage does."""


def disk(name: str, folder: Path, free: float | None = None) -> Check:
    """Checks the free space of the disk that holds a folder.

    Args:
        name: name of the check.
        folder: the folder, which need not exist yet.
        free: free space [bytes]; None asks the system.
    """
    place = existing(folder)
    free = shutil.disk_usage(place).free if free is None else free
    found = f"{free / GB:.1f} GB free for {folder.absolute()}"
    if free >= LITTLE_DISK:
        return Check(name, "ok", found)
    advice = f"Free some space: runs want {LITTLE_DISK / GB:.0f} GB."
    return Check(name, "warning" if free >= LEAST_DISK else "failed", found, advice)


def temporary_disk() -> Check:
    """Checks the free space of the folder of temporary files."""
    return disk("disk: temporary", Path(tempfile.gettempdir()))


def memory(available: float | None = None, total: float | None = None) -> Check:
    """Checks the memory that new processes can have.

    Args:
        available: available memory [bytes]; None asks the system.
        total: memory of the machine [bytes]; None asks the system.
    """
    import psutil

    now = psutil.virtual_memory()
    available = now.available if available is None else available
    total = now.total if total is None else total
    found = f"{available / GB:.1f} of {total / GB:.1f} GB available"
    if available >= LITTLE_MEMORY:
        return Check("memory", "ok", found)
    advice = f"Close other programs: the recipe demo wants {LITTLE_MEMORY / GB:.0f} GB."
    return Check("memory", "warning" if available >= LEAST_MEMORY else "failed", found, advice)


def cache(folder: Path | None = None) -> Check:
    """Checks whether files can be written to the user's cache folder.

    Args:
        folder: the folder, which need not exist yet; None takes Handoff's.
    """
    folder = cache_folder() if folder is None else folder
    try:
        # A file is written, because permissions alone say nothing for root or a full disk.
        with tempfile.TemporaryFile(dir=existing(folder)) as file:
            file.write(b"x")
    except OSError as error:
        reason = error.strerror or type(error).__name__
        advice = "Set $XDG_CACHE_HOME to a folder that you may write to."
        found = f"{folder} cannot be written to ({reason}), so downloads are not kept"
        return Check("cache folder", "warning", found, advice)
    return Check("cache folder", "ok", f"{folder} can be written to")


def existing(folder: Path) -> Path:
    """Returns the folder, or the innermost of its parents that exists; a file counts as well."""
    path = folder.absolute()
    return next(place for place in (path, *path.parents) if place.exists())
