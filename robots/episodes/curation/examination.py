"""Defines the options and the result of an examination of an episode store."""

from __future__ import annotations

from dataclasses import field
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from robots.config import Count, Finite, Positive, PositiveShare, Seconds, Share, Whole, config
from robots.franka import RobotName

Severity = Literal["warning", "error"]
"""`error`: the data are wrong. `warning`: they may be meant so, but training often suffers."""
CheckName = Literal[
    "duplicates",
    "lengths",
    "stuck_camera",
    "blank_pictures",
    "dead_entries",
    "frozen_observation",
    "frozen_action",
    "lag",
    "idle",
    "units",
    "swapped_entries",
    "jumps",
    "outliers",
    "angle_wraps",
    "times",
    "quaternions",
    "joint_limits",
    "gripper",
    "labels",
    "rewards",
    "padding",
    "equal_fields",
    "saturation",
]
"""Name of a check."""
Ratio = Annotated[float, Field(ge=1.0, le=1e6)]
"""How many times larger one quantity is than another."""
Radius = Annotated[float, Field(gt=0.0, le=1e6)]
"""A largest amount [unit of the field]."""


@config
class ExamineConfig:
    """Limits of the checks. A motion is stated as a share of the range that the entry covers in
    half of the episodes."""

    skip: tuple[CheckName, ...] = ()
    """Checks that are not run."""
    robot: RobotName | None = None
    """Robot whose joint limits are checked; None takes the one that the store names, if it is one
    of Handoff's."""
    probe_episodes: Count = 16
    """Number of episodes, evenly spaced, from which the ranges of the entries and the observation
    of every action are found before the pass over all of them."""
    entries_per_field: Count = 64
    """Largest number of entries of a field that are examined, evenly spaced; pictures are thinned
    to a grid instead."""
    picture_points: Annotated[int, Field(ge=4, le=256)] = 32
    """Largest number of rows, and of columns, of the grid to which a picture is thinned."""
    duplicate_distance: PositiveShare = 0.005
    """Largest difference of two episodes that count as nearly equal, at any of 16 moments."""
    length_ratio: Ratio = 4.0
    """Smallest ratio of an episode's length to the median length, or its inverse, that is
    reported."""
    shortest_steps: Count = 10
    """Number of steps below which an episode is reported in any case."""
    frozen_seconds: Seconds = 1.0
    """Shortest time without any change of a measured entry, or of a picture, that is reported while
    the arm moves [s]."""
    frozen_steps: Count = 5
    """Smallest number of steps without any change that is reported, whatever the rate is."""
    frozen_motion: PositiveShare = 0.1
    """Motion of the arm from which a value that does not change is reported."""
    usual_repeats: Share = 0.1
    """Share of repeated values, in half of the episodes, above which repetition is the nature of an
    entry or of a camera, as for the pose of an object that nobody touches."""
    same_picture: Positive = 0.1
    """Largest mean difference of two pictures that count as the same [grey levels of 255]."""
    black_level: Positive = 4.0
    """Mean of a picture below which it is black [grey levels of 255]."""
    flat_contrast: Positive = 1.5
    """Standard deviation over a picture below which it shows nothing [grey levels of 255]."""
    bright_share: PositiveShare = 0.98
    """Share of the points at 250 of 255 or above from which a picture is overexposed."""
    lag_window: Count = 20
    """Largest lag between action and observation that is sought [steps]."""
    lag_steps: Count = 3
    """Smallest lag of the observation behind the action that is reported [steps]."""
    lag_seconds: Seconds = 0.1
    """Smallest lag of the observation behind the action that is reported, which holds for high
    rates [s]."""
    lag_difference: Count = 2
    """Smallest difference of an episode's lag from the median lag that is reported [steps]."""
    lag_correlation: PositiveShare = 0.4
    """Correlation of action and observation below which no lag is stated."""
    idle_seconds: Seconds = 2.0
    """Shortest rest at the beginning or end of an episode that is reported [s]."""
    idle_motion: PositiveShare = 0.03
    """Motion from which the arm counts as moving."""
    unit_tolerance: Ratio = 1.8
    """Largest factor between a ratio of two ranges and 57.3 (degrees for radians) or 1000
    (millimetres for metres) that still names the unit."""
    swap_ratio: Ratio = 3.0
    """Smallest ratio of the mismatch of an action with its own observation to that with another
    entry's from which both entries count as swapped."""
    swap_mismatch: PositiveShare = 0.15
    """Mismatch of an action with its own observation below which entries are not swapped."""
    jump_ratio: Ratio = 8.0
    """Smallest ratio of a change from one step to the next to the usual fast change (99th
    percentile) that is reported."""
    jump_range: PositiveShare = 0.15
    """Change from one step to the next below which no jump is reported."""
    outlier_ranges: Positive = 3.0
    """Distance of a value from the usual ones that is reported, in usual ranges of the entry."""
    unusual_share: PositiveShare = 0.3
    """Largest share of the episodes with a jump, above which jumps are the nature of an entry."""
    jitter: PositiveShare = 0.2
    """Deviation of the time between steps from its median, in one of twenty steps, from which the
    times are irregular."""
    rate_error: PositiveShare = 0.05
    """Deviation of the rate of the times from the rate of the store that is reported."""
    quaternion_error: PositiveShare = 0.01
    """Largest deviation of a quaternion's length from 1."""
    limit_margin: Radius = 0.02
    """Distance beyond a joint's limit that is tolerated, because sensors have noise [rad]."""
    gripper_motion: PositiveShare = 0.1
    """Motion of the gripper below which it counts as never moved."""
    saturated_share: PositiveShare = 0.15
    """Share of the steps in which an action is exactly at its smallest or largest value from which
    it is saturated."""
    padding_steps: Count = 3
    """Smallest number of rows at the end of an episode that repeat the row before them, which is
    reported."""
    success_share: Share = 0.1
    """Share of successful episodes below which the labels are reported."""
    instruction_ratio: Ratio = 10.0
    """Smallest ratio of the episodes of the most and the least frequent instruction that is
    reported."""


