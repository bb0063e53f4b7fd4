"""Keeps every change of a review in a file, before a page shows it.

A line is on the disk when the change is answered, and no line is ever changed: to undo is a line as
well. So a kill loses no change, and who did what is kept, also of what was undone.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, cast, get_args

from robots.config import Whole, config, validate
from robots.episodes.metadata.episode_metadata import utc_now
from robots.errors import HandoffError
from robots.storage.durable import (
    WriterLock,
    append_line,
    explain_write_errors,
    remove_temporary,
    write_atomically,
)

LOG = "review.jsonl"
"""Name of the file in the folder of a review."""
LONGEST_NOTE = 400
"""Largest number of characters of a note."""
Verdict = Literal["success", "failure", "discard"]
"""Label that a person gives to an episode: it succeeded, it failed, or it is left out."""
Aspect = Literal["verdict", "trim", "note"]
"""Part of an episode's review that a change sets."""
ASPECTS: tuple[Aspect, ...] = get_args(Aspect)
Decisions = Mapping[int, Mapping[Aspect, "ReviewLine"]]
"""The changes that hold, by episode and aspect."""


@config
class ReviewLine:
    """One line of the log."""

    number: Whole
    """Number of the line, from 1."""
    when: str
    """Wall time, ISO 8601 in UTC."""
    by: str
    """Name of the person."""
    what: Literal["verdict", "trim", "note", "undo", "write"]
    """Aspect that is set; `undo` of an earlier line; or `write`, after which the named store has
    everything so far, if it exists."""
    value: Any = None
    """Value of the aspect: a `Verdict`, the first step and the end (exclusive) of those that are
    kept, or a note; None takes it back. The number of the line that is undone. The name of the
    store that is written."""
    episode: Whole | None = None
    """Number of the episode, of an aspect."""
    mark: str = ""
    """Digest of the episode, see `episode_mark`."""


class ReviewLog:
    """The log of a review, open for one process; its methods may be called by several threads.

    Args:
        folder: folder of the review, created if missing.

    Raises:
        HandoffError: another process reviews into the folder, the file is damaged, or the folder
            cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / LOG
        self._mutex = threading.Lock()
        with explain_write_errors(folder, "the review cannot be kept there"):
            folder.mkdir(parents=True, exist_ok=True)
            try:
                self._lock = WriterLock(folder / ".lock")
            except HandoffError:
                raise HandoffError(
                    f"{folder}: another process reviews into this folder. Open its page instead, where several people "
                    "can review together, or choose another folder with --out."
                ) from None
            # What a kill left of a store that was being written.
            remove_temporary(folder)
            self.lines = _read(self._file)

    def set(self, by: str, episode: int, what: Aspect, value: Any, mark: str) -> ReviewLine | None:
        """Sets an aspect of an episode; returns the new line, None if it is so already.

        Raises:
            HandoffError: the disk is full; the change does not hold then.
        """
        with self._mutex:
            before = self.decisions().get(episode, {}).get(what)
            if value == (None if before is None else before.value):
                return None
            return self._append(by, what, value, episode, mark)

    def undo(self, by: str) -> ReviewLine | None:
        """Takes back the newest change of a person; returns that change, None if there is none."""
        with self._mutex:
            undone = {line.value for line in self.lines if line.what == "undo"}
            for line in reversed(self.lines):
                if line.what in ASPECTS and line.by == by and line.number not in undone:
                    self._append(by, "undo", line.number)
                    return line
            return None

    def begin_write(self, by: str) -> Path:
        """Path of the next store; the changes so far count as written if it exists.

        Changes that are made meanwhile belong to the store after it.
        """
        with self._mutex:
            taken = [int(path.stem.rpartition("-")[2]) for path in self._stores()]
            name = f"reviewed-{max(taken, default=0) + 1}.zarr"
            self._append(by, "write", name)
            return self.folder / name

    def decisions(self, through: int | None = None) -> Decisions:
        """The changes that hold.

        Args:
            through: number of the last line that counts; None takes all lines.
        """
        lines = self.lines if through is None else self.lines[:through]
        undone = {line.value for line in lines if line.what == "undo"}
        found: dict[int, dict[Aspect, ReviewLine]] = {}
        for line in lines:
            if line.what not in ASPECTS or line.number in undone or line.episode is None:
                continue
            aspect = cast(Aspect, line.what)
            found.setdefault(line.episode, {}).pop(aspect, None)
            if line.value is not None:
                found[line.episode][aspect] = line
        return {episode: aspects for episode, aspects in found.items() if aspects}

    def written(self) -> ReviewLine | None:
        """The line of the newest store that exists."""
        for line in reversed(self.lines):
            if line.what == "write" and (self.folder / str(line.value)).is_dir():
                return line
        return None

    def pending(self) -> list[int]:
        """Numbers of the episodes whose changes are not in the newest store."""
        last = self.written()
        before = {} if last is None else self.decisions(last.number)
        now = self.decisions()
        return sorted(
            episode
            for episode in before.keys() | now.keys()
            if _values(before.get(episode, {})) != _values(now.get(episode, {}))
        )

    def close(self) -> None:
        """Lets another process review into the folder."""
        self._lock.release()

    def _stores(self) -> list[Path]:
        return [
            path
            for path in self.folder.glob("reviewed-*.zarr")
            if path.stem.rpartition("-")[2].isdecimal()
        ]

    def _append(
        self, by: str, what: Any, value: Any, episode: int | None = None, mark: str = ""
    ) -> ReviewLine:
        line = ReviewLine(
            number=len(self.lines) + 1,
            when=utc_now(),
            by=by,
            what=what,
            value=value,
            episode=episode,
            mark=mark,
        )
        with explain_write_errors(self._file, "the change was not kept"):
            append_line(self._file, json.dumps(asdict(line)))
        self.lines.append(line)
        return line


def _values(aspects: Mapping[Aspect, ReviewLine]) -> dict[Aspect, Any]:
    return {aspect: line.value for aspect, line in aspects.items()}


def _read(file: Path) -> list[ReviewLine]:
    """The lines of a log; one that a crash cut short is removed from the file."""
    text = file.read_bytes() if file.is_file() else b""
    whole, _, cut = text.rpartition(b"\n")
    if cut:
        write_atomically(file, whole + b"\n" if whole else b"")
    lines = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            read = validate(ReviewLine, json.loads(line))
        except (ValueError, HandoffError) as error:
            raise HandoffError(f"{file}: line {number} is damaged ({error}).") from None
        if read.number != number:
            raise HandoffError(
                f"{file}: line {number} has the number {read.number}. Was it edited?"
            )
        lines.append(read)
    return lines
