"""Writes files atomically, locks a folder for a single writer, and opens files of several users."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from robots.errors import HandoffError

_TEMPORARY = ".partial"
"""Ending of names by `temporary_beside`."""


def temporary_beside(path: Path) -> Path:
    """A hidden name beside `path` that no other writer uses, whatever its thread, process or
    computer; a crash leaves what was written there, see `remove_temporary`."""
    return path.with_name(f".{path.name}.{secrets.token_hex(6)}{_TEMPORARY}")


def is_temporary(name: str) -> bool:
    """Whether a file or folder has a name by `temporary_beside`."""
    return re.fullmatch(rf"\..+\.[0-9a-f]{{12}}{re.escape(_TEMPORARY)}", name) is not None


def remove_temporary(root: Path) -> None:
    """Deletes what killed writers have left below `root`, where nobody else may be writing."""
    for folder, folders, files in os.walk(root):
        for name in filter(is_temporary, list(folders)):
            folders.remove(name)
            remove_tree(Path(folder) / name)
        for name in filter(is_temporary, files):
            (Path(folder) / name).unlink()


def write_atomically(path: Path, data: bytes) -> None:
    """Replaces the file at `path`; after a crash at any moment it holds either the complete old or
    the complete new bytes. Several writers may do so at once; the last one is kept.

    Args:
        path: the file.
        data: its new content.
    """
    aside = temporary_beside(path)
    try:
        with aside.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    except BaseException:
        aside.unlink(missing_ok=True)
        raise
    sync_path(path.parent)


def append_line(file: Path, line: str) -> None:
    """Adds a line to a text file, and flushes it to the disk; earlier lines are never changed."""
    with file.open("a") as stream:
        stream.write(f"{line}\n")
        stream.flush()
        os.fsync(stream.fileno())
    sync_path(file.parent)


def sync_tree(root: Path) -> None:
    """Flushes `root`, all files and folders below it, and its entry in its parent to the disk."""
    for folder, _, files in os.walk(root):
        for name in files:
            sync_path(Path(folder) / name)
        sync_path(Path(folder))
    sync_path(root.parent)


def entries_below(root: Path) -> Iterator[tuple[str, os.DirEntry[str], str]]:
    """Yields every entry below a folder that is no folder itself.

    Yields:
        Its path relative to `root`, the entry, and what it is if it is not a plain file: `a link`
        or `neither a file nor a folder`; empty for a file.
    """
    prefix = os.path.join(root, "")
    pending = [prefix]
    while pending:
        with os.scandir(pending.pop()) as entries:
            for entry in entries:
                name = entry.path[len(prefix) :]
                if entry.is_dir(follow_symlinks=False):
                    pending.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    yield name, entry, ""
                else:
                    kind = "a link" if entry.is_symlink() else "neither a file nor a folder"
                    yield name, entry, kind


def remove_tree(root: Path) -> None:
    """Deletes a folder with all files and folders below it, also those that are read-only."""
    for folder, _, _ in os.walk(root):
        os.chmod(folder, 0o700)
    shutil.rmtree(root)


@contextmanager
def explain_write_errors(path: Path, lost: str) -> Iterator[None]:
    """Converts an error of a write to one line; `lost` says what was not stored.

    Raises:
        HandoffError: the disk is full, over quota, read-only or disconnected.
    """
    try:
        yield
    except OSError as error:
        cause = "Is it writable, and its disk still there?"
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            cause = f"The disk is full or over quota ({_free_megabytes(path)} MB free); make room and try again."
        raise HandoffError(f"{path}: {lost}: {error.strerror or error}. {cause}") from error


class WriterLock:
    """An advisory lock (`flock`), which the kernel releases when its process ends."""

    def __init__(self, path: Path) -> None:
        """Takes the lock.

        Raises:
            HandoffError: another process, or another handle of this one, holds it; names the
                process.
        """
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        except BlockingIOError:
            holder = os.pread(descriptor, 20, 0).decode() or "unknown"
            os.close(descriptor)
            raise HandoffError(
                f"{path.parent}: already open for writing by process {holder}, at most 1 writer is allowed. "
                "Is a recording still running?"
            ) from None
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor: int | None = descriptor

    def release(self) -> None:
        """Releases the lock; a second call does nothing."""
        descriptor = self._descriptor
        # First, so that a signal behind `close` does not leave a descriptor that is closed.
        self._descriptor = None
        if descriptor is not None:
            os.close(descriptor)

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.release()


@contextmanager
def whole_folder(out: Path, lost: str) -> Iterator[Path]:
    """Context in which a new folder is written; `out` appears with all of it when the context ends,
    or not at all.

    Args:
        out: the folder, which must not exist.
        lost: what is lost if it cannot be written, see `explain_write_errors`.

    Yields:
        The folder under another name, empty.

    Raises:
        HandoffError: `out` exists, or it cannot be written.
    """
    if os.path.lexists(out):
        raise HandoffError(f"{out}: exists already. Choose another folder, or delete it first.")
    aside = temporary_beside(out)
    with explain_write_errors(out, lost):
        aside.mkdir(parents=True)
        try:
            yield aside
            sync_tree(aside)
            os.rename(aside, out)
        except BaseException:
            shutil.rmtree(aside, ignore_errors=True)
            raise
        sync_path(out.parent)


def open_shared(path: Path, mode: int) -> int:
    """Opens a file for reading and appending; returns its descriptor, which new programs do not
    inherit.

    Args:
        path: the file; a link is refused.
        mode: permissions of a file that does not exist yet, whatever the umask.
    """
    flags = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        # Linux refuses to create a file of another user in a folder like /tmp, even if it exists.
        return os.open(path, flags)
    try:
        descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        return os.open(path, flags)
    os.fchmod(descriptor, mode)
    return descriptor


def sync_path(path: Path) -> None:
    """Flushes one file, or the entries of one folder, to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _free_megabytes(path: Path) -> int:
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    return shutil.disk_usage(existing).free // 1_000_000
