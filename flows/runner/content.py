"""Checks the content of finished artifacts, once per state of their files.

Hashing gigabytes takes seconds, so the state of the files that matched their manifest (names,
sizes, times of modification and change, inodes) is kept in the user's cache; only other states are
hashed.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from pathlib import Path

from flows.runner.artifact import (
    ArtifactStore,
    is_fetched,
    json_digest,
    read_manifest,
    verify_files,
)
from robots.storage.durable import write_atomically
from robots.storage.parsed_sources import cache_folder

MEMO = "contents.json"
"""Name of the file in the user's cache."""

_lock = threading.Lock()


def check_content(path: Path, store: ArtifactStore | None = None) -> None:
    """Checks that every file of an artifact has the content of its manifest.

    Args:
        path: folder of the artifact.
        store: storage whose working copy the runs folder is. It is asked for the names and sizes of
            files that have not been fetched; their content is checked when they are.

    Raises:
        HandoffError: files were changed after the artifact was sealed; names them.
    """
    if store is not None and not is_fetched(path):
        store.check(path)
        return
    path = path.resolve()
    state = _state(path)
    if _read().get(str(path)) == state:
        return
    verify_files(path)
    _remember(path, state)


def remember_content(path: Path) -> None:
    """Keeps the state of an artifact whose files have just been hashed."""
    path = path.resolve()
    _remember(path, _state(path))


def _state(path: Path) -> str:
    """Digest of the names, sizes, times and inodes of the files in the manifest."""
    states = []
    for name in sorted(read_manifest(path)["files"]):
        with suppress(FileNotFoundError):
            s = os.stat(path / name)
            states.append([name, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_ino])
    return json_digest(states)


def _read() -> dict[str, str]:
    try:
        found = json.loads((cache_folder() / MEMO).read_bytes())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _remember(path: Path, state: str) -> None:
    """Adds an entry; without a writable cache the files are hashed again the next time."""
    file = cache_folder() / MEMO
    with _lock, suppress(OSError):
        entries = {key: value for key, value in _read().items() if os.path.isdir(key)}
        file.parent.mkdir(parents=True, exist_ok=True)
        # Of two processes that write at once the later one is kept.
        write_atomically(file, json.dumps({**entries, str(path): state}).encode())
