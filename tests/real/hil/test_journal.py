"""The actor's journal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from real.hil.journal import Journal
from robots.errors import HandoffError
from robots.wire.learner import JournalEntry, decode
from tests.real.hil.made import steps


def test_an_entry_is_the_frame_that_is_sent(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        assert journal.append(steps(begin=3)) == 0
        message = decode(journal.frame(0))
    assert isinstance(message, JournalEntry)
    assert (message.journal, message.number) == (journal.identity, 0)
    assert message.steps.number.tolist() == [3, 4]


def test_a_journal_opened_again_keeps_its_identity_and_counts_its_starts(tmp_path: Path) -> None:
    with Journal(tmp_path) as first:
        first.append(steps())
    with Journal(tmp_path) as second:
        assert (second.identity, second.start, second.next_number) == (first.identity, 2, 1)


def test_two_journals_have_different_identities(tmp_path: Path) -> None:
    with Journal(tmp_path / "a") as a, Journal(tmp_path / "b") as b:
        assert a.identity != b.identity


def test_acknowledged_files_are_dropped_and_numbers_go_on_after_a_restart(tmp_path: Path) -> None:
    with Journal(tmp_path, segment_bytes=1) as journal:
        for _ in range(4):
            journal.append(steps())
        journal.drop(2)
        assert (journal.first_number, journal.next_number) == (3, 4)
        journal.drop(3)
        assert (journal.first_number, journal.next_number) == (3, 4)
    with Journal(tmp_path) as again:
        assert again.append(steps()) == 4


def test_unsound_steps_are_not_committed(tmp_path: Path) -> None:
    bad = steps()._replace(reward=np.array([0.0, np.nan], np.float32))
    with Journal(tmp_path) as journal:
        with pytest.raises(HandoffError, match="reward: has a non-finite value"):
            journal.append(bad)
        assert journal.next_number == 0


def test_a_journal_without_its_card_is_an_error(tmp_path: Path) -> None:
    with Journal(tmp_path) as journal:
        journal.append(steps())
    (tmp_path / "journal.json").unlink()
    with pytest.raises(HandoffError, match="missing beside 1 entries"):
        Journal(tmp_path)
