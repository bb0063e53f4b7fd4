"""Summarises one episode as numbers, whose size does not depend on its length."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from robots.episodes.curation.checks.captures import CaptureSummary, summarise_captures
from robots.episodes.curation.checks.layout import StreamLayout
from robots.episodes.curation.checks.pairs import PairSummary, summarise_pair
from robots.episodes.curation.checks.pictures import PictureSummary, longest_runs
from robots.episodes.curation.checks.usual_values import StreamProfile
from robots.episodes.curation.examination import ExamineConfig
from robots.episodes.curation.weights import episode_weight
from robots.errors import HandoffError
from robots.language.text import INSTRUCTION, decode

MOMENTS = 16
"""Number of moments at which nearly equal episodes are compared."""
_MOST_COMPARED = 48
"""Largest number of entries by which episodes are compared."""
_TURN = 2.0 * np.pi


@dataclass(frozen=True)
class FrozenRun:
    """Rows in which an entry does not change while something else moves."""

    entry: int
    start: int
    stop: int
    """First row after the run."""
    motion: float
    """Motion of the paired entry, or of the entry that moves most [shares of its range]."""


@dataclass(frozen=True)
class TimeSummary:
    """Differences of successive times of one episode [s, or the unit of the field]."""

    smallest: float
    median: float
    jitter: float
    """95th percentile of the deviation from the median, as a share of it."""
    gaps: int
    """Differences above 1.5 times the median."""
    first: float
    last: float


@dataclass(frozen=True)
class EntrySummary:
    """Figures of the D entries in one episode, each `(D,)`."""

    low: np.ndarray
    high: np.ndarray
    mean: np.ndarray
    std: np.ndarray
    at_low: np.ndarray
    """Number of steps at the smallest value."""
    at_high: np.ndarray
    """Number of steps at the largest value."""
    fast: np.ndarray
    """99th percentile of the change from step to step; angles take the short way."""
    jump: np.ndarray
    """Largest isolated change from step to step."""
    jump_step: np.ndarray
    """Row before that change."""
    wraps: np.ndarray
    """Number of changes by a whole turn."""
    repeats: np.ndarray
    """Share of the changes that are exactly 0, outside the longest run of them."""
    longest: np.ndarray
    """Rows of the longest run without a change."""


@dataclass(frozen=True)
class EpisodeSummary:
    """One episode of T steps."""

    steps: int
    entries: EntrySummary
    frozen: tuple[FrozenRun, ...]
    frozen_actions: dict[str, int]
    """Rows of the longest run in which no entry of an action changes while the arm moves."""
    quaternion_error: np.ndarray
    """(Q,) largest deviation of the quaternions' lengths from 1."""
    quaternion_flips: np.ndarray
    """(Q,) changes of sign of the quaternions."""
    head: int
    """Rows before the first motion."""
    tail: int
    """Rows after the last motion."""
    padded: int
    """Rows at the end that equal the row before them in every field."""
    still: float
    """Share of the other rows that equal the row before them in every field."""
    signature: np.ndarray
    """(16, at most 48) values at 16 moments, by which episodes are compared."""
    digest: bytes
    """Digest of all numbers and thinned pictures."""
    pairs: tuple[PairSummary, ...]
    times: dict[str, TimeSummary]
    captures: dict[str, CaptureSummary]
    miscounted: dict[str, int]
    """First row at which a counter does not rise by 1, by field."""
    rewards: dict[str, tuple[float, float]]
    """Smallest and largest reward by field."""
    pictures: dict[str, PictureSummary]
    picture_motion: dict[str, float]
    """Motion of the arm during the longest run of the same picture [shares of its range]."""
    instruction: str | None
    """Instruction; empty if it is missing, None if there is no place for it."""
    success: bool | None
    weight: float | None
    """Weight of the episode; None if the one that is stated is no weight."""


