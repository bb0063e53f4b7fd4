"""Changes of a review as edits, with the person, the time and the reason of each."""

from __future__ import annotations

from typing import Any

from flows.review.review_edits import review_edits
from flows.review.review_log import ReviewLine
from robots.episodes.curation.edit import Edits

METADATA: dict[int, dict[str, Any]] = {
    0: {"success": True, "labelled_by": "task"},
    1: {"success": False, "labelled_by": "ada", "discard_reason": "failure"},
    2: {"success": True, "labelled_by": "ada", "note": "old"},
    3: {},
}


def line(minute: int, by: str, value: Any) -> ReviewLine:
    when = f"2026-11-27T03:{minute:02d}:00.000Z"
    return ReviewLine(number=minute, when=when, by=by, what="note", value=value)


def edits(**aspects: ReviewLine) -> list[Edits]:
    return review_edits({1: aspects}, METADATA.__getitem__)  # type: ignore[dict-item]


def test_a_label_names_the_person_and_a_success_counts_again() -> None:
    (edit,) = edits(verdict=line(1, "eve", "success"))
    assert edit == Edits(
        labels={1: {"success": True, "labelled_by": "eve", "discard_reason": None}},
        by="eve",
        when="2026-11-27T03:01:00.000Z",
    )


def test_a_label_that_is_as_it_was_changes_nothing() -> None:
    assert edits(verdict=line(1, "ada", "failure")) == []


def test_what_one_person_did_to_an_episode_is_one_edit_and_the_note_its_reason() -> None:
    (edit,) = edits(
        verdict=line(1, "ada", "success"),
        trim=line(3, "ada", [2, 9]),
        note=line(2, "ada", "idle at first"),
    )
    assert (edit.by, edit.reason) == ("ada", "idle at first")
    assert edit.when == "2026-11-27T03:03:00.000Z"
    assert edit.trim == {1: (2, 9)}
    assert edit.labels == {1: {"success": True, "discard_reason": None, "note": "idle at first"}}


def test_two_people_have_an_edit_each() -> None:
    first, second = edits(verdict=line(1, "eve", "success"), trim=line(3, "bob", [2, 9]))
    assert (first.by, first.trim) == ("eve", {})
    assert (second.by, second.labels, second.trim) == ("bob", {}, {1: (2, 9)})


def test_episodes_that_are_left_out_are_one_deletion_per_person_and_note() -> None:
    blurred = line(4, "ada", "blurred")
    found = review_edits(
        {
            0: {"verdict": line(1, "ada", "discard"), "trim": line(2, "ada", [1, 2])},
            1: {"verdict": line(3, "ada", "discard"), "note": blurred},
            2: {"verdict": line(5, "eve", "discard")},
            3: {"verdict": line(6, "ada", "discard")},
        },
        METADATA.__getitem__,
    )
    assert [(each.delete, each.by, each.reason, each.when[14:16]) for each in found] == [
        ((0, 3), "ada", "", "06"),
        ((1,), "ada", "blurred", "03"),
        ((2,), "eve", "", "05"),
    ]
    assert all(not each.trim and not each.labels for each in found)


def test_an_empty_note_removes_a_recorded_one() -> None:
    found = review_edits({2: {"note": line(1, "ada", "")}}, METADATA.__getitem__)
    assert [each.labels for each in found] == [{2: {"note": None}}]
