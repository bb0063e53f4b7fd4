"""Records the commit of Handoff's code and its uncommitted changes."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from robots.code_version import ROOT

DIFF = "diff.patch"
"""Name of the file with the uncommitted changes, in the folder of a run."""
MOST_BYTES = 1_000_000
"""Largest size of that file [bytes]; a longer diff is cut."""
SECRET = (".env*", "*.pem", "*.key", ".netrc")
"""Names of files and folders whose changes are left out."""


def record_checkout(folder: Path, root: Path = ROOT) -> dict[str, Any]:
    """Writes the uncommitted changes of tracked files to `folder/diff.patch`, if there are any.

    Args:
        folder: folder of the run.
        root: folder of the code.

    Returns:
        `commit` (40 hex digits, or why there is none), `dirty`, `origin` (address of the
        repository without a password; None for a folder) and `diff`: None, or `file`, `bytes`
        and `sha256` of the whole diff, whether the file is `complete`, and the files `left_out`.
    """
    file = folder / DIFF
    file.unlink(missing_ok=True)
    commit = _git(root, ["rev-parse", "HEAD"])
    if commit is None:
        return {"commit": "unknown (not a git checkout)", "dirty": None, "diff": None}
    names = _git(root, ["diff", "HEAD", "--name-only", "--no-renames", "--relative", "-z"]) or b""
    changed = [name.decode(errors="surrogateescape") for name in names.split(b"\0") if name]
    return {
        "commit": commit.decode().strip(),
        "dirty": bool(changed),
        "origin": _origin(root),
        "diff": _write_diff(file, root, changed) if changed else None,
    }


def _write_diff(file: Path, root: Path, changed: Sequence[str]) -> dict[str, Any]:
    left_out = [name for name in changed if is_secret(name)]
    command = ["diff", "HEAD", "--no-renames", "--relative", "--binary", "--no-color"]
    command += ["--no-ext-diff", "--no-textconv", "--", "."]
    command += [f":(exclude,literal){name}" for name in left_out]
    text = b"" if len(left_out) == len(changed) else _git(root, command) or b""
    file.write_bytes(text[:MOST_BYTES])
    return {
        "file": file.name,
        "bytes": len(text),
        "sha256": hashlib.sha256(text).hexdigest(),
        "complete": len(text) <= MOST_BYTES,
        "left_out": left_out,
    }


def is_secret(name: str) -> bool:
    """Whether a file, or a folder above it, has the name of one that holds secrets."""
    parts = PurePosixPath(name).parts
    return any(fnmatch(part, pattern) for part in parts for pattern in SECRET)


def _origin(root: Path) -> str | None:
    found = (_git(root, ["remote", "get-url", "origin"]) or b"").decode().strip()
    if not re.match(r"(https?|ssh|git)://|[\w.-]+@[\w.-]+:", found):
        return None
    return re.sub(r"^(\w+://)[^/@]*@", r"\1", found)


def _git(root: Path, arguments: Sequence[str]) -> bytes | None:
    """Output of a command of git that changes nothing; None if it fails or git is missing."""
    command = ["git", "-C", str(root), "--no-optional-locks", *arguments]
    try:
        result = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        return None
    return result.stdout if result.returncode == 0 else None
