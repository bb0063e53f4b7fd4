"""Checks whole episodes: duplicates, lengths, rest, padding, equal fields and times."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robots.episodes.curation.checks.evidence import (
    EpisodeEvidence,
    finding,
    name_episodes,
    name_list,
)
from robots.episodes.curation.examination import ExamineConfig, Finding

_LENGTH_TOLERANCE = 0.05
"""Largest difference in length of episodes that may be nearly equal, as a share."""
_MOST_STILL = 0.02
"""Share of repeated rows within the episodes above which repeated rows at the end are normal, as in
a simulation at rest."""


def check_duplicates(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Episodes that are equal bit by bit, or nearly."""
    if not evidence.layout.labels and not evidence.layout.pictures:
        return
    total = len(evidence.summaries)
    groups: dict[bytes, list[int]] = {}
    for episode, summary in enumerate(evidence.summaries):
        groups.setdefault(summary.digest, []).append(episode)
    equal = [group for group in groups.values() if len(group) > 1]
    if equal:
        members = [episode for group in equal for episode in group]
        pairs = name_list([" = ".join(map(str, group)) for group in equal])
        yield finding(
            "duplicates",
            "error",
            f"{len(members)} of {total} episodes are equal to another bit by bit ({pairs}). Was a recording copied, or "
            "merged twice? A copy in the test set hides overfitting.",
            members,
        )
    same = {tuple(group[:2]) for group in equal}
    first = {episode: group[0] for group in groups.values() for episode in group}
    near = [
        (one, two, distance)
        for one, two, distance in _near_pairs(evidence)
        if first[one] != first[two] and (one, two) not in same
    ]
    if near:
        one, two, distance = min(near, key=lambda pair: pair[2])
        members = [episode for pair in near for episode in pair[:2]]
        yield finding(
            "duplicates",
            "warning",
            f"{len(set(members))} of {total} episodes are nearly equal to another: {one} and {two} differ by at most "
            f"{100 * distance:.2g} % of the range at 16 moments, limit {100 * evidence.config.duplicate_distance:g} %. "
            "Were they replayed, or converted twice?",
            members,
        )


def _near_pairs(evidence: EpisodeEvidence) -> list[tuple[int, int, float]]:
    """Pairs of episodes whose values differ by less than the limit at every moment. Episodes that
    are so close have means that are as close, so that only neighbours in the order of the means
    are compared."""
    values = evidence.stack("signature").reshape(len(evidence.summaries), -1)
    limit = evidence.config.duplicate_distance
    if values.shape[1] == 0:
        return []
    steps = evidence.steps
    means = values.mean(axis=1, dtype=np.float64)
    order = np.argsort(means, kind="stable")
    pairs = []
    for place, one in enumerate(order):
        stop = int(np.searchsorted(means[order], means[one] + limit, side="right"))
        others = order[place + 1 : stop]
        close = np.abs(steps[others] - steps[one]) <= _LENGTH_TOLERANCE * steps[one]
        others = others[close]
        distances = np.abs(values[others] - values[one]).max(axis=1)
        pairs += [
            (int(min(one, two)), int(max(one, two)), float(distance))
            for two, distance in zip(others, distances, strict=True)
            if distance <= limit
        ]
    return pairs


def short_episodes(steps: np.ndarray, config: ExamineConfig) -> np.ndarray:
    """Numbers of the episodes that are far shorter than the median, or short in any case.

    Args:
        steps: `(E,)` number of steps of each episode.
        config: limits of both.
    """
    median = float(np.median(steps))
    return np.flatnonzero((steps * config.length_ratio <= median) | (steps < config.shortest_steps))


