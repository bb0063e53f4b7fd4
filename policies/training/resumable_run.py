"""Saves and resumes state, curve and CPU time of a run, and logs its metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from policies.checkpoint import read_state, save_state
from policies.training.config import LoggingConfig
from policies.training.loggers import EntryLog, write_json_lines


class ResumableRun:
    """Saves a run, and resumes an interrupted run with the same identity.

    The state file contains everything that the rest of the run depends on, and is replaced
    atomically. The curve file has JSON lines and is written after it, so it is never ahead of the
    state; neither are the loggers, to which an entry is logged once.

    Args:
        folder: folder of both files.
        identity: identity of the run; a state with another one is ignored.
        state: name of the state file.
        curve: name of the curve file.
        key: key of the curve in the state.
        logging: loggers of the curve's entries; None has none.
        logs: folder of the loggers' files; None takes `folder`.
        step: entry with the number under which the others are logged.

    Raises:
        HandoffError: the package of a logger is not installed.
    """

    def __init__(
        self,
        folder: Path,
        identity: str,
        *,
        state: str,
        curve: str,
        key: str = "entries",
        logging: LoggingConfig | None = None,
        logs: Path | None = None,
        step: str = "step",
    ) -> None:
        self.identity = identity
        self.entries: list[dict[str, float]] = []
        """Entries of the curve so far, such as one per rollout."""
        self._state = folder / state
        self._curve = folder / curve
        self._key = key
        self._cpu_seconds = 0.0
        self._started: float | None = None
        self._log = EntryLog(logging, folder if logs is None else logs, step)

    def resume(self) -> dict[str, Any] | None:
        """Loads curve and CPU time of an interrupted run and returns its state; None where there is
        nothing to resume.

        Raises:
            HandoffError: the file is damaged.
        """
        state = read_state(self._state, self.identity)
        if state is None:
            return None
        self.entries = state[self._key]
        self._log.resume(self.entries)
        # Older states of on-policy distillation have the CPU time in the curve only.
        last = self.entries[-1] if self.entries else {}
        self._cpu_seconds = state["cpu_seconds"] if "cpu_seconds" in state else last["cpu_seconds"]
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Writes the state, including curve and CPU time, then the curve file."""
        run_state = {
            "identity": self.identity,
            self._key: self.entries,
            "cpu_seconds": self.cpu_seconds(),
        }
        save_state(self._state, run_state | dict(state))
        self.write_curve()

    def write_curve(self) -> None:
        """Writes the curve file, one line per entry, and logs the entries since the last call."""
        write_json_lines(self._curve, self.entries)
        self._log.log(self.entries)

    def log_image(self, name: str, file: Path) -> None:
        """Logs a PNG file under the number of the last entry."""
        self._log.image(name, file)

    def close(self) -> None:
        """Closes the loggers; the run can still be saved."""
        self._log.close()

    def finish(self) -> None:
        """Removes the state file of a finished run."""
        self._state.unlink(missing_ok=True)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the CPU time of the block to that of the run."""
        self._started = time.process_time()
        try:
            yield
        finally:
            self._cpu_seconds = self.cpu_seconds()
            self._started = None

    def cpu_seconds(self) -> float:
        """CPU time of the `timed` blocks of this run and of the runs that it resumes, up to their
        last state."""
        running = 0.0 if self._started is None else time.process_time() - self._started
        return self._cpu_seconds + running