def summarise(
    layout: StreamLayout,
    profile: StreamProfile,
    config: ExamineConfig,
    arrays: Mapping[str, np.ndarray],
    pictures: Mapping[str, tuple[PictureSummary, np.ndarray]],
    metadata: Mapping[str, Any],
    rows: np.ndarray,
) -> EpisodeSummary:
    """Summarises one episode.

    Args:
        layout: fields of the stream.
        profile: usual figures of the entries.
        config: limits of the checks.
        arrays: `(T, *field shape)` of every field but the pictures.
        pictures: summaries of the pictures, and whether each is the same as the one before.
        metadata: metadata of the episode.
        rows: `(T, D)` its entries.
    """
    change = _changes(layout, rows)
    padded, still = _padding(rows, [same for _, same in pictures.values()])
    kept = rows[: len(rows) - padded]
    summaries = {name: summary for name, (summary, _) in pictures.items()}
    moving = profile.scale > 0.0
    success = metadata.get("success")
    return EpisodeSummary(
        steps=len(rows),
        entries=_entries(layout, rows, change),
        frozen=tuple(_frozen(layout, profile, config, kept)),
        frozen_actions=_frozen_actions(layout, profile, kept),
        quaternion_error=_quaternion_errors(layout, rows),
        quaternion_flips=_quaternion_flips(layout, rows),
        head=_rest(rows, profile, config),
        tail=_rest(rows[::-1], profile, config),
        padded=padded,
        still=still,
        signature=_signature(rows[:, moving] / profile.scale[moving]),
        digest=_digest(rows, summaries),
        pairs=tuple(
            summarise_pair(pairing, rows, change, layout.rate_hz, config.lag_window)
            for pairing in profile.pairings
        ),
        times={name: _times(arrays[name], unit) for name, unit in layout.times.items()},
        captures={name: summarise_captures(arrays[t]) for name, t in layout.captures.items()},
        miscounted=_miscounted(layout, arrays),
        rewards={
            name: (float(arrays[name].min()), float(arrays[name].max())) for name in layout.rewards
        },
        pictures=summaries,
        picture_motion={
            name: float(
                _motion(rows[one.start : one.start + one.longest], profile).max(initial=0.0)
            )
            for name, one in summaries.items()
        },
        instruction=_instruction(layout, arrays, metadata),
        success=success if isinstance(success, bool) else None,
        weight=episode_weight(metadata),
    )


def _entries(layout: StreamLayout, rows: np.ndarray, change: np.ndarray) -> EntrySummary:
    """Figures of the entries of one episode, from its rows and their changes."""
    jump, jump_step = _isolated(np.abs(change))
    longest, repeats = _repetition(rows)
    return EntrySummary(
        low=rows.min(axis=0),
        high=rows.max(axis=0),
        mean=rows.mean(axis=0),
        std=rows.std(axis=0),
        at_low=(rows == rows.min(axis=0)).sum(axis=0),
        at_high=(rows == rows.max(axis=0)).sum(axis=0),
        fast=_percentile(np.abs(change), 99.0),
        jump=jump,
        jump_step=jump_step,
        wraps=_wraps(layout, rows),
        repeats=repeats,
        longest=longest,
    )