def check_lengths(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Episodes that are far shorter or longer than the others."""
    config, total = evidence.config, len(evidence.summaries)
    steps = evidence.steps
    median = float(np.median(steps))
    short = short_episodes(steps, config)
    long = np.flatnonzero(steps >= config.length_ratio * median)
    if len(short):
        yield finding(
            "lengths",
            "warning",
            f"There are only {steps[short].min()} steps in {name_episodes(short, total)}, the median is {median:g} "
            f"(limit: a {config.length_ratio:g}th of it, or {config.shortest_steps}). Was the recording stopped early?",
            short,
        )
    if len(long):
        yield finding(
            "lengths",
            "warning",
            f"There are {steps[long].max()} steps in {name_episodes(long, total)}, the median is {median:g} "
            f"(limit: {config.length_ratio:g} times it). Was the recording not stopped, or were episodes joined?",
            long,
        )


def check_idle(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Episodes that begin or end with a long rest, or in which nothing moves."""
    config, total = evidence.config, len(evidence.summaries)
    if not (evidence.profile.scale > 0.0).any():
        return
    shortest = config.idle_seconds * evidence.layout.rate_hz
    head, padded = evidence.stack("head"), evidence.stack("padded")
    steps = evidence.steps
    tail = np.where(padded >= config.padding_steps, 0, evidence.stack("tail"))
    never = head >= steps
    if never.any():
        yield finding(
            "idle",
            "error",
            f"In {name_episodes(np.flatnonzero(never), total)} nothing moves by {100 * config.idle_motion:g} % of its "
            "range. Was the arm stopped, or the wrong topic recorded?",
            np.flatnonzero(never),
        )
    for rest, where, cause in (
        (head, "before the first motion", "Did the recording start too early?"),
        (tail, "after the last motion", "Was it stopped too late?"),
    ):
        idle = np.flatnonzero((rest >= shortest) & ~never)
        if len(idle):
            yield finding(
                "idle",
                "warning",
                f"The arm rests up to {evidence.seconds(rest[idle].max()):.1f} s {where} in "
                f"{name_episodes(idle, total)}, limit {config.idle_seconds:g} s. {cause} "
                "A policy learns to stand still there.",
                idle,
            )


def check_padding(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Episodes that end with repetitions of one row."""
    padded, total = evidence.stack("padded"), len(evidence.summaries)
    if np.median(evidence.stack("still")) > _MOST_STILL:
        return
    found = np.flatnonzero(padded >= evidence.config.padding_steps)
    if len(found):
        lengths = np.unique(evidence.steps)
        cause = (
            "Were the episodes padded to one length?"
            if len(lengths) == 1
            else "Was the tail padded, or did the recorder hang?"
        )
        yield finding(
            "padding",
            "error",
            f"The last row is repeated up to {padded[found].max()} times at the end of {name_episodes(found, total)}, "
            f"limit {evidence.config.padding_steps} times. {cause}",
            found,
        )


def check_equal_fields(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Fields whose values are all found in another field."""
    digests = evidence.column_digests
    varies = evidence.entry("high").max(axis=0) > evidence.entry("low").min(axis=0)
    columns = {
        field.name: {
            digests[i] for i in range(field.entries.start, field.entries.stop) if varies[i]
        }
        for field in evidence.layout.states
    }
    named: set[frozenset[str]] = set()
    for name, inside in columns.items():
        for other, outside in columns.items():
            pair = frozenset((name, other))
            if name == other or not inside or not inside <= outside or pair in named:
                continue
            named.add(pair)
            roles = {field.role for field in evidence.layout.states if field.name in pair}
            relation = "equals" if inside == outside else "is a part of"
            cause = (
                "Was the observation recorded as the action, or the other way round?"
                if len(roles) == 2
                else "Was one of them recorded under the name of the other?"
            )
            yield finding(
                "equal_fields",
                "error" if len(roles) == 2 else "warning",
                f"{name} {relation} {other} in every step. {cause}",
                fields=sorted(pair),
            )
    yield from _equal_cameras(evidence)


def _equal_cameras(evidence: EpisodeEvidence) -> Iterator[Finding]:
    groups: dict[bytes, list[str]] = {}
    for name, digest in evidence.picture_digests.items():
        groups.setdefault(digest, []).append(name)
    for names in groups.values():
        if len(names) > 1:
            yield finding(
                "equal_fields",
                "error",
                f"{name_list(names)} have the same pictures in every step. Was one camera opened twice?",
                fields=names,
            )


def check_times(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Times that do not rise, are irregular or contradict the rate, and counters that skip."""
    total, config = len(evidence.summaries), evidence.config
    for name, unit in evidence.layout.times.items():
        times = [summary.times[name] for summary in evidence.summaries]
        smallest = np.array([time.smallest for time in times])
        median = float(np.median([time.median for time in times]))
        long_enough = evidence.steps > 1
        falling = np.flatnonzero((smallest <= 0.0) & long_enough)
        if len(falling):
            yield finding(
                "times",
                "error",
                f"{name} does not rise in {name_episodes(falling, total)}: the smallest difference of two steps is "
                f"{smallest[falling].min():.4g}, expected more than 0. Were clocks mixed, or rows sorted wrongly?",
                falling,
                [name],
            )
        yield from _irregular(evidence, name, falling)
        expected = 1.0 / evidence.layout.rate_hz
        if unit > 0.0 and median > 0.0 and abs(median / expected - 1.0) > config.rate_error:
            yield finding(
                "times",
                "warning",
                f"{name} has {1.0 / median:.4g} steps per second, the store says {evidence.layout.rate_hz:g} "
                f"(limit {100 * config.rate_error:g} %). Is the rate of the store that of the camera?",
                fields=[name],
            )
    yield from _capture_times(evidence)
    for name in evidence.layout.counters:
        wrong = [e for e, summary in enumerate(evidence.summaries) if name in summary.miscounted]
        if wrong:
            step = evidence.summaries[wrong[0]].miscounted[name]
            yield finding(
                "times",
                "error",
                f"{name} does not rise by 1 in {name_episodes(wrong, total)}, first at step {step} of episode "
                f"{wrong[0]}. Were rows lost, or put in another order?",
                wrong,
                [name],
            )


def _capture_times(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Capture times that fall, or that are irregular beyond what sampling a camera of another rate
    explains: one step."""
    total, config = len(evidence.summaries), evidence.config
    for name in evidence.layout.captures:
        captures = [summary.captures[name] for summary in evidence.summaries]
        falling = np.flatnonzero([one.falls for one in captures])
        if len(falling):
            yield finding(
                "times",
                "error",
                f"The capture times of {name} fall in {name_episodes(falling, total)}, expected rising ones. Were "
                "pictures mixed up, or the camera's clock set?",
                falling,
                [name],
            )
        late = np.array([one.deviation for one in captures])
        interval = np.array([one.interval for one in captures])
        uneven = late > config.jitter * interval + evidence.seconds(1.01)
        uneven[falling] = False
        found = np.flatnonzero(uneven)
        if len(found):
            yield finding(
                "times",
                "warning",
                f"The capture times of {name} are irregular in {name_episodes(found, total)}: one of twenty intervals "
                f"deviates by {1e3 * late[found].max():.0f} ms or more from the median of "
                f"{1e3 * interval[found].max():.0f} ms. Was the camera or its computer overloaded?",
                found,
                [name],
            )


def _irregular(evidence: EpisodeEvidence, name: str, falling: np.ndarray) -> Iterator[Finding]:
    """Jitter, and gaps in otherwise regular times."""
    config, total = evidence.config, len(evidence.summaries)
    times = [summary.times[name] for summary in evidence.summaries]
    jitter = np.array([time.jitter for time in times])
    gaps = np.array([time.gaps for time in times])
    fine = ~np.isin(np.arange(total), falling)
    uneven = np.flatnonzero((jitter > config.jitter) & fine)
    if len(uneven):
        yield finding(
            "times",
            "warning",
            f"{name} is irregular in {name_episodes(uneven, total)}: one of twenty steps deviates by "
            f"{100 * jitter[uneven].max():.0f} % or more from the median, limit {100 * config.jitter:g} %. Was the "
            "recorder overloaded? Resample by these times.",
            uneven,
            [name],
        )
    dropped = np.flatnonzero((gaps > 0) & (jitter <= config.jitter) & fine)
    if len(dropped):
        yield finding(
            "times",
            "warning",
            f"{name} has {gaps[dropped].sum()} gaps above 1.5 steps in {name_episodes(dropped, total)}, expected none. "
            "Were samples dropped?",
            dropped,
            [name],
        )
