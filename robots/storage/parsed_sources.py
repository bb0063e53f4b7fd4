"""Keeps what source files import and the digest of their syntax, in a file of the user's cache.

Parsing 500 source files takes seconds. An entry is used as long as the file's inode, size, and
times of modification and change are the same. A file that was written less than `SETTLED_SECONDS`
before it was read gets no entry, because a later change could leave all of these as they are.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from robots.storage.durable import temporary_beside

FORMAT = 2
"""Version of the entries."""
SETTLED_SECONDS = 3.0
"""Age from which a file's times tell every later change [s]."""


class ParsedSource(NamedTuple):
    """What a source file says, apart from comments and docstrings."""

    imports: tuple[str, ...]
    """Dotted names that it imports anywhere, also inside functions; of `from a import b`, both `a`
    and `a.b`. Relative names keep their leading dots."""
    digest: str
    """sha256 of its syntax tree without docstrings, hex."""


def cache_folder() -> Path:
    """`$XDG_CACHE_HOME/handoff`, by default `~/.cache/handoff`."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "handoff"


def parse_source(source: Path) -> ParsedSource:
    """Parses a source file.

    Raises:
        SyntaxError: the file is not Python.
    """
    tree = ast.parse(source.read_bytes())
    imports: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imports += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            stem = "." * node.level + (node.module or "")
            imports += [stem, *(f"{stem}.{alias.name}" for alias in node.names if node.module)]
            imports += [f"{stem}{alias.name}" for alias in node.names if not node.module]
        elif isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [entry for entry in node.body if not _is_docstring(entry)] or [ast.Pass()]
    digest = hashlib.sha256(ast.dump(tree).encode()).hexdigest()
    return ParsedSource(tuple(dict.fromkeys(imports)), digest)


class ParsedSources:
    """The parsed source files of one folder.

    A cache that is missing, damaged, or cannot be written costs time only.
    """

    def __init__(self, root: Path, folder: Path | None = None) -> None:
        """`root` contains the sources; `folder` holds the cache, by default `cache_folder()`."""
        name = hashlib.sha256(str(root).encode()).hexdigest()[:16]
        self._file = (folder or cache_folder()) / f"sources-{name}.json"
        self._entries: dict[str, list] | None = None
        self._changed = False

    def parsed(self, source: Path) -> ParsedSource:
        """Returns what a source file says.

        Raises:
            SyntaxError: the file is not Python.
        """
        if self._entries is None:
            self._entries = self._read()
        status = source.stat()
        state = [status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]
        entry = self._entries.get(str(source))
        if entry is not None and entry[0] == state:
            return ParsedSource(tuple(entry[1]), entry[2])
        found = parse_source(source)
        if time.time() - max(status.st_mtime, status.st_ctime) > SETTLED_SECONDS:
            self._entries[str(source)] = [state, list(found.imports), found.digest]
            self._changed = True
        return found

    def save(self) -> None:
        """Writes the cache if it has changed, atomically; concurrent writers replace each other's
        file."""
        if not self._changed or self._entries is None:
            return
        self._changed = False
        existing = {path: entry for path, entry in self._entries.items() if os.path.exists(path)}
        content = json.dumps({"made_by": _made_by(), "entries": existing})
        with suppress(OSError):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            aside = temporary_beside(self._file)
            try:
                aside.write_text(content)
                os.replace(aside, self._file)
            except OSError:
                aside.unlink(missing_ok=True)
                raise

    def _read(self) -> dict[str, list]:
        try:
            content = json.loads(self._file.read_bytes())
            entries = content["entries"] if content["made_by"] == _made_by() else {}
            return {path: entry for path, entry in entries.items() if _is_entry(entry)}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return {}


def _made_by() -> list:
    """Syntax trees differ between versions of Python."""
    return [FORMAT, *sys.version_info[:3]]


def _is_entry(entry: object) -> bool:
    return (
        isinstance(entry, list)
        and len(entry) == 3
        and isinstance(entry[1], list)
        and isinstance(entry[2], str)
    )


def _is_docstring(statement: ast.stmt) -> bool:
    return (
        isinstance(statement, ast.Expr)
        and isinstance(statement.value, ast.Constant)
        and isinstance(statement.value.value, str)
    )
