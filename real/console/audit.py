"""Writes every action at the console to disk as one line of JSON, before it becomes visible."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class AuditLog:
    """An append-only log, safe to call from several threads.

    A line that a crash cut short is ended when the log is opened again.

    Args:
        path: path of the file; its folder is created.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        size = os.fstat(self._descriptor).st_size
        if size and os.pread(self._descriptor, 1, size - 1) != b"\n":
            os.write(self._descriptor, b"\n")

    def __call__(self, who: str, what: str, details: Mapping[str, Any]) -> None:
        """Writes one action and waits for the disk."""
        line = {
            "time": time.time(),
            "monotonic": time.monotonic(),
            "who": who,
            "what": what,
            **details,
        }
        with self._lock:
            os.write(self._descriptor, (json.dumps(line) + "\n").encode())
            os.fdatasync(self._descriptor)

    def close(self) -> None:
        """Closes the file."""
        os.close(self._descriptor)


def read_audit(path: Path) -> list[dict[str, Any]]:
    """The actions in a log, in order; lines that a crash cut short are left out."""
    lines = []
    for line in path.read_text().splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
