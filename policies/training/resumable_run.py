"""State, curve and processor time of a run that continues where it was killed."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from policies.checkpoint import read_state, save_state
from policies.training.loggers import write_json_lines


class ResumableRun:
    """Saves a run and finds what a killed run of the same identity left.

    One file holds everything that the rest of the run depends on, and is replaced whole. Another
    holds the curve as JSON lines, written after it, so it never runs ahead of the state.

    Args:
        folder: of both files.
        identity: what a state must have in common with this run; one of another run is ignored.
        state: name of the state's file.
        curve: name of the curve's file.
        key: of the curve in the state.
    """

    def __init__(
        self, folder: Path, identity: str, *, state: str, curve: str, key: str = "entries"
    ) -> None:
        self.identity = identity
        self.entries: list[dict[str, float]] = []
        """The curve so far: one entry per rollout, or whatever is drawn."""
        self._state = folder / state
        self._curve = folder / curve
        self._key = key
        self._cpu_seconds = 0.0
        self._began: float | None = None

    def resume(self) -> dict[str, Any] | None:
        """Takes over the curve and the processor time of a killed run, and returns its state; None
        where there is nothing to continue.

        Raises:
            HandoffError: the file is damaged.
        """
        state = read_state(self._state, self.identity)
        if state is None:
            return None
        self.entries = state[self._key]
        # On-policy distillation used to keep its processor time in the curve alone.
        last = self.entries[-1] if self.entries else {}
        self._cpu_seconds = state["cpu_seconds"] if "cpu_seconds" in state else last["cpu_seconds"]
        return state

    def save(self, state: Mapping[str, Any]) -> None:
        """Writes the state with the curve and the processor time in it, then the curve."""
        own = {
            "identity": self.identity,
            self._key: self.entries,
            "cpu_seconds": self.cpu_seconds(),
        }
        save_state(self._state, own | dict(state))
        self.write_curve()

    def write_curve(self) -> None:
        """Writes one line per entry of the curve."""
        write_json_lines(self._curve, self.entries)

    def finish(self) -> None:
        """Removes the state of a run that has ended."""
        self._state.unlink(missing_ok=True)

    @contextmanager
    def timed(self) -> Iterator[None]:
        """Adds the processor time of the block to that of the run."""
        self._began = time.process_time()
        try:
            yield
        finally:
            self._cpu_seconds = self.cpu_seconds()
            self._began = None

    def cpu_seconds(self) -> float:
        """Processor time of the `timed` blocks of this run and of those that it continues, up to
        their last state."""
        running = 0.0 if self._began is None else time.process_time() - self._began
        return self._cpu_seconds + running
