"""Turns the changes of a review into edits of a store, which say who did what, when and why."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from flows.review.review_log import Aspect, Decisions, ReviewLine
from robots.episodes.curation.edit import Edits

NOTE = "note"
"""Entry of an episode's metadata with the note of a reviewer."""
DISCARDED = "discard"


def review_edits(decisions: Decisions, metadata: Callable[[int], Mapping[str, Any]]) -> list[Edits]:
    """The edits of a review: one for every person and note among the episodes that are left out,
    and one for every person in every other changed episode. The note is the reason.

    Args:
        decisions: the changes that hold.
        metadata: returns the metadata of an episode.
    """
    left_out: dict[tuple[str, str], list[tuple[int, str]]] = {}
    others: list[Edits] = []
    for episode, aspects in sorted(decisions.items()):
        verdict = aspects.get("verdict")
        note = str(aspects["note"].value) if "note" in aspects else ""
        if verdict is not None and verdict.value == DISCARDED:
            left_out.setdefault((verdict.by, note), []).append((episode, verdict.when))
        else:
            others += _edits_of(episode, aspects, metadata(episode), note)
    deletions = [
        Edits(
            delete=tuple(episode for episode, _ in episodes),
            by=by,
            reason=note,
            when=max(when for _, when in episodes),
        )
        for (by, note), episodes in left_out.items()
    ]
    return [*deletions, *others]


def _edits_of(
    episode: int, aspects: Mapping[Aspect, ReviewLine], metadata: Mapping[str, Any], note: str
) -> Iterator[Edits]:
    """Yields the edits of an episode that stays, one for each person."""
    for by in dict.fromkeys(line.by for line in aspects.values()):
        own = {aspect: line for aspect, line in aspects.items() if line.by == by}
        labels: dict[str, Any] = {}
        if "verdict" in own:
            labels |= _labels(own["verdict"], metadata)
        if "note" in own:
            labels[NOTE] = own["note"].value or None
        labels = {key: value for key, value in labels.items() if metadata.get(key) != value}
        trim = {episode: tuple(own["trim"].value)} if "trim" in own else {}
        if labels or trim:
            yield Edits(
                trim=trim,
                labels={episode: labels} if labels else {},
                by=by,
                reason=note,
                when=max(line.when for line in own.values()),
            )


def _labels(verdict: ReviewLine, metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Entries of the metadata for a label; an episode that succeeded counts again."""
    succeeded = verdict.value == "success"
    counts = {"discard_reason": None} if succeeded and metadata.get("discard_reason") else {}
    return {"success": succeeded, "labelled_by": verdict.by, **counts}
