"""Keeps the messages of actors: on disk first, then in order to the learner, each entry exactly
once."""

from __future__ import annotations

import logging
import threading
from collections import deque
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.errors import HandoffError
from robots.storage.append_log import AppendLog
from robots.wire.learner import NONE, Hello, Sent, decode
from robots.wire.steps import Steps

LOG = logging.getLogger(__name__)
EPISODES_PER_JOURNAL = 2**48
"""Episode numbers of one journal; those of the second one are moved up by it, and so on."""


class Ledger:
    """Which entries of which journals have been taken; a function of the frames that it was
    shown."""

    def __init__(self, taken: dict[str, int] | None = None, lost: int = 0) -> None:
        self.taken = {} if taken is None else dict(taken)
        """Per journal, in the order in which they came, the number of its newest entry taken."""
        self.lost = lost
        """Entries that are nowhere any more: acknowledged by a learner whose folder was put back
        since."""

    def wants(self, message: Hello | Sent) -> bool:
        """Whether the message says anything new.

        Raises:
            HandoffError: steps of a journal that has not said hello, or that leave out some before
                them.
        """
        known = self.taken.get(message.journal)
        if isinstance(message, Hello):
            return known is None or message.first > known + 1
        if known is None:
            raise HandoffError(f"steps: journal {message.journal} has not said hello.")
        if message.number > known + 1:
            raise HandoffError(
                f"steps: entry {message.number} of journal {message.journal}, expected {known + 1}. Were some dropped?"
            )
        return message.number == known + 1

    def take(self, message: Hello | Sent) -> None:
        """Counts a message that is wanted."""
        if isinstance(message, Sent):
            self.taken[message.journal] = message.number
            return
        known = self.taken.get(message.journal)
        if known is not None:
            self.lost += message.first - 1 - known
            LOG.warning(
                "journal %s: entries %d to %d are lost.",
                message.journal,
                known + 1,
                message.first - 1,
            )
        self.taken[message.journal] = message.first - 1

    def episodes(self, message: Sent) -> Steps:
        """Its steps, with episode numbers that no other journal has."""
        place = list(self.taken).index(message.journal)
        return message.steps._replace(
            episode=message.steps.episode + np.int64(place * EPISODES_PER_JOURNAL)
        )

    def state_dict(self) -> dict[str, Any]:
        """For the constructor."""
        return {"taken": dict(self.taken), "lost": self.lost}


class Received(NamedTuple):
    """A frame that is on the disk."""

    number: int
    """In the log."""
    message: Hello | Sent


class Inbox:
    """The log of what came in. One thread puts in, another drains.

    Args:
        folder: of the log; made if missing.
        ledger: as it was before log entry `applied`.
        applied: number of the first log entry that has to be drained (again).
        segment_bytes: see `AppendLog`.

    Raises:
        HandoffError: another process has it open, entries are damaged, or those from `applied` on
            are not all there.
    """

    def __init__(self, folder: Path, ledger: Ledger, applied: int, segment_bytes: int) -> None:
        self._log = AppendLog(folder, segment_bytes)
        self._ledger = Ledger(**ledger.state_dict())
        self._queue: deque[Received] = deque()
        self._changed = threading.Condition()
        try:
            if not self._log.first <= applied <= self._log.next:
                raise HandoffError(
                    f"{folder}: holds entries {self._log.first} to {self._log.next - 1}, the checkpoint goes on at "
                    f"{applied}. Was one of the two copied or removed without the other?"
                )
            for number, frame in self._log.records(applied):
                message = decode(frame)
                assert isinstance(message, Hello | Sent)
                self._ledger.take(message)
                self._queue.append(Received(number, message))
        except BaseException:
            self._log.close()
            raise

    def put(self, frame: bytes, message: Hello | Sent) -> int:
        """Takes a frame unless it is known already; it is on the disk when this returns.

        Returns:
            Number of the newest entry of its journal that is on the disk.

        Raises:
            HandoffError: what `Ledger.wants` raises, or the disk does not take it.
        """
        if self._ledger.wants(message):
            number = self._log.append(frame)
            self._ledger.take(message)
            with self._changed:
                self._queue.append(Received(number, message))
                self._changed.notify_all()
        return self._ledger.taken.get(message.journal, NONE)

    def drain(self) -> list[Received]:
        """What has come since the last call, in its order."""
        with self._changed:
            received = list(self._queue)
            self._queue.clear()
        return received

    def wait(self, seconds: float) -> None:
        """Until something has come, or that time has passed [s]."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._queue), seconds)

    def drop(self, applied: int) -> None:
        """Frees files of which all entries are numbered below `applied`."""
        self._log.drop(applied)

    def close(self) -> None:
        """Gives the folder up."""
        self._log.close()
