"""Keeps the actor's write-ahead log of steps, which survives any crash and reaches the learner
exactly once.

A file is deleted once all its entries are acknowledged. See `robots.storage.append_log` for the
format.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from robots.errors import HandoffError
from robots.storage.append_log import AppendLog
from robots.storage.durable import explain_write_errors, write_atomically
from robots.wire.learner import JOURNAL_NAME, JournalEntry, check_steps, encode
from robots.wire.shared_pictures import SENT_EPISODES, SharedPictures
from robots.wire.steps import Steps

_CARD = "journal.json"


class Journal:
    """Numbered entries of steps in a folder. One process at a time has it open; one of its threads
    appends, another one reads.

    Args:
        folder: folder of the files, made if missing.
        segment_bytes: size from which a file is followed by a new one [bytes].

    Raises:
        HandoffError: another process has it open, an entry before the last is damaged, or a file is
            missing.
    """

    identity: str
    """Identity of the journal: 16 hexadecimal digits, drawn when it was made."""
    start: int
    """Number of times that the journal was opened, from 1; part of the episodes' numbers, so that
    each is used once."""

    def __init__(self, folder: Path, segment_bytes: int = 8_000_000) -> None:
        self.folder = folder
        self._log = AppendLog(folder, segment_bytes)
        self._shared = SharedPictures(SENT_EPISODES)
        try:
            self.identity, self.start = self._open_card()
        except BaseException:
            self.close()
            raise

    @property
    def next_number(self) -> int:
        """Number of the next entry; all entries before it are committed."""
        return self._log.next

    @property
    def first_number(self) -> int:
        """Number of the oldest entry that was not dropped."""
        return self._log.first

    def append(self, steps: Steps) -> int:
        """Commits steps and returns the number of their entry; they are on the disk then.

        Raises:
            HandoffError: invalid steps, or the disk cannot be written.
        """
        number = self._log.next
        if not steps.pictures:
            return self._log.append(encode(JournalEntry(self.identity, number, steps)))
        check_steps(steps)
        own = self._shared.own_rows(steps)
        sent = steps._replace(pictures={name: rows[own] for name, rows in steps.pictures.items()})
        return self._log.append(encode(JournalEntry(self.identity, number, sent, own)))

    def frame(self, number: int) -> bytes:
        """The entry as a message to the learner (`robots.wire.learner.encode` of `JournalEntry`).

        Raises:
            HandoffError: the entry was dropped or does not exist yet.
        """
        return self._log.read(number)

    def wait(self, number: int, seconds: float) -> bool:
        """Waits up to `seconds` for entry `number`; returns whether it exists."""
        return self._log.wait(number, seconds)

    def drop(self, taken: int) -> None:
        """Deletes files whose entries all have numbers up to `taken`, which the learner has; the
        newest file stays."""
        self._log.drop(taken + 1)

    def close(self) -> None:
        """Closes the journal; a second call does nothing."""
        self._log.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_card(self) -> tuple[str, int]:
        """The identity and the number of this start, which is on the disk before it is used."""
        path = self.folder / _CARD
        try:
            card = json.loads(path.read_text())
            identity, starts = card["identity"], card["starts"]
            sound = (
                isinstance(identity, str)
                and JOURNAL_NAME.fullmatch(identity)
                and type(starts) is int
            )
        except FileNotFoundError:
            if self.next_number:
                raise HandoffError(
                    f"{path}: missing beside {self.next_number} entries. Was it removed?"
                ) from None
            identity, starts = secrets.token_hex(8), 0
            sound = True
        except (ValueError, TypeError, KeyError):
            identity, starts = "", 0
            sound = False
        if not sound:
            raise HandoffError(f"{path}: not the card of a journal. Was it changed?")
        with explain_write_errors(path, "the journal cannot be opened"):
            write_atomically(
                path, json.dumps({"identity": identity, "starts": starts + 1}).encode()
            )
        return identity, starts + 1
