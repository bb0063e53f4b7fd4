"""Examines an episode store for faults of recording, in one pass over its episodes.

The ranges of the entries, and the observation that follows each action, are found first from a few
episodes without their pictures. Then every episode is read once and summarised as numbers, and the
checks judge these summaries: limits are relative to the other episodes of the set, so that clean
data of any task have no findings. Memory holds one episode without its pictures, 32 MiB of
pictures, and the summaries.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from robots.episodes.curation.checks.cameras import check_blank_pictures, check_stuck_camera
from robots.episodes.curation.checks.control import (
    check_lag,
    check_swapped_entries,
    check_units,
    episode_lags,
)
from robots.episodes.curation.checks.episodes import (
    check_duplicates,
    check_equal_fields,
    check_idle,
    check_lengths,
    check_padding,
    check_times,
)
from robots.episodes.curation.checks.evidence import EpisodeEvidence
from robots.episodes.curation.checks.joints import (
    check_gripper,
    check_joint_limits,
    check_quaternions,
)
from robots.episodes.curation.checks.labels import check_labels, check_rewards
from robots.episodes.curation.checks.layout import StreamLayout, stream_layout
from robots.episodes.curation.checks.pictures import summarise_pictures
from robots.episodes.curation.checks.signals import (
    check_angle_wraps,
    check_dead_entries,
    check_frozen_action,
    check_frozen_observation,
    check_jumps,
    check_outliers,
    check_saturation,
)
from robots.episodes.curation.checks.summary import summarise
from robots.episodes.curation.checks.usual_values import stream_profile
from robots.episodes.curation.examination import (
    CheckName,
    EntryRange,
    ExamineConfig,
    Finding,
    StoreExamination,
    as_number,
)
from robots.episodes.curation.readable import ReadableEpisodes
from robots.errors import HandoffError
from robots.interfaces import Progress

CHECKS: dict[CheckName, Callable[[EpisodeEvidence], Iterator[Finding]]] = {
    "times": check_times,
    "lengths": check_lengths,
    "duplicates": check_duplicates,
    "padding": check_padding,
    "idle": check_idle,
    "units": check_units,
    "joint_limits": check_joint_limits,
    "swapped_entries": check_swapped_entries,
    "equal_fields": check_equal_fields,
    "dead_entries": check_dead_entries,
    "frozen_observation": check_frozen_observation,
    "frozen_action": check_frozen_action,
    "stuck_camera": check_stuck_camera,
    "blank_pictures": check_blank_pictures,
    "jumps": check_jumps,
    "outliers": check_outliers,
    "lag": check_lag,
    "quaternions": check_quaternions,
    "angle_wraps": check_angle_wraps,
    "saturation": check_saturation,
    "gripper": check_gripper,
    "labels": check_labels,
    "rewards": check_rewards,
}
"""Checks by name, in the order of their findings."""


def examine(store: ReadableEpisodes, config: ExamineConfig, progress: Progress) -> StoreExamination:
    """Looks at every episode of the stream `policy`, or of the first stream, of a store.

    Args:
        store: the episodes.
        config: limits of the checks.
        progress: called with the number of episodes that were read.

    Raises:
        HandoffError: the store has no episodes or damaged files, or `config` names an unknown
            robot.
    """
    if store.num_episodes == 0:
        raise HandoffError(
            f"{store.path}: has no episodes to examine. Was the recording committed?"
        )
    layout = stream_layout(store.schema, config.entries_per_field)
    profile = stream_profile(layout, list(_probe(store, layout, config)))
    evidence = EpisodeEvidence(layout, profile, config, store.schema.robot)
    lengths = np.diff(store.ends(layout.stream), prepend=0)
    for episode, steps in enumerate(lengths.tolist()):
        _add_episode(evidence, store, episode, steps)
        progress(episode + 1, store.num_episodes, "episodes")
    findings = [
        found
        for name, check in CHECKS.items()
        if name not in config.skip
        for found in check(evidence)
    ]
    return StoreExamination(
        name=store.schema.name,
        stream=layout.stream,
        rate_hz=layout.rate_hz,
        episodes=store.num_episodes,
        steps=int(evidence.steps.sum()),
        findings=tuple(sorted(findings, key=lambda found: found.severity != "error")),
        notes=tuple(dict.fromkeys(evidence.notes)),
        lengths=tuple(evidence.steps.tolist()),
        ranges=tuple(_ranges(evidence)),
        lags=tuple(episode_lags(evidence)),
        config=config,
    )


def _probe(
    store: ReadableEpisodes, layout: StreamLayout, config: ExamineConfig
) -> Iterator[np.ndarray]:
    """Rows of some episodes, evenly spaced."""
    number = min(config.probe_episodes, store.num_episodes)
    names = [field.name for field in layout.states]
    for episode in np.unique(np.linspace(0, store.num_episodes - 1, number).round().astype(int)):
        yield layout.rows(store.read(int(episode), layout.stream, names))


def _add_episode(
    evidence: EpisodeEvidence, store: ReadableEpisodes, episode: int, steps: int
) -> None:
    """Reads one episode of `steps` steps and adds its summary."""
    layout = evidence.layout
    names = [name for name in layout.specs if name not in layout.pictures]
    arrays = store.read(episode, layout.stream, names)
    pictures = {
        name: summarise_pictures(store, episode, layout.stream, name, steps, evidence.config)
        for name in layout.pictures
    }
    rows = layout.rows(arrays) if arrays else np.zeros((steps, 0))
    summary = summarise(
        layout, evidence.profile, evidence.config, arrays, pictures, store.metadata(episode), rows
    )
    evidence.add(summary, rows)


def _ranges(evidence: EpisodeEvidence) -> Iterator[EntryRange]:
    low, high = evidence.entry("low").min(axis=0), evidence.entry("high").max(axis=0)
    usual_low, usual_high = evidence.usual_range
    for number, (label, unit) in enumerate(
        zip(evidence.layout.labels, evidence.layout.units, strict=True)
    ):
        yield EntryRange(
            entry=label,
            unit=unit,
            low=as_number(low[number]),
            high=as_number(high[number]),
            usual_low=as_number(usual_low[number]),
            usual_high=as_number(usual_high[number]),
        )
