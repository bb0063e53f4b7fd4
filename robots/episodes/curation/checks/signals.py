"""Checks the values of single entries: dead, frozen, jumping, outlying and saturated ones."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robots.episodes.curation.checks.control import unit_faults
from robots.episodes.curation.checks.evidence import (
    EpisodeEvidence,
    finding,
    name_episodes,
    name_list,
)
from robots.episodes.curation.checks.layout import StateField
from robots.episodes.curation.examination import Finding

_USUAL = 0.8
"""Share of the episodes in which an entry varies from which one without variation is a fault."""
_MOST_SATURATED = 0.8
"""Share of the steps at the extremes above which an entry switches between them, as a gripper."""


def check_dead_entries(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Entries that are constant in the whole set, or in one episode while they vary in others."""
    low, high = evidence.entry("low"), evidence.entry("high")
    constant = low == high
    always = low.min(axis=0) == high.max(axis=0)
    gripper = evidence.layout.is_gripper
    for field in evidence.layout.states:
        dead = always[field.entries] & ~gripper[field.entries]
        if dead.any():
            yield _dead_everywhere(evidence, field, dead)
    usual = (~constant).mean(axis=0) >= _USUAL
    usual &= ~evidence.usually_repeats & ~gripper & ~evidence.profile.discrete
    total = len(evidence.summaries)
    for field in evidence.layout.states:
        inside = constant[:, field.entries] & usual[field.entries]
        # An episode of one step says nothing about variation.
        found = np.flatnonzero(
            inside.any(axis=1) & (evidence.steps >= evidence.config.frozen_steps)
        )
        if len(found) == 0:
            continue
        entries = np.flatnonzero(inside[found].any(axis=0))
        entry = field.first + int(entries[0])
        episode = int(found[inside[found, entries[0]].argmax()])
        yield finding(
            "dead_entries",
            "error",
            f"{name_list([field.labels[i] for i in entries])}: no change in {name_episodes(found, total)} "
            f"({low[episode, entry]:.4g} throughout), but a range of {evidence.profile.scale[entry]:.3g} in most "
            "others. Was the sensor disconnected?",
            found,
            [field.name],
        )


def _dead_everywhere(evidence: EpisodeEvidence, field: StateField, dead: np.ndarray) -> Finding:
    names = name_list([field.labels[i] for i in np.flatnonzero(dead)])
    value = evidence.summaries[0].entries.low[field.first + int(np.flatnonzero(dead)[0])]
    if dead.all():
        sentence = (
            f"{field.name} is {value:.4g} in every step of all episodes. Was it recorded at all?"
        )
        return finding("dead_entries", "warning", sentence, fields=[field.name])
    partners = [evidence.profile.partner(field.first + int(i)) for i in np.flatnonzero(dead)]
    scale = evidence.profile.scale
    moved = any(partner is not None and scale[partner] > 0.0 for partner in partners)
    cause = (
        "Its action varies: was the sensor disconnected?"
        if moved and field.role == "observation"
        else "Is the joint blocked, its sensor disconnected, or the entry unused?"
    )
    return finding(
        "dead_entries",
        "error" if moved else "warning",
        f"{names}: {value:.4g} in every step of all episodes, while other entries of {field.name} vary. {cause}",
        fields=[field.name],
    )


