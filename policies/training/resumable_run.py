"""Saves and resumes state, curve and CPU time of a run, and logs its metrics."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from policies.checkpoint import read_state, save_state
from policies.training.config import LoggingConfig
from policies.training.loggers import Logger, check_loggers, open_loggers, write_json_lines


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
        if logging is not None:
            check_loggers(logging)
        self.identity = identity
        self.entries: list[dict[str, float]] = []
        """Entries of the curve so far, such as one per rollout."""
        self._state = folder / state
        self._curve = folder / curve
        self._key = key
        self._cpu_seconds = 0.0
        self._started: float | None = None
        self._logging = logging
        self._logs = folder if logs is None else logs
        self._step = step
        self._loggers: list[Logger] | None = None
        self._logged = 0

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
        self._logged = len(self.entries)
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
        loggers = self._open()
        for entry in self.entries[self._logged :]:
            values = {name: value for name, value in entry.items() if name != self._step}
            for logger in loggers:
                logger.log(int(entry[self._step]), values)
        self._logged = len(self.entries)
        for logger in loggers:
            logger.flush()

    def log_image(self, name: str, file: Path) -> None:
        """Logs a PNG file under the number of the last entry."""
        for logger in self._open():
            logger.image(int(self.entries[-1][self._step]), name, file)
            logger.flush()

    def close(self) -> None:
        """Closes the loggers; the run can still be saved."""
        for logger in self._loggers or ():
            logger.close()
        self._loggers = None

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

    def _open(self) -> list[Logger]:
        """The loggers, which are opened when there is something to log."""
        if self._logging is None or not self._logging.loggers:
            return []
        if self._loggers is None:
            self._logs.mkdir(parents=True, exist_ok=True)
            done = int(self.entries[self._logged - 1][self._step]) if self._logged else 0
            self._loggers = open_loggers(self._logging, self._logs, done)
        return self._loggers
