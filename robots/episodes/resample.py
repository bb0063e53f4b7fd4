"""Resamples an episode to another rate, or several streams of samples to one."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise

import numpy as np

from robots.episodes.config import map_hint
from robots.episodes.formats.source import SourceEpisode
from robots.episodes.schema import is_picture
from robots.errors import HandoffError
from robots.spec import FieldSpec

_QUATERNIONS = (("w", "x", "y", "z"), ("x", "y", "z", "w"))


def resampled(
    episode: SourceEpisode,
    fields: Mapping[str, FieldSpec],
    given_hz: float | None,
    wanted_hz: float,
) -> SourceEpisode:
    """The episode at steps of 1 / `wanted_hz`, from the first moment at which all fields have a
    sample to the last.

    Observations of floating numbers are interpolated linearly. Quaternions, pictures, whole numbers
    and actions are those of the newest sample, as a controller holds them. Rewards between two
    steps are added up, and flags of the outcome are set if one of them was.

    The `times` of the result are the capture times of the chosen pictures, from the first step on;
    that of a picture from before it is negative.

    Args:
        episode: samples of all fields together, or with capture times of their own.
        fields: specifications of the fields to keep.
        given_hz: rate of an episode without capture times.
        wanted_hz: rate of the result.

    Raises:
        HandoffError: neither rate nor capture times, times that do not rise, or fields whose times
            do not overlap.
    """
    times = {name: _times(name, episode, given_hz) for name in fields}
    # A sample that is as old as rounding allows still belongs to its step.
    slack = 1e-6
    start = max(time[0] for time in times.values())
    end = min(time[-1] for time in times.values())
    if end < start:
        late = max(times, key=lambda name: times[name][0])
        early = min(times, key=lambda name: times[name][-1])
        raise HandoffError(
            f"'{late}' begins {start - end:.3f} s after '{early}' has ended, so no step has both. Drop one of them."
        )
    steps = start + np.arange(int((end - start) * wanted_hz + slack) + 1) / wanted_hz
    arrays = {
        name: _sampled(episode.arrays[name], times[name], steps, spec, slack)
        for name, spec in fields.items()
    }
    captured = {
        name: times[name][_newest(times[name], steps, slack)] - start
        for name, spec in fields.items()
        if is_picture(spec)
    }
    return SourceEpisode(arrays, episode.metadata, captured)


def _times(name: str, episode: SourceEpisode, given_hz: float | None) -> np.ndarray:
    """Capture times of one field [s]."""
    if name in episode.times:
        times = np.asarray(episode.times[name], np.float64)
        if (np.diff(times) < 0.0).any():
            raise HandoffError(
                f"'{name}' has capture times that fall, at sample {int(np.argmin(np.diff(times))) + 1}."
            )
        return times
    if given_hz is None:
        hint = map_hint("rate_hz", "50", "if it is 50 Hz")
        raise HandoffError(f"the data set does not state its rate. {hint}")
    return np.arange(len(episode.arrays[name])) / given_hz


def _sampled(
    values: np.ndarray, times: np.ndarray, steps: np.ndarray, spec: FieldSpec, slack: float
) -> np.ndarray:
    newest = _newest(times, steps, slack)
    if spec.role == "outcome":
        return _collected(values, newest)
    quaternion = bool(spec.names) and tuple(spec.names[-1]) in _QUATERNIONS
    if spec.role == "action" or values.dtype.kind != "f" or quaternion:
        return values[newest]
    following = np.minimum(newest + 1, len(times) - 1)
    gap = times[following] - times[newest]
    share = np.where(gap > 0.0, (steps - times[newest]) / np.where(gap > 0.0, gap, 1.0), 0.0)
    share = np.clip(share, 0.0, 1.0).reshape(-1, *[1] * (values.ndim - 1))
    between = (1.0 - share) * values[newest] + share * values[following]
    return between.astype(values.dtype)


def _newest(times: np.ndarray, steps: np.ndarray, slack: float) -> np.ndarray:
    """(T,) index of the newest sample at every step."""
    return np.searchsorted(times, steps + slack, side="right") - 1


def _collected(values: np.ndarray, newest: np.ndarray) -> np.ndarray:
    """Sums of numbers, and maxima of flags, from the sample of every step to that of the next; a
    sample that several steps share belongs to the last of them."""
    borders = np.append(newest, len(values))
    borders[0] = 0
    collected = np.zeros((len(newest), *values.shape[1:]), values.dtype)
    for step, (start, stop) in enumerate(pairwise(borders)):
        if stop > start:
            part = values[start:stop]
            collected[step] = part.sum(axis=0) if values.dtype.kind == "f" else part.max(axis=0)
    return collected
