"""A PostgreSQL server for the time of a test, where Debian's package is installed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

PACKAGED = Path("/usr/lib/postgresql")
USER = "handoff"
START_SECONDS = 60.0
"""Time limit for the server to be ready [s]."""


@dataclass(frozen=True)
class Postgresql:
    """A server that is at work."""

    programs: Path
    port: int

    @property
    def address(self) -> str:
        """Address of its database, as Prefect's server takes it."""
        return f"postgresql+asyncpg://{USER}@127.0.0.1:{self.port}/postgres"

    def value(self, query: str) -> str:
        """The single value that a query finds."""
        where = ["--host", "127.0.0.1", "--port", str(self.port), "--username", USER, "postgres"]
        words = [str(self.programs / "psql"), *where, "--tuples-only", "--command", query]
        return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def programs() -> Path | None:
    """Folder of the newest installed server's programs; None if there is none."""
    found = sorted(PACKAGED.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def postgresql(place: Path) -> Iterator[Postgresql]:
    """Runs a server with a new database until the end of the block.

    It does not run as root, so root starts it as the user of Debian's package.
    """
    folder = Path(tempfile.mkdtemp(prefix="handoff-postgresql-"))
    user = "postgres" if os.geteuid() == 0 else None
    if user:
        shutil.chown(folder, user)
    data = folder / "data"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = int(probe.getsockname()[1])
    created = ["--pgdata", str(data), "--username", USER, "--auth", "trust", "--no-sync"]
    _call([str(place / "initdb"), *created, "--encoding", "UTF8", "--no-locale"], user)
    options = ["-p", str(port), "-k", str(folder), "-c", "listen_addresses=127.0.0.1"]
    server = subprocess.Popen(
        [str(place / "postgres"), "-D", str(data), *options],
        cwd=folder,
        user=user,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _await(place, port)
        yield Postgresql(place, port)
    finally:
        server.terminate()
        server.wait(60)
        shutil.rmtree(folder)


def _await(place: Path, port: int) -> None:
    words = [str(place / "pg_isready"), "--quiet", "--host", "127.0.0.1", "--port", str(port)]
    deadline = time.monotonic() + START_SECONDS
    while subprocess.run(words, check=False).returncode:
        assert time.monotonic() < deadline, "PostgreSQL did not start"
        time.sleep(0.2)


def _call(words: Sequence[str], user: str | None) -> None:
    done = subprocess.run(
        words, cwd="/", user=user, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
