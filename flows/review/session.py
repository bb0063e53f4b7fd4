"""Holds the state of a review: the episodes, the log of changes, and the store that is written.

Pages ask from several threads. The data set is read by one thread at a time, since it may keep an
open file or the newest episode.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from flows.datasets import edit
from flows.reports.dataset_text import counted
from flows.reports.episode_view import jpeg
from flows.review.data_set import ReviewedData
from flows.review.episode_rows import episode_mark, episode_rows
from flows.review.episode_signals import cameras, episode_signals
from flows.review.review_edits import NOTE, review_edits
from flows.review.review_log import ASPECTS, LONGEST_NOTE, Aspect, ReviewLine, ReviewLog, Verdict
from robots.errors import HandoffError, error_text

VERDICTS: tuple[Verdict, ...] = ("success", "failure", "discard")
WINDOW_STEPS = 16
"""Largest number of pictures that are decoded at once."""
WINDOW_BYTES = 2**24
"""Largest size of the pictures that are decoded at once [bytes]."""
WINDOWS = 12
"""Number of such windows that are kept."""


@dataclass
class CopyProgress:
    """State of the store that was begun last."""

    store: str = ""
    """Name of the store; empty before the first one."""
    by: str = ""
    """Person who asked for it."""
    running: bool = False
    """Whether it is still being written."""
    done: int = 0
    """Number of episodes that are written."""
    total: int = 0
    """Number of episodes of the source."""
    trouble: str = ""
    """Why it was not written; empty if it was."""
    summary: str = ""
    """One sentence about the written store."""


class ReviewSession:
    """A review of one data set.

    Args:
        path: the data set, as it was named.
        data: its episodes.
        log: log of the changes.
        unedited: why the data set is only looked at; empty if it can be edited.
        shown: episodes that a new page lists.

    Raises:
        HandoffError: a change in the log is about another data set.
    """

    def __init__(
        self, path: Path, data: ReviewedData, log: ReviewLog | None, unedited: str, shown: str
    ) -> None:
        self._path = path
        self._data = data
        self._log = log
        self._unedited = unedited
        self._shown = shown
        self._reading = threading.Lock()
        self._writing = threading.Lock()
        self._window = lru_cache(maxsize=WINDOWS)(self._read_window)
        self.copy = CopyProgress()
        self._check_log()

    def overview(self) -> dict[str, Any]:
        """The data set and the list of its episodes, as a JSON map."""
        data = self._data
        return {
            "name": str(self._path),
            "format": data.title,
            "task": data.task,
            "rate_hz": data.rate_hz,
            "cameras": cameras(data.fields),
            "unedited": self._unedited,
            "folder": "" if self._log is None else str(self._log.folder),
            "shown": self._shown,
            "longest_note": LONGEST_NOTE,
            "episodes": episode_rows(data.outlines, data.rate_hz),
        }

    def changes(self) -> dict[str, Any]:
        """Everything that changes during a review, as a JSON map; `revision` grows with it."""
        with self._reading:
            self._data.refresh()
        log, copy = self._log, self.copy
        written = None if log is None else log.written()
        decisions = {} if log is None else log.decisions()
        return {
            "count": len(self._data.outlines),
            "revision": 0 if log is None else len(log.lines),
            "decisions": {
                episode: {
                    aspect: {"value": line.value, "by": line.by, "when": line.when}
                    for aspect, line in aspects.items()
                }
                for episode, aspects in decisions.items()
            },
            "pending": [] if log is None else log.pending(),
            "written": None if written is None else str(written.value),
            "copy": vars(copy) if copy.store else None,
        }

    def episode(self, episode: int) -> dict[str, Any]:
        """What a page draws of an episode, see `episode_signals`.

        Raises:
            HandoffError: no such episode, or damaged files.
        """
        self._check_episode(episode)
        with self._reading:
            return episode_signals(self._data, episode)

    def picture(self, episode: int, camera: int, step: int) -> bytes:
        """The picture of a camera at a step, as JPEG.

        Args:
            episode: number of the episode.
            camera: place of the camera in `cameras`.
            step: number of the step.

        Raises:
            HandoffError: no such episode, camera or step, or damaged files.
        """
        self._check_episode(episode)
        names = cameras(self._data.fields)
        if not 0 <= camera < len(names):
            raise HandoffError(f"no camera {camera}, the data set has {len(names)}.")
        name = names[camera]
        steps = self._data.outlines[episode].steps
        if not 0 <= step < steps:
            raise HandoffError(f"no step {step} in episode {episode}, which has {steps}.")
        size = prod(self._data.fields[name].shape)
        length = max(1, min(WINDOW_STEPS, WINDOW_BYTES // max(1, size)))
        with self._reading:
            window = self._window(episode, name, step // length, length)
        return jpeg(window[step % length])

    def change(self, by: str, episode: int, what: str, value: Any) -> ReviewLine | None:
        """Sets the label, the kept steps or the note of an episode; None takes it back.

        Returns:
            The new line of the log; None if it is so already.

        Raises:
            HandoffError: the data set cannot be edited, or a value that does not fit.
        """
        log = self._editable()
        self._check_episode(episode)
        if what not in ASPECTS:
            raise HandoffError(f"change: is of '{what[:40]}', expected {', '.join(ASPECTS)}.")
        about = self._data.outlines[episode]
        checked = None if value is None else _checked(what, value, about.steps, about.metadata)
        return log.set(by, episode, what, checked, self._mark(episode))

    def undo(self, by: str) -> ReviewLine | None:
        """Takes back the newest change of a person; returns it, None if there is none."""
        return self._editable().undo(by)

    def write(self, by: str) -> threading.Thread:
        """Writes a new store with all changes, in a thread that is returned; `copy` has its state.

        Raises:
            HandoffError: the data set cannot be edited or was replaced by another one, there is
                nothing to write, or a store is being written.
        """
        log = self._editable()
        with self._writing:
            if self.copy.running:
                raise HandoffError(
                    f"{self.copy.store} is being written for {self.copy.by}; wait for it."
                )
            self._check_log()
            edits = review_edits(log.decisions(), self._metadata)
            if not edits:
                raise HandoffError("Nothing to write: every episode is as it was recorded.")
            if not log.pending():
                raise HandoffError("Nothing to write: the newest store has all changes.")
            out = log.begin_write(by)
            copy = CopyProgress(out.name, by, True, 0, len(self._data.outlines))
            self.copy = copy

        def progress(done: int, total: int, note: str = "") -> None:
            copy.done = done
            copy.total = total

        def work() -> None:
            try:
                figures = edit(self._path, out, *edits, progress=progress)
                copy.summary = _summary(figures)
            except HandoffError as error:
                copy.trouble = error_text(error)
            except Exception as error:  # noqa: BLE001  the page says what stopped the thread
                copy.trouble = f"{type(error).__name__}: {error}"
            finally:
                copy.running = False

        thread = threading.Thread(target=work, name="review-copy", daemon=True)
        thread.start()
        return thread

    def _read_window(self, episode: int, name: str, number: int, length: int) -> np.ndarray:
        steps = slice(number * length, (number + 1) * length)
        return self._data.read(episode, [name], steps)[name]

    def _editable(self) -> ReviewLog:
        if self._log is None:
            raise HandoffError(self._unedited)
        return self._log

    def _check_episode(self, episode: int) -> None:
        count = len(self._data.outlines)
        if not 0 <= episode < count:
            raise HandoffError(f"no episode {episode}, the data set has 0 to {count - 1}.")

    def _metadata(self, episode: int) -> Mapping[str, Any]:
        return self._data.outlines[episode].metadata

    def _mark(self, episode: int) -> str:
        about = self._data.outlines[episode]
        return episode_mark(episode, about.steps, about.metadata)

    def _check_log(self) -> None:
        if self._log is None:
            return
        count = len(self._data.outlines)
        for line in self._log.lines:
            if line.episode is None:
                continue
            if line.episode >= count or line.mark != self._mark(line.episode):
                raise HandoffError(
                    f"{self._log.folder}: has changes of another data set than {self._path}, the first of episode "
                    f"{line.episode}. Choose another folder with --out."
                )


def _checked(what: Aspect | str, value: Any, steps: int, metadata: Mapping[str, Any]) -> Any:
    """A value of an aspect, as it is kept; None if it changes nothing."""
    if what == "verdict":
        if value not in VERDICTS:
            raise HandoffError(f"label: is none of {', '.join(VERDICTS)}.")
        return value
    if what == "trim":
        return _checked_steps(value, steps)
    if not isinstance(value, str) or len(value) > LONGEST_NOTE or not value.isprintable():
        raise HandoffError(f"note: is no printable text of at most {LONGEST_NOTE} characters.")
    note = value.strip()
    return note or ("" if metadata.get(NOTE) else None)


def _checked_steps(value: Any, steps: int) -> list[int] | None:
    """First step and end of the kept steps; None if all are kept."""
    whole = (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(each, int) and not isinstance(each, bool) for each in value)
    )
    if not whole:
        raise HandoffError("steps: are not two numbers, the first step and the end.")
    first, stop = value
    if not 0 <= first < stop <= steps:
        raise HandoffError(
            f"steps: {first} to before {stop} of {steps}. The first kept step must be before the last one."
        )
    return None if (first, stop) == (0, steps) else [first, stop]


def _summary(figures: Mapping[str, Any]) -> str:
    parts = [
        f"{len(figures[key])} {words}"
        for key, words in (
            ("relabelled", "relabelled"),
            ("trimmed", "shortened"),
            ("deleted", "left out"),
        )
        if figures[key]
    ]
    notes = "".join(f" {note}." for note in figures["notes"])
    return f"{counted(figures['episodes'], 'episode')}: {', '.join(parts)}.{notes}"
