"""Checks the pictures: stuck cameras, and pictures that show nothing."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from robots.episodes.curation.checks.evidence import EpisodeEvidence, finding, name_episodes
from robots.episodes.curation.examination import Finding

_OFTEN = 0.1
"""Share of blank pictures in an episode from which it is an error."""


def check_stuck_camera(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """The same picture for a while: by its capture time, or by what it shows while the arm
    moves."""
    total, config = len(evidence.summaries), evidence.config
    yield from _old_captures(evidence)
    shortest = max(config.frozen_steps, round(config.frozen_seconds * evidence.layout.rate_hz))
    for name in evidence.layout.pictures:
        pictures = [summary.pictures[name] for summary in evidence.summaries]
        whole = np.array([p.longest for p in pictures]) >= evidence.steps
        moved = np.array([summary.picture_motion[name] for summary in evidence.summaries])
        if np.median([p.repeats for p in pictures]) > config.usual_repeats and not whole.all():
            if name not in evidence.layout.captures:
                evidence.notes.append(
                    f"{name} usually shows a picture more than once, so a stuck camera cannot be told from a slow one."
                )
            continue
        blank = np.array([p.black + p.flat + p.bright for p in pictures]) > evidence.steps / 2
        stuck = np.array([p.longest > shortest for p in pictures]) & (moved >= config.frozen_motion)
        stuck &= ~blank & ~(_held(evidence, name) > config.frozen_seconds)
        found = np.flatnonzero(stuck)
        if len(found) == 0:
            continue
        episode = int(found[np.argmax([pictures[i].longest for i in found])])
        run = pictures[episode]
        yield finding(
            "stuck_camera",
            "error",
            f"{name} shows the same picture for up to {evidence.seconds(run.longest):.1f} s (episode {episode}, from "
            f"step {run.start}) in {name_episodes(found, total)} while the arm moves by "
            f"{100 * moved[episode]:.0f} % of its range, limit {config.frozen_seconds:g} s. Did the camera hang?",
            found,
            [name],
        )


def _held(evidence: EpisodeEvidence, name: str) -> np.ndarray:
    """(E,) longest time for which the capture time of a camera stands still [s]; 0 without one."""
    if name not in evidence.layout.captures:
        return np.zeros(len(evidence.summaries))
    captures = [summary.captures[name] for summary in evidence.summaries]
    return np.array([evidence.seconds(one.longest - 1) for one in captures])


def _old_captures(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Pictures whose capture time stands still for longer than the limit."""
    total, limit = len(evidence.summaries), evidence.config.frozen_seconds
    for name in evidence.layout.captures:
        seconds = _held(evidence, name)
        found = np.flatnonzero(seconds > limit)
        if len(found) == 0:
            continue
        episode = int(found[np.argmax(seconds[found])])
        yield finding(
            "stuck_camera",
            "error",
            f"{name}: a picture is used for up to {seconds[episode]:.1f} s after its capture (episode {episode}, from "
            f"step {evidence.summaries[episode].captures[name].start}) in {name_episodes(found, total)}, limit "
            f"{limit:g} s. Was the camera lost?",
            found,
            [name],
        )


def check_blank_pictures(evidence: EpisodeEvidence) -> Iterator[Finding]:
    """Pictures that are black, of one colour, or overexposed."""
    total, config = len(evidence.summaries), evidence.config
    for name in evidence.layout.pictures:
        for kind, words, cause in (
            ("black", f"black (mean below {config.black_level:g} of 255)", "Was the lens covered?"),
            (
                "flat",
                f"of one colour (contrast below {config.flat_contrast:g})",
                "Did decoding fail?",
            ),
            (
                "bright",
                f"overexposed ({100 * config.bright_share:g} % white)",
                "Was the exposure wrong?",
            ),
        ):
            counts = np.array([getattr(s.pictures[name], kind) for s in evidence.summaries])
            found = np.flatnonzero(counts)
            if len(found) == 0:
                continue
            share = counts[found] / evidence.steps[found]
            yield finding(
                "blank_pictures",
                "error" if share.max() >= _OFTEN else "warning",
                f"{name}: pictures that are {words}, {counts.sum()} in {name_episodes(found, total)}, expected "
                f"none. {'Was the camera connected?' if share.min() == 1.0 else cause}",
                found,
                [name],
            )
