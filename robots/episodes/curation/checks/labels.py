"""Checks what is said about the episodes: success, instructions, weights and rewards."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator

import numpy as np

from robots.config import LARGEST
from robots.episodes.curation.checks.evidence import EpisodeEvidence, finding, name_episodes
from robots.episodes.curation.examination import Finding
from robots.episodes.curation.weights import check_weights
from robots.errors import HandoffError

_MOST_SHOWN = 60
"""Largest length of an instruction in a sentence."""


def check_labels(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Success and instructions that are missing or unbalanced, and weights that are none."""
    yield from _success(evidence)
    yield from _instructions(evidence)
    yield from _weights(evidence)


def _success(evidence: EpisodeEvidence) -> Iterator[Finding]:
    labels = [summary.success for summary in evidence.summaries]
    total = len(labels)
    unknown = [episode for episode, label in enumerate(labels) if label is None]
    known = total - len(unknown)
    if known == 0:
        return
    if unknown:
        yield finding(
            "labels",
            "warning",
            f"No success is stated for {name_episodes(unknown, total)}, but for {known} others. Was the label "
            "forgotten, or were sets merged?",
            unknown,
        )
    successes = sum(label is True for label in labels)
    if successes / known < evidence.config.success_share:
        yield finding(
            "labels",
            "warning",
            f"{successes} of {known} episodes are successful, limit {100 * evidence.config.success_share:g} %. "
            "Is success labelled at all? Imitation would learn the failures.",
        )


def _instructions(evidence: EpisodeEvidence) -> Iterator[Finding]:
    words = [summary.instruction for summary in evidence.summaries]
    total = len(words)
    counts = Counter(text for text in words if text)
    if not counts:
        return
    missing = [episode for episode, text in enumerate(words) if not text]
    if missing:
        yield finding(
            "labels",
            "error",
            f"No instruction is given for {name_episodes(missing, total)}, but for {total - len(missing)} others. "
            "Was the label forgotten? A language-conditioned policy would learn to ignore words.",
            missing,
        )
    (most, often), (least, seldom) = counts.most_common()[0], counts.most_common()[-1]
    if len(counts) > 1 and often >= evidence.config.instruction_ratio * seldom:
        yield finding(
            "labels",
            "warning",
            f"The instruction {_quoted(most)} has {often} episodes, {_quoted(least)} has {seldom}, limit "
            f"{evidence.config.instruction_ratio:g} times as many. Repeat the rare ones, or record more of them.",
            [episode for episode, text in enumerate(words) if text == least],
        )
    yield from _spellings(words)


def _spellings(words: list[str | None]) -> Iterator[Finding]:
    """Instructions that differ only in capitals, spaces and punctuation."""
    spellings: dict[str, Counter[str]] = {}
    for text in words:
        if text:
            plain = re.sub(r"[\W_]+", " ", text.lower()).strip()
            spellings.setdefault(plain, Counter())[text] += 1
    for forms in spellings.values():
        if len(forms) > 1:
            (usual, _), (other, _) = forms.most_common()[0], forms.most_common()[-1]
            yield finding(
                "labels",
                "warning",
                f"{len(forms)} instructions differ only in capitals, spaces or punctuation, such as {_quoted(usual)} "
                f"and {_quoted(other)}. Were they typed by hand?",
                [episode for episode, text in enumerate(words) if text in forms and text != usual],
            )


def _weights(evidence: EpisodeEvidence) -> Iterator[Finding]:
    weights = [summary.weight for summary in evidence.summaries]
    invalid = [episode for episode, weight in enumerate(weights) if weight is None]
    if invalid:
        yield finding(
            "labels",
            "error",
            f"The weight of {name_episodes(invalid, len(weights))} is no number of 0 to {LARGEST:.0e}. Was it written "
            "by hand? Training refuses it.",
            invalid,
        )
        return
    try:
        check_weights("weights", np.array(weights, float))
    except HandoffError as error:
        yield finding("labels", "error", f"{error} Training refuses them.")


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..")


def check_rewards(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Rewards that are the same in every step of every episode."""
    for name in evidence.layout.rewards:
        ranges = np.array([summary.rewards[name] for summary in evidence.summaries])
        low, high = ranges[:, 0].min(), ranges[:, 1].max()
        if low == high:
            yield finding(
                "rewards",
                "warning",
                f"{name} is {low:g} in every step of all episodes. Was the reward never computed? Imitation does not "
                "need it, learning from rewards does.",
                fields=[name],
            )
