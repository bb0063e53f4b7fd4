"""Collects the summaries of all episodes, and words findings."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from robots.episodes.curation.checks.layout import StateField, StreamLayout
from robots.episodes.curation.checks.summary import EpisodeSummary
from robots.episodes.curation.checks.usual_values import StreamProfile
from robots.episodes.curation.examination import CheckName, ExamineConfig, Finding, Severity

_MOST_NAMED = 6
"""Largest number of episodes that a sentence names."""


@dataclass
class EpisodeEvidence:
    """Summaries of the E episodes of a store, whose entries are numbered as in the layout."""

    layout: StreamLayout
    profile: StreamProfile
    config: ExamineConfig
    robot: str = ""
    """Name of the robot of the store; empty if there is none."""
    summaries: list[EpisodeSummary] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """What could not be checked, and why."""
    _columns: list[Any] = field(default_factory=list)
    _pictures: dict[str, Any] = field(default_factory=dict)

    def add(self, summary: EpisodeSummary, rows: np.ndarray) -> None:
        """Adds an episode with its rows `(T, D)`."""
        self.summaries.append(summary)
        if not self._columns:
            self._columns = [hashlib.blake2b(digest_size=16) for _ in range(rows.shape[1])]
        for digest, column in zip(self._columns, np.ascontiguousarray(rows.T), strict=True):
            digest.update(column.tobytes())
        for name, picture in summary.pictures.items():
            digest = self._pictures.setdefault(name, hashlib.blake2b(digest_size=16))
            digest.update(picture.digest)

    @property
    def steps(self) -> np.ndarray:
        """(E,) lengths of the episodes."""
        return np.array([summary.steps for summary in self.summaries], int)

    @property
    def column_digests(self) -> list[bytes]:
        """(D,) digests of the entries over all episodes."""
        return [digest.digest() for digest in self._columns]

    @property
    def picture_digests(self) -> dict[str, bytes]:
        """Digests of the thinned pictures over all episodes, by field."""
        return {name: digest.digest() for name, digest in self._pictures.items()}

    def entry(self, name: str) -> np.ndarray:
        """(E, D) one figure of the entries."""
        return np.stack([getattr(summary.entries, name) for summary in self.summaries])

    def stack(self, name: str) -> np.ndarray:
        """(E, ...) one attribute of the summaries."""
        return np.stack([np.asarray(getattr(summary, name)) for summary in self.summaries])

    def seconds(self, steps: float) -> float:
        """Time of a number of steps [s]."""
        return float(steps) / self.layout.rate_hz

    @property
    def usually_repeats(self) -> np.ndarray:
        """(D,) bool: entries that keep their value by their nature."""
        return np.median(self.entry("repeats"), axis=0) > self.config.usual_repeats

    @property
    def usual_range(self) -> tuple[np.ndarray, np.ndarray]:
        """(D,) medians over the episodes of the smallest and the largest value."""
        return np.median(self.entry("low"), axis=0), np.median(self.entry("high"), axis=0)

    def pair_fields(self, pairing: int) -> tuple[StateField, StateField]:
        """Fields of the action and of the observation of a pairing."""
        pair = self.profile.pairings[pairing]
        return (
            self.layout.field_of(int(pair.action[0])),
            self.layout.field_of(int(pair.observation[0])),
        )

    def pair_names(self, pairing: int) -> tuple[str, str]:
        """Words for the entries of the action and of the observation of a pairing."""
        pair, labels = self.profile.pairings[pairing], self.layout.labels
        first, second = self.pair_fields(pairing)
        return _span(first, pair.action, labels), _span(second, pair.observation, labels)


def _span(whole: StateField, entries: np.ndarray, labels: Sequence[str]) -> str:
    """Name of a field, or of its entries if they are only a part of it."""
    first, last = labels[int(entries[0])], labels[int(entries[-1])]
    if len(entries) == len(whole.labels):
        return whole.name
    return first if len(entries) == 1 else f"{first} to {last}"


def finding(
    check: CheckName,
    severity: Severity,
    sentence: str,
    episodes: Iterable[int] = (),
    fields: Iterable[str] = (),
) -> Finding:
    """One finding."""
    return Finding(
        check=check,
        severity=severity,
        episodes=tuple(sorted({int(episode) for episode in episodes})),
        fields=tuple(dict.fromkeys(fields)),
        sentence=sentence,
    )


def name_episodes(episodes: Sequence[int] | np.ndarray, total: int) -> str:
    """Words for a selection of `total` episodes, such as `episodes 3 and 5`."""
    numbers = sorted({int(episode) for episode in episodes})
    if len(numbers) == total and total > 1:
        return f"all {total} episodes"
    if len(numbers) == 1:
        return f"episode {numbers[0]}"
    if len(numbers) <= _MOST_NAMED:
        return f"episodes {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
    return f"{len(numbers)} of {total} episodes ({', '.join(map(str, numbers[:3]))} and others)"


def name_list(names: Sequence[str]) -> str:
    """Words for some names, such as `a, b and c`; long lists are cut."""
    if len(names) > _MOST_NAMED:
        return f"{', '.join(names[:3])} and {len(names) - 3} more"
    if len(names) <= 1:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"
