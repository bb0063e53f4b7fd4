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

from flows.runner.artifact import file_digest, json_digest, read_manifest
from robots.errors import HandoffError
from robots.storage.parsed_sources import cache_folder

MEMO = "contents.json"
NAMED = 8
"""Damaged files that an error names."""

_lock = threading.Lock()


def check_content(path: Path) -> None:
    """Checks that every file of an artifact has the content of its manifest.

    Raises:
        HandoffError: files were changed after the artifact was sealed; names them.
    """
    path = path.resolve()
    manifest = read_manifest(path)
    state = _state(path, manifest["files"])
    if _read().get(str(path)) == state:
        return
    damaged = [
        name
        for name, entry in manifest["files"].items()
        if not (path / name).is_file() or file_digest(path / name) != entry["sha256"]
    ]
    if damaged:
        more = f" and {len(damaged) - NAMED} more" if len(damaged) > NAMED else ""
        raise HandoffError(
            f"artifact {path}: {len(damaged)} of {len(manifest['files'])} files are not those of its manifest: "
            f"{', '.join(damaged[:NAMED])}{more}. Were they edited, or is the disk damaged? Delete the directory to "
            "compute it again."
        )
    _remember(path, state)


def remember_content(path: Path) -> None:
    """Keeps the state of an artifact whose files have just been hashed."""
    path = path.resolve()
    _remember(path, _state(path, read_manifest(path)["files"]))


def _state(path: Path, files: dict[str, object]) -> str:
    states = []
    for name in sorted(files):
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
        aside = file.with_name(f".{file.name}.{os.getpid()}")
        aside.write_text(json.dumps({**entries, str(path): state}))
        os.replace(aside, file)
