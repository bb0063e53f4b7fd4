"""Measures how well recorded hints announce takeovers and failures, beside hints at random.

A *stretch* is a time in which the policy has the arm without a break; it ends in success, in a
takeover, or in the failure of its episode. Hints at random are as many and as long, from steps
drawn uniformly among all steps of the policy, several times. They are the negative control: a long
stretch has a hint more often than a short one, whatever the hints are based on, and failures are
long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from robots.proportions import wilson

LEAD_SECONDS = 3.0
"""Time before a takeover within which a hint announces it [s]."""
CONTROLS = 200
"""Number of random placements of the hints."""
_SUCCESS = 0
_TAKEOVER = 1
_FAILURE = 2
_NAMES = {
    _TAKEOVER: "takeovers_announced",
    _FAILURE: "failures_announced",
    _SUCCESS: "false_alarms",
}
_Runs = tuple[np.ndarray, np.ndarray]
"""(H,) first steps and lengths of hints."""


class HintedEpisode(NamedTuple):
    """A recorded episode in which hints were possible."""

    hint: np.ndarray
    """(T,) causes of the hint at each step, 0 without one."""
    intervening: np.ndarray
    """(T,) whether the person acted."""
    success: bool
    """Whether the episode was solved."""


class _Stretches(NamedTuple):
    """All S stretches, whose steps are counted one after another."""

    last: np.ndarray
    """(S,) number of the step behind each."""
    end: np.ndarray
    """(S,) `_SUCCESS`, `_TAKEOVER` or `_FAILURE`."""


def hint_usefulness(
    episodes: Sequence[HintedEpisode], rate_hz: float, seed: int = 0
) -> dict[str, Any]:
    """JSON-ready figures; empty without a step of the policy.

    Args:
        episodes: episodes in which hints were possible, without dropped ones.
        rate_hz: steps per second.
        seed: seed of the control.

    Returns:
        `episodes`, `hints`, `hints_per_100_steps` of the policy, and as `{k, n, low, high}` with
        the 95 % Wilson interval: `precision`, the hints that were shown within 3 s before a
        takeover, or in the last stretch of an episode that failed; `takeovers_announced` and
        `failures_announced` by such hints; `false_alarms`, the stretches up to success with a
        hint. `informedness` is the share of takeovers and failures that were announced, less that
        of the false alarms: 1 for perfect hints, 0 for uninformed ones.
        `random` has the means of these shares for hints at random, and `p_value` the share of
        random placements, with the hints themselves as one, that are as informed or more.
    """
    stretches, runs = _stretches_and_hints(episodes)
    if not len(stretches.last):
        return {}
    steps = int(stretches.last[-1])
    lead = max(1, round(LEAD_SECONDS * rate_hz))
    count = len(runs[0])
    figures: dict[str, Any] = {
        "episodes": len(episodes),
        "hints": count,
        "hints_per_100_steps": 100.0 * count / steps,
    }
    found = _shares(stretches, runs, lead)
    for name, (k, n) in found.items():
        low, high = wilson(k, n) if n else (0.0, 1.0)
        figures[name] = {"k": k, "n": n, "low": low, "high": high}
    rng = np.random.default_rng(seed)
    drawn = [
        _shares(stretches, (rng.integers(0, steps, count), runs[1]), lead) for _ in range(CONTROLS)
    ]
    figures["random"] = {
        name: float(np.mean([each[name][0] for each in drawn])) / max(1, drawn[0][name][1])
        for name in drawn[0]
    }
    figures["informedness"] = _informedness(found)
    controls = np.array([_informedness(each) for each in drawn])
    figures["random"]["informedness"] = float(controls.mean())
    as_informed = int((controls >= figures["informedness"] - 1e-9).sum())
    figures["p_value"] = (1 + as_informed) / (1 + CONTROLS)
    return figures


def _informedness(shares: dict[str, tuple[int, int]]) -> float:
    """Share of the announced among takeovers and failures, less that of the false alarms; where
    there are none, their share is 0."""
    announced = shares["takeovers_announced"][0] + shares["failures_announced"][0]
    cases = shares["takeovers_announced"][1] + shares["failures_announced"][1]
    false, solved = shares["false_alarms"]
    return announced / max(1, cases) - false / max(1, solved)


def _stretches_and_hints(episodes: Sequence[HintedEpisode]) -> tuple[_Stretches, _Runs]:
    """Stretches of all episodes, and the hints that were shown in them."""
    ends: list[int] = []
    lengths: list[int] = []
    shown: list[np.ndarray] = []
    for episode in episodes:
        acting = ~np.asarray(episode.intervening, bool)
        for first, last in _true_runs(acting):
            whole = last == len(acting)
            ends.append((_SUCCESS if episode.success else _FAILURE) if whole else _TAKEOVER)
            lengths.append(last - first)
            shown.append(np.asarray(episode.hint[first:last]) != 0)
    last = np.cumsum(lengths, dtype=np.int64)
    hints = [
        (place - length + first, behind - first)
        for place, length, own in zip(last, lengths, shown, strict=True)
        for first, behind in _true_runs(own)
    ]
    array = np.array(hints, np.int64).reshape(-1, 2)
    return _Stretches(last, np.array(ends, np.int64)), (array[:, 0], array[:, 1])


def _true_runs(flags: np.ndarray) -> list[tuple[int, int]]:
    """First entry, and the one behind the last, of every run of True."""
    edges = np.flatnonzero(np.diff(np.r_[0, flags.astype(np.int8), 0])).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _shares(stretches: _Stretches, runs: _Runs, lead: int) -> dict[str, tuple[int, int]]:
    """Number of hits and of cases by name; see `hint_usefulness`.

    Args:
        stretches: all stretches.
        runs: the hints; one that is longer than the rest of its stretch ends with it.
        lead: steps before a takeover within which a hint announces it.
    """
    first, length = runs
    place = np.searchsorted(stretches.last, first, side="right")
    end = stretches.end[place]
    near = first + length > stretches.last[place] - lead
    right = (end == _FAILURE) | ((end == _TAKEOVER) & near)
    shares = {"precision": (int(right.sum()), len(first))}
    for kind, name in _NAMES.items():
        counted = (end == kind) & (right | (kind == _SUCCESS))
        shares[name] = (len(np.unique(place[counted])), int((stretches.end == kind).sum()))
    return shares
