"""Starts the Python of an environment server, keeps the end of its output, and ends it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

from robots.errors import HandoffError

START = Path(__file__).with_name("start.py")
KEPT_LINES = 20
"""Number of lines of output that are kept."""
LONGEST_LINE = 400
"""Number of characters of a line that are kept."""
SHOWN_LINES = 4
"""Number of lines of output in a message."""
DROPPED_VARIABLES = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "__PYVENV_LAUNCHER__")
"""Environment variables that would make another Python import this one's packages."""


class ServerChild:
    """A process of another Python that serves one connection, and ends with this process.

    Args:
        python: path of the Python program.
        connection: the server's end of the connection, which this closes.
        kind: `shared` for a socket of this machine, `remote` for one of another machine.
        variables: environment variables, besides those of this process.
        echo: whether its output is also printed.

    Raises:
        HandoffError: the program does not exist or cannot be run.
    """

    def __init__(
        self,
        python: str,
        connection: socket.socket,
        kind: str,
        variables: Mapping[str, str] | None = None,
        *,
        echo: bool = False,
    ) -> None:
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self._echo = echo
        environment = {
            name: value for name, value in os.environ.items() if name not in DROPPED_VARIABLES
        }
        # Other packages of the user would hide the pinned ones.
        environment |= {"PYTHONNOUSERSITE": "1", **(variables or {})}
        their_end, self._lifeline = os.pipe()
        descriptors = (connection.fileno(), their_end)
        command = [python, str(START), *map(str, descriptors), kind]
        try:
            self._process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )
        except OSError as error:
            os.close(self._lifeline)
            raise HandoffError(
                f"environment server: {python} cannot be run ({error.strerror}). Is it the path of a Python program?"
            ) from None
        finally:
            os.close(their_end)
            connection.close()
        self._reader = threading.Thread(target=self._read, name="server output", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._process.pid

    def running(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def wait(self, seconds: float | None) -> int | None:
        """Waits for the end of the process; returns its exit code, None if it still runs.

        Args:
            seconds: time limit [s]; None waits for ever.
        """
        try:
            return self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None

    def end(self, seconds: float) -> None:
        """Waits for the end of the process, then kills it with all that it has started.

        Args:
            seconds: time limit [s].
        """
        if self.wait(seconds) is None:
            # Its process group has the number of the process, which is not reaped yet.
            os.killpg(self.pid, signal.SIGKILL)
            self._process.wait()
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        # What the process has started may still hold the other end of the pipe.
        self._reader.join(1.0)

    def last_lines(self) -> list[str]:
        """The last lines of its output."""
        return list(self._lines)

    def output(self) -> str:
        """A sentence with the end of its output; empty if there is none."""
        lines = [line.strip() for line in self.last_lines() if line.strip()]
        return f" Its last output: {' | '.join(lines[-SHOWN_LINES:])}" if lines else ""

    def _read(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as stream:
            while line := stream.readline(1 << 16):
                text = line.decode(errors="replace").rstrip()
                self._lines.append(text[:LONGEST_LINE])
                if self._echo:
                    sys.stderr.write(f"{time.strftime('%H:%M:%S')} server {self.pid}: {text}\n")
