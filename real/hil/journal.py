"""The actor's journal of steps: what is in it survives any crash and is sent until the learner has
it, once.

Files are dropped once all their entries are acknowledged. See `robots.storage.append_log` for their
form.
"""

from __future__ import annotations

import json
import secrets
from pathlib import Path

from robots.errors import HandoffError
from robots.storage.append_log import AppendLog
from robots.storage.durable import explain_write_errors, write_atomically
from robots.wire.learner import JOURNAL_NAME, Sent, encode
from robots.wire.steps import Steps

_CARD = "journal.json"


class Journal:
    """Numbered entries of steps in a folder, one writing process at a time; one thread appends,
    another reads.

    Args:
        folder: made if missing.
        segment_bytes: size from which on a file is followed by a new one.

    Raises:
        HandoffError: another process has it open, an entry that is not the last is damaged, or a
            file is missing.
    """

    identity: str
    """16 hexadecimal digits, drawn when the journal was made."""
    start: int
    """Which opening of the journal this is, from 1; part of the episodes' numbers, so that none is
    used twice."""

    def __init__(self, folder: Path, segment_bytes: int = 8_000_000) -> None:
        self.folder = folder
        self._log = AppendLog(folder, segment_bytes)
        try:
            self.identity, self.start = self._open_card()
        except BaseException:
            self.close()
            raise

    @property
    def next_number(self) -> int:
        """Of the entry that will be appended next; all before it are committed."""
        return self._log.next

    @property
    def first_number(self) -> int:
        """Of the oldest entry that is still there."""
        return self._log.first

    def append(self, steps: Steps) -> int:
        """Commits steps: they are on the disk when this returns. Returns their entry's number.

        Raises:
            HandoffError: unsound steps, or a disk that does not take them.
        """
        return self._log.append(encode(Sent(self.identity, self._log.next, steps)))

    def frame(self, number: int) -> bytes:
        """The entry as it is sent (`robots.wire.learner.encode` of `Sent`).

        Raises:
            HandoffError: it was dropped or is not there yet.
        """
        return self._log.read(number)

    def wait(self, number: int, seconds: float) -> bool:
        """Whether entry `number` is there, after at most that time [s]."""
        return self._log.wait(number, seconds)

    def drop(self, taken: int) -> None:
        """Frees what the learner has: files whose entries are all numbered `taken` or below, except
        the newest."""
        self._log.drop(taken + 1)

    def close(self) -> None:
        """Gives the folder up; a second call does nothing."""
        self._log.close()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _open_card(self) -> tuple[str, int]:
        """The identity, and the number of this start, which is on the disk before anything is done
        with it."""
        path = self.folder / _CARD
        try:
            told = json.loads(path.read_text())
            identity, starts = told["identity"], told["starts"]
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
            identity, starts, sound = secrets.token_hex(8), 0, True
        except (ValueError, TypeError, KeyError):
            identity, starts, sound = "", 0, False
        if not sound:
            raise HandoffError(f"{path}: not the card of a journal. Was it changed?")
        with explain_write_errors(path, "the journal cannot be opened"):
            write_atomically(
                path, json.dumps({"identity": identity, "starts": starts + 1}).encode()
            )
        return identity, starts + 1
