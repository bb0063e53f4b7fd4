"""Writes every action at the console to a file as one line of JSON, before it becomes visible.

A line that was written outlives the process at once, and a loss of power once a thread has told the
disk: nobody waits for the disk, least of all the arm.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

LOG = logging.getLogger(__name__)


class AuditLog:
    """An append-only log, safe to call from several threads.

    A line that a crash or a full disk cut short is ended when the next one is written.

    Args:
        path: path of the file; its folder is created.
    """

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._path = path
        self._descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        size = os.fstat(self._descriptor).st_size
        self._cut = bool(size) and os.pread(self._descriptor, 1, size - 1) != b"\n"
        self.trouble = ""
        """Why the newest line could not be written; empty if it was."""
        self._written = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._sync, name="audit", daemon=True)
        self._thread.start()

    def __call__(self, who: str, what: str, details: Mapping[str, Any]) -> None:
        """Writes one action. Never raises: `trouble` says if it could not be written."""
        line = {
            "time": time.time(),
            "monotonic": time.monotonic(),
            "who": who,
            "what": what,
            **details,
        }
        data = (json.dumps(line) + "\n").encode()
        with self._lock:
            try:
                data = b"\n" + data if self._cut else data
                written = os.write(self._descriptor, data)
                self._cut = written < len(data)
                # A disk that fills up takes a part of the line and says why at the next write.
                if self._cut:
                    os.write(self._descriptor, data[written:])
                    self._cut = False
            except OSError as error:
                self._report(error)
                return
            self.trouble = ""
        self._written.set()

    def close(self) -> None:
        """Closes the file."""
        self._closing = True
        self._written.set()
        self._thread.join()
        os.close(self._descriptor)

    def _sync(self) -> None:
        while not self._closing:
            self._written.wait()
            self._written.clear()
            try:
                os.fdatasync(self._descriptor)
            except OSError as error:
                self._report(error)

    def _report(self, error: OSError) -> None:
        if not self.trouble:
            # Where standard error is a file on the same disk, the pages still say it.
            LOG.error("console: %s: %s", self._path, error.strerror)
        self.trouble = f"The audit log cannot be written: {error.strerror}. Free some space."


def read_audit(path: Path) -> list[dict[str, Any]]:
    """The actions in a log, in order; lines that a crash cut short are left out. Empty if there is
    no log."""
    lines = []
    text = path.read_text() if path.is_file() else ""
    for line in text.splitlines():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
