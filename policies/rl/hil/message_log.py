"""Logs the messages of actors to disk and delivers each entry to the learner once and in order."""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.errors import HandoffError
from robots.storage.append_log import AppendLog
from robots.wire.learner import NO_ENTRY, Hello, JournalEntry, decode
from robots.wire.steps import Steps

LOG = logging.getLogger(__name__)
EPISODES_PER_JOURNAL = 2**48
"""Offset between the episode numbers of two journals."""


class SequenceTracker:
    """Tracks the last applied entry of each journal, as a function of the messages only.

    Args:
        taken: last entry number per journal, in the order of their first message.
        lost: number of lost entries so far.
    """

    def __init__(self, taken: dict[str, int] | None = None, lost: int = 0) -> None:
        self.taken = {} if taken is None else dict(taken)
        """Number of the last applied entry per journal, in the order of their first message."""
        self.lost = lost
        """Number of lost entries: acknowledged by a learner whose folder was then replaced by an
        older one."""

    def is_new(self, message: Hello | JournalEntry) -> bool:
        """Whether the message is new: an entry not yet applied, or a hello that changes the state.

        Raises:
            HandoffError: the journal has sent no hello, or entries before this one are missing.
        """
        known = self.taken.get(message.journal)
        if isinstance(message, Hello):
            return known is None or message.first > known + 1
        if known is None:
            raise HandoffError(f"steps: journal {message.journal} has sent no hello.")
        if message.number > known + 1:
            raise HandoffError(
                f"steps: entry {message.number} of journal {message.journal}, expected {known + 1}. Were "
                "entries dropped?"
            )
        return message.number == known + 1

    def take(self, message: Hello | JournalEntry) -> None:
        """Records a new message as applied."""
        if isinstance(message, JournalEntry):
            self.taken[message.journal] = message.number
            return
        known = self.taken.get(message.journal)
        if known is not None:
            self.lost += message.first - 1 - known
            LOG.warning(
                "journal %s: entries %d to %d were acknowledged before and are lost.",
                message.journal,
                known + 1,
                message.first - 1,
            )
        self.taken[message.journal] = message.first - 1

    def with_unique_episodes(self, message: JournalEntry) -> Steps:
        """Steps of a message, with episode numbers that are unique across journals."""
        position = list(self.taken).index(message.journal)
        return message.steps._replace(
            episode=message.steps.episode + np.int64(position * EPISODES_PER_JOURNAL)
        )

    def state_dict(self) -> dict[str, Any]:
        """State as arguments of the constructor."""
        return {"taken": dict(self.taken), "lost": self.lost}


class LoggedMessage(NamedTuple):
    """Message that was written to the log."""

    number: int
    """Number of its log entry."""
    message: Hello | JournalEntry


class MessageLog:
    """Log and queue of received messages; one thread calls `put`, another `drain`.

    Args:
        folder: folder of the log; created if missing.
        sequences: state of the sequence tracker before log entry `applied`.
        applied: number of the first log entry that is still to be delivered.
        segment_bytes: see `AppendLog`.

    Raises:
        HandoffError: another process has the log open, entries are damaged, or entries from
            `applied` on are missing.
    """

    def __init__(
        self, folder: Path, sequences: SequenceTracker, applied: int, segment_bytes: int
    ) -> None:
        self._log = AppendLog(folder, segment_bytes)
        self._sequences = SequenceTracker(**sequences.state_dict())
        self._queue: deque[LoggedMessage] = deque()
        self._changed = threading.Condition()
        try:
            if not self._log.first <= applied <= self._log.next:
                raise HandoffError(
                    f"{folder}: holds entries {self._log.first} to {self._log.next - 1}, the checkpoint continues at "
                    f"{applied}. Was only one of them copied or removed?"
                )
            for number, frame in self._log.records(applied):
                message = decode(frame)
                assert isinstance(message, Hello | JournalEntry)
                self._sequences.take(message)
                self._queue.append(LoggedMessage(number, message))
        except BaseException:
            self._log.close()
            raise

    def put(self, frame: bytes, message: Hello | JournalEntry) -> int:
        """Writes a frame to the log, unless it is known already, and enqueues its message.

        Returns:
            Number of the last entry of its journal that is on disk.

        Raises:
            HandoffError: entries are missing, see `SequenceTracker.is_new`, or the log cannot be
                written.
        """
        if self._sequences.is_new(message):
            number = self._log.append(frame)
            self._sequences.take(message)
            with self._changed:
                self._queue.append(LoggedMessage(number, message))
                self._changed.notify_all()
        return self._sequences.taken.get(message.journal, NO_ENTRY)

    def drain(self) -> list[LoggedMessage]:
        """Messages received since the last call, in order."""
        with self._changed:
            received = list(self._queue)
            self._queue.clear()
        return received

    def wait(self, seconds: float) -> None:
        """Waits until a message is available, at most `seconds` [s]."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue), seconds)

    def drop(self, applied: int) -> None:
        """Deletes log files whose entries all have numbers below `applied`."""
        self._log.drop(applied)

    def close(self) -> None:
        """Closes the log and releases its folder."""
        self._log.close()