def _repetition(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(D,) rows of the longest run without a change, and (D,) share of the other rows that repeat
    the row before them."""
    same = rows[1:] == rows[:-1]
    longest, _ = longest_runs(same)
    return longest, (same.sum(axis=0) - (longest - 1)) / np.maximum(len(rows) - longest, 1)


def _padding(rows: np.ndarray, pictures: Sequence[np.ndarray]) -> tuple[int, float]:
    """Rows at the end that equal the row before them, with their pictures, and the share of the
    other rows that do."""
    columns = [*(rows[1:] == rows[:-1]).T, *pictures]
    if not columns or len(rows) < 2:
        return 0, 0.0
    still = np.logical_and.reduce(columns)
    changes = np.flatnonzero(~still)
    padded = len(still) if len(changes) == 0 else len(still) - 1 - int(changes[-1])
    others = still[: len(still) - padded]
    return padded, float(others.mean()) if len(others) else 0.0


def _wraps(layout: StreamLayout, rows: np.ndarray) -> np.ndarray:
    """(D,) changes of angles by a whole turn from step to step."""
    change = np.abs(np.diff(rows, axis=0))
    whole = (change > 0.9 * _TURN) & (change < 1.02 * _TURN)
    return (whole & is_angle(layout)).sum(axis=0)


def is_angle(layout: StreamLayout) -> np.ndarray:
    """(D,) bool: entries in radians."""
    return np.array([unit == "rad" for unit in layout.units], bool)


def _changes(layout: StreamLayout, rows: np.ndarray) -> np.ndarray:
    """(T - 1, D) changes from step to step; those of angles go the short way round."""
    change = np.diff(rows, axis=0)
    turns = np.round(change / _TURN) * is_angle(layout)
    # Larger steps than a few turns are no wraps of an angle, but another unit.
    return change - _TURN * np.where(np.abs(turns) == 1.0, turns, 0.0)


def _percentile(values: np.ndarray, percent: float) -> np.ndarray:
    return np.percentile(values, percent, axis=0) if len(values) else np.zeros(values.shape[1])


def _isolated(change: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(D,) largest change that is at least four times the changes two steps before and after it,
    and the row before it: a teleport or a spike, no fast motion."""
    size = change.shape[1]
    if len(change) < 6:
        return np.zeros(size), np.zeros(size, int)
    padded = np.pad(change, ((2, 2), (0, 0)), mode="edge")
    around = np.maximum(padded[:-4], padded[4:])
    isolated = np.where(change >= 4.0 * around, change, 0.0)
    where = isolated.argmax(axis=0)
    return np.take_along_axis(isolated, where[None], axis=0)[0], where


def _motion(rows: np.ndarray, profile: StreamProfile) -> np.ndarray:
    """(D,) range of the rows as a share of the usual range; 0 if it is mere noise."""
    scale = np.where(profile.scale > 0.0, profile.scale, np.inf)
    motion = (rows.max(axis=0) - rows.min(axis=0)) / scale
    return np.where(motion > 1.5 * profile.motion_floor, motion, 0.0)


def _frozen(
    layout: StreamLayout,
    profile: StreamProfile,
    config: ExamineConfig,
    rows: np.ndarray,
) -> list[FrozenRun]:
    """Long runs of the observed entries without a change, during which the arm moves."""
    longest, last = longest_runs(rows[1:] == rows[:-1])
    shortest = max(config.frozen_steps, round(config.frozen_seconds * layout.rate_hz))
    runs = []
    windows: dict[tuple[int, int], np.ndarray] = {}
    candidates = (longest > shortest) & ~layout.is_action & ~profile.discrete
    for entry in np.flatnonzero(candidates & (profile.scale > 0.0)):
        stop = int(last[entry]) + 1
        window = (stop - int(longest[entry]), stop)
        if window not in windows:
            windows[window] = _motion(rows[slice(*window)], profile)
        partner = profile.partner(int(entry))
        moved = windows[window][partner] if partner is not None else windows[window].max()
        if moved >= config.frozen_motion:
            runs.append(FrozenRun(int(entry), *window, float(moved)))
    return runs


def _frozen_actions(
    layout: StreamLayout, profile: StreamProfile, rows: np.ndarray
) -> dict[str, int]:
    """Rows of the longest run in which no entry of an action changes while an observation moves by
    a quarter of its range."""
    runs = {}
    same = rows[1:] == rows[:-1]
    for field in (field for field in layout.states if field.role == "action"):
        longest, last = longest_runs(same[:, field.entries].all(axis=1, keepdims=True))
        window = slice(int(last[0]) + 1 - int(longest[0]), int(last[0]) + 1)
        motion = np.where(layout.is_action, 0.0, _motion(rows[window], profile))
        runs[field.name] = int(longest[0]) if motion.max(initial=0.0) >= 0.25 else 0
    return runs


def _quaternion_errors(layout: StreamLayout, rows: np.ndarray) -> np.ndarray:
    norms = [np.linalg.norm(rows[:, i : i + 4], axis=1) for i in layout.quaternions]
    return np.array([np.abs(norm - 1.0).max() for norm in norms])


def _quaternion_flips(layout: StreamLayout, rows: np.ndarray) -> np.ndarray:
    flips = []
    for first in layout.quaternions:
        quaternion = rows[:, first : first + 4]
        product = (quaternion[1:] * quaternion[:-1]).sum(axis=1)
        size = np.linalg.norm(quaternion, axis=1)
        # A turn of the hand within one step would not reverse the whole quaternion.
        flips.append(int((product < -0.5 * size[1:] * size[:-1]).sum()))
    return np.array(flips, int)


def _rest(rows: np.ndarray, profile: StreamProfile, config: ExamineConfig) -> int:
    """Rows before the first one that has moved away from the first rows."""
    moving = profile.scale > 0.0
    if not moving.any():
        return len(rows)
    limit = np.maximum(config.idle_motion, profile.motion_floor)[moving]
    away = np.abs(rows[:, moving] - np.median(rows[:3, moving], axis=0)) / profile.scale[moving]
    moved = np.flatnonzero((away > limit).any(axis=1))
    return int(moved[0]) if len(moved) else len(rows)


def _signature(shares: np.ndarray) -> np.ndarray:
    """(16, entries) values at 16 moments of the episode, interpolated."""
    taken = np.unique(
        np.linspace(0, max(shares.shape[1] - 1, 0), _MOST_COMPARED).round().astype(int)
    )
    moments = np.linspace(0.0, len(shares) - 1.0, MOMENTS)
    before = np.floor(moments).astype(int)
    after = np.minimum(before + 1, len(shares) - 1)
    share = (moments - before)[:, None]
    kept = shares[:, taken] if shares.shape[1] else shares
    return ((1.0 - share) * kept[before] + share * kept[after]).astype(np.float32)


def _digest(rows: np.ndarray, pictures: Mapping[str, PictureSummary]) -> bytes:
    digest = hashlib.blake2b(np.ascontiguousarray(rows).tobytes(), digest_size=16)
    for name in sorted(pictures):
        digest.update(pictures[name].digest)
    return digest.digest()


def _times(values: np.ndarray, unit: float) -> TimeSummary:
    times = values.reshape(-1).astype(np.float64) * (unit or 1.0)
    if len(times) < 2:
        return TimeSummary(0.0, 0.0, 0.0, 0, float(times[0]), float(times[-1]))
    difference = np.diff(times)
    median = float(np.median(difference))
    deviation = np.abs(difference - median) / median if median > 0.0 else np.zeros(1)
    return TimeSummary(
        smallest=float(difference.min()),
        median=median,
        jitter=float(np.percentile(deviation, 95.0)),
        gaps=int((difference > 1.5 * median).sum()),
        first=float(times[0]),
        last=float(times[-1]),
    )


def _miscounted(layout: StreamLayout, arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    wrong = {}
    for name in layout.counters:
        steps = np.diff(arrays[name].reshape(-1).astype(np.int64))
        if (steps != 1).any():
            wrong[name] = int(np.argmax(steps != 1)) + 1
    return wrong


def _instruction(
    layout: StreamLayout, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, Any]
) -> str | None:
    """Instruction of the episode, from its metadata or the first row of a text field; empty if it
    is missing there, None if there is no place for it."""
    if INSTRUCTION in metadata:
        words = metadata[INSTRUCTION]
        return words.strip() if isinstance(words, str) else ""
    for name in layout.texts:
        try:
            return decode(arrays[name][:1].reshape(1, -1))[0].strip()
        except HandoffError:
            return ""
    return None