def check_frozen_observation(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Measured values that stay exactly the same for a while during which the arm moves."""
    total, config = len(evidence.summaries), evidence.config
    shortest = max(config.frozen_steps, round(config.frozen_seconds * evidence.layout.rate_hz))
    # Entries that often keep their value, as the pose of an object before it is touched.
    rests = np.mean(evidence.entry("longest") > shortest, axis=0) > 0.5
    repeats = evidence.usually_repeats | rests
    for field in evidence.layout.states:
        runs = [
            (episode, run)
            for episode, summary in enumerate(evidence.summaries)
            for run in summary.frozen
            if field.entries.start <= run.entry < field.entries.stop
            and not repeats[run.entry]
            and run.stop - run.start < summary.steps
        ]
        if not runs:
            continue
        episodes = sorted({episode for episode, _ in runs})
        episode, longest = max(runs, key=lambda found: found[1].stop - found[1].start)
        entries = sorted({run.entry for _, run in runs})
        labels = [evidence.layout.labels[entry] for entry in entries]
        words = field.name if len(entries) == len(field.labels) else name_list(labels)
        rows = longest.stop - longest.start
        yield finding(
            "frozen_observation",
            "error",
            f"{words}: no change for up to {evidence.seconds(rows):.1f} s (episode {episode}, from step "
            f"{longest.start}) in {name_episodes(episodes, total)} while the arm moves by "
            f"{100 * longest.motion:.0f} % of its range, limit {config.frozen_seconds:g} s. "
            "Did the driver stop sending?",
            episodes,
            [field.name],
        )


def check_frozen_action(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Actions that stay exactly the same for a while during which the arm moves."""
    total, config = len(evidence.summaries), evidence.config
    shortest = max(config.frozen_steps, config.frozen_seconds * evidence.layout.rate_hz)
    for field in (field for field in evidence.layout.states if field.role == "action"):
        if evidence.usually_repeats[field.entries].all():
            continue
        runs = np.array([summary.frozen_actions[field.name] for summary in evidence.summaries])
        found = np.flatnonzero(runs > shortest)
        if len(found) and len(found) <= total / 2:
            yield finding(
                "frozen_action",
                "error",
                f"{field.name} does not change for up to {evidence.seconds(runs.max()):.1f} s in "
                f"{name_episodes(found, total)} while the arm moves, limit {config.frozen_seconds:g} s. Was the "
                "teleoperation device disconnected?",
                found,
                [field.name],
            )


def check_jumps(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Changes from one step to the next that are far larger than fast motion."""
    total, config = len(evidence.summaries), evidence.config
    profile = evidence.profile
    jump = evidence.entry("jump")
    usual = np.percentile(evidence.entry("fast"), 75, axis=0)
    jumps = (jump > config.jump_ratio * usual) & (jump > config.jump_range * profile.scale)
    jumps &= ~profile.discrete & ~evidence.layout.is_gripper & (profile.scale > 0.0)
    jumps[:, jumps.mean(axis=0) > config.unusual_share] = False
    for first in evidence.layout.quaternions:
        jumps[:, first : first + 4] = False
    wrong_units = unit_faults(evidence) if jumps.any() else set()
    for field in evidence.layout.states:
        inside = jumps[:, field.entries]
        found = [
            e
            for e in np.flatnonzero(inside.any(axis=1)).tolist()
            if (e, field.name) not in wrong_units
        ]
        if not found:
            continue
        size = (
            jump[:, field.entries]
            / np.where(profile.scale > 0.0, profile.scale, np.inf)[field.entries]
        )
        size = np.where(inside, size, 0.0)[found]
        row, entry = np.unravel_index(int(size.argmax()), size.shape)
        episode = int(found[int(row)])
        number = field.first + int(entry)
        yield finding(
            "jumps",
            "error",
            f"{field.labels[int(entry)]} jumps by {jump[episode, number]:.3g} after step "
            f"{evidence.summaries[episode].entries.jump_step[number]} of episode {episode}, "
            f"{jump[episode, number] / max(usual[number], 1e-12):.3g} times a usual fast step, limit "
            f"{config.jump_ratio:g} (in {name_episodes(found, total)}). Were samples dropped, or episodes joined?",
            found,
            [field.name],
        )


def check_outliers(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Values far outside of what other episodes have."""
    total, config = len(evidence.summaries), evidence.config
    if total < 5:
        return
    low, high = evidence.entry("low"), evidence.entry("high")
    usual_low, usual_high = evidence.usual_range
    span = usual_high - usual_low
    limit = config.outlier_ranges * span
    above = high - usual_high - np.maximum(limit, 10.0 * _spread(high))
    below = usual_low - low - np.maximum(limit, 10.0 * _spread(low))
    outside = np.maximum(above, below)
    outside[:, (span <= 0.0) | evidence.profile.discrete] = -1.0
    for first in evidence.layout.quaternions:
        # A quaternion and its negative are the same rotation.
        outside[:, first : first + 4] = -1.0
    far = outside > 0.0
    far[:, far.mean(axis=0) > config.unusual_share] = False
    wrong_units = unit_faults(evidence) if far.any() else set()
    for field in evidence.layout.states:
        inside = far[:, field.entries]
        found = [
            e
            for e in np.flatnonzero(inside.any(axis=1)).tolist()
            if (e, field.name) not in wrong_units
        ]
        if not found:
            continue
        size = outside[:, field.entries] / np.where(span > 0.0, span, np.inf)[field.entries]
        size = np.where(inside, size, -1.0)[found]
        row, entry = np.unravel_index(int(size.argmax()), size.shape)
        episode = int(found[int(row)])
        number = field.first + int(entry)
        value = high[episode, number] if above[episode, number] > 0.0 else low[episode, number]
        yield finding(
            "outliers",
            "warning",
            f"{field.labels[int(entry)]} reaches {value:.4g} in episode {episode}, usual are "
            f"{usual_low[number]:.4g} to {usual_high[number]:.4g}, limit {config.outlier_ranges:g} such ranges "
            f"beyond (in {name_episodes(found, total)}). Did a sensor fail, or is it another task?",
            found,
            [field.name],
        )


def _spread(values: np.ndarray) -> np.ndarray:
    """(D,) standard deviation over the episodes, from the median deviation."""
    return 1.4826 * np.median(np.abs(values - np.median(values, axis=0)), axis=0)


def check_angle_wraps(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Angles that leap by a whole turn."""
    wraps, total = evidence.entry("wraps"), len(evidence.summaries)
    for field in evidence.layout.states:
        inside = wraps[:, field.entries]
        found = np.flatnonzero(inside.any(axis=1))
        if len(found):
            entries = [field.labels[i] for i in np.flatnonzero(inside.any(axis=0))]
            yield finding(
                "angle_wraps",
                "warning",
                f"{name_list(entries)}: {inside.sum()} leaps by a whole turn in {name_episodes(found, total)}, "
                "expected none. Networks and normalisation see a jump: unwrap the angle, or store sine and cosine.",
                found,
                [field.name],
            )


def check_saturation(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Actions that are often exactly at their smallest or largest value."""
    low, high = evidence.entry("low"), evidence.entry("high")
    config = evidence.config
    total = max(int(evidence.steps.sum()), 1)
    at_low = np.where(low == low.min(axis=0), evidence.entry("at_low"), 0)
    at_high = np.where(high == high.max(axis=0), evidence.entry("at_high"), 0)
    share = (at_low + at_high).sum(axis=0) / total
    varies = low.min(axis=0) < high.max(axis=0)
    saturated = (share >= config.saturated_share) & (share <= _MOST_SATURATED) & varies
    saturated &= ~evidence.profile.discrete & ~evidence.layout.is_gripper
    for field in (field for field in evidence.layout.states if field.role == "action"):
        entries = np.flatnonzero(saturated[field.entries])
        # A value that is held for long, as at rest, is no limit that motion runs into.
        held = evidence.usually_repeats[field.entries][entries] & (
            np.minimum(at_low.sum(axis=0), at_high.sum(axis=0))[field.entries][entries] == 0
        )
        entries = entries[~held]
        if len(entries) == 0:
            continue
        worst = int(entries[share[field.entries][entries].argmax()])
        number = field.first + worst
        both = (at_low + at_high)[:, field.entries][:, entries].max(axis=1)
        yield finding(
            "saturation",
            "warning",
            f"{name_list([field.labels[i] for i in entries])}: exactly {low[:, number].min():.4g} or "
            f"{high[:, number].max():.4g} in {100 * share[number]:.0f} % of all steps, limit "
            f"{100 * config.saturated_share:g} %. Was the action clipped? Enlarge its scale.",
            np.flatnonzero(both / np.maximum(evidence.steps, 1) >= config.saturated_share),
            [field.name],
        )