@config
class Finding:
    """One fault, or one property that often is a fault."""

    check: CheckName
    """Check that found it."""
    severity: Severity
    """How certain it is that the data are wrong."""
    episodes: tuple[Whole, ...]
    """Numbers of the episodes concerned, in ascending order; empty if it concerns the set."""
    fields: tuple[str, ...]
    """Fields concerned."""
    sentence: str
    """Value, limit and likely cause."""


@config
class EntryRange:
    """Values of one entry of a field in all episodes."""

    entry: str
    """Name of the field and of its entry."""
    unit: str
    """Unit of the values."""
    low: Finite
    """Smallest value."""
    high: Finite
    """Largest value."""
    usual_low: Finite
    """Median over the episodes of the smallest value."""
    usual_high: Finite
    """Median over the episodes of the largest value."""


@config
class EpisodeLag:
    """Lag of the observation behind the action in one episode."""

    episode: Whole
    """Number of the episode."""
    action: str
    """Field of the action."""
    observation: str
    """Field of the observation."""
    steps: Annotated[int, Field(ge=-10_000, le=10_000)]
    """Lag at which both agree best [steps]; negative if the observation comes first."""


@config
class StoreExamination:
    """Findings of all checks over a store, with the figures that its page shows."""

    name: str
    """Name of the task."""
    stream: str
    """Stream that was examined."""
    rate_hz: Positive
    """Steps per second."""
    episodes: Whole
    """Number of episodes."""
    steps: Whole
    """Number of steps."""
    findings: tuple[Finding, ...]
    """Errors first, then in the order of the checks."""
    notes: tuple[str, ...] = ()
    """What could not be checked, and why."""
    lengths: tuple[Whole, ...] = ()
    """Steps of every episode."""
    ranges: tuple[EntryRange, ...] = ()
    """Values of the entries."""
    lags: tuple[EpisodeLag, ...] = ()
    """Lags of the episodes."""
    config: ExamineConfig = field(default_factory=ExamineConfig)
    """Limits of the checks."""


def worst(examination: StoreExamination) -> Severity | None:
    """The highest severity of the findings; None if there are none."""
    severities = {finding.severity for finding in examination.findings}
    if "error" in severities:
        return "error"
    return "warning" if severities else None


def count_findings(examination: StoreExamination) -> dict[Severity, int]:
    """Number of findings by severity."""
    counts: dict[Severity, int] = {"error": 0, "warning": 0}
    for finding in examination.findings:
        counts[finding.severity] += 1
    return counts


def faulty_episodes(examination: StoreExamination) -> dict[int, tuple[str, ...]]:
    """Names of the checks that found an error in an episode, by the number of the episode."""
    faults: dict[int, list[str]] = {}
    for finding in examination.findings:
        for episode in finding.episodes if finding.severity == "error" else ():
            faults.setdefault(episode, []).append(finding.check)
    return {episode: tuple(dict.fromkeys(faults[episode])) for episode in sorted(faults)}


def as_number(value: float | np.floating) -> float:
    """A finite number for a result; values that are too large for one are cut."""
    return float(np.clip(np.nan_to_num(float(value)), -1e12, 1e12))
