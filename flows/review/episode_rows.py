"""Lists the episodes of a review: the labels of each, and what about it asks for a look."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np

from flows.review.data_set import EpisodeOutline
from robots.episodes.curation.checks.episodes import short_episodes
from robots.episodes.curation.examination import ExamineConfig

Shown = Literal[
    "all",
    "unreviewed",
    "changed",
    "unlabelled",
    "failures",
    "contradicted",
    "corrected",
    "faults",
    "dropped",
    "short",
]
"""Episodes that are listed: all, those without or with a change of the review, and those of which
`flags` says so."""
SHOWN: tuple[str, ...] = get_args(Shown)
_ENTRIES = (
    "success",
    "labelled_by",
    "ended_by",
    "discard_reason",
    "fault",
    "true_success",
    "instruction",
    "operator",
    "began",
    "note",
)
"""Entries of the metadata that the list has."""


def episode_rows(outlines: Sequence[EpisodeOutline], rate_hz: float | None) -> list[dict[str, Any]]:
    """A JSON map per episode: number, steps, seconds, entries of its metadata, takeovers and
    flags."""
    steps = np.array([each.steps for each in outlines])
    short = set(short_episodes(steps, ExamineConfig()).tolist())
    return [
        {
            "episode": number,
            "steps": each.steps,
            "seconds": None if rate_hz is None else round(each.steps / rate_hz, 2),
            **{key: each.metadata[key] for key in _ENTRIES if each.metadata.get(key) is not None},
            "takeovers": each.takeovers,
            "corrected": each.corrected,
            "flags": list(flags(each, short=number in short)),
        }
        for number, each in enumerate(outlines)
    ]


def flags(episode: EpisodeOutline, *, short: bool) -> Iterator[str]:
    """Yields what about an episode asks for a look.

    Args:
        episode: the episode.
        short: whether it is far shorter than the others.
    """
    about = episode.metadata
    success = about.get("success")
    if success is None or about.get("discard_reason") == "unlabelled":
        yield "unlabelled"
    if success is False:
        yield "failures"
    truth = about.get("true_success")
    if truth is not None and success is not None and bool(truth) != bool(success):
        yield "contradicted"
    if episode.takeovers:
        yield "corrected"
    if about.get("fault") or about.get("ended_by") == "fault":
        yield "faults"
    if about.get("discard_reason"):
        yield "dropped"
    if short:
        yield "short"


def episode_mark(number: int, steps: int, metadata: Mapping[str, Any]) -> str:
    """A short digest of an episode's number, length and metadata, by which a change names it."""
    content = json.dumps([number, steps, metadata], sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:16]
