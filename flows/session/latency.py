"""Reports how late a session at an arm was: inference, pictures, and the robot's commands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.episodes.metadata.capture_times import capture_time_name

if TYPE_CHECKING:
    from robots.episodes.store import EpisodeStore

FILE = "latency.json"
"""Name of the report in a session's folder."""
STEP_TIME = "step_time"
"""Field with the time of every policy step."""


def session_latency(store: EpisodeStore, first: int, cameras: Sequence[str]) -> dict[str, Any]:
    """The report of the episodes from number `first` on; empty without an episode.

    Args:
        store: store of a supervised session.
        first: number of the session's first episode.
        cameras: names of the fields with pictures.

    Returns:
        `episodes`; `inference_ms` with `number`, `median`, `p95`, `most` and `late`, the number
        that took longer than a policy step; per camera under `picture_age_ms` the age of the
        observed picture at its step, `median`, `p95` and `most`; `commands`, the smallest share of
        the last 100 control commands that arrived in time, at any moment of an episode.
    """
    numbers = range(first, store.num_episodes)
    if not numbers:
        return {}
    stream = store.schema.streams["policy"]
    about = [store.metadata(number) for number in numbers]
    taken = [value for each in about for value in each.get("inference_ms", [])]
    report: dict[str, Any] = {"episodes": len(numbers)}
    if taken:
        late = int((np.array(taken) > 1e3 / stream.rate_hz).sum())
        report["inference_ms"] = {"number": len(taken), **_spread(taken), "late": late}
    ages = {}
    for name in cameras:
        times = capture_time_name(name)
        if times in stream.fields:
            read = [store.read(number, "policy", [STEP_TIME, times]) for number in numbers]
            ages[name] = _spread(
                np.concatenate([1e3 * np.ravel(rows[STEP_TIME] - rows[times]) for rows in read])
            )
    if ages:
        report["picture_age_ms"] = ages
    arrived = [each["min_success_rate"] for each in about if "min_success_rate" in each]
    if arrived:
        report["commands"] = min(arrived)
    return report


def latency_line(report: dict[str, Any]) -> str:
    """The report in a line."""
    parts = []
    if "inference_ms" in report:
        found = report["inference_ms"]
        late = f", {found['late']} longer than a step" if found["late"] else ""
        parts.append(f"inference {_phrase(found)} of {found['number']}{late}")
    for name, found in report.get("picture_age_ms", {}).items():
        parts.append(f"age of {name} {_phrase(found)}")
    if "commands" in report:
        parts.append(f"at worst {100 * report['commands']:.0f} % of the commands arrived")
    return "; ".join(parts)


def _spread(values: Sequence[float] | np.ndarray) -> dict[str, float]:
    """Median, 95 % quantile and largest of some times [ms]."""
    array = np.asarray(values, dtype=np.float64)
    quantiles = (np.quantile(array, share) for share in (0.5, 0.95, 1.0))
    return {
        name: round(float(value), 3)
        for name, value in zip(("median", "p95", "most"), quantiles, strict=True)
    }


def _phrase(found: dict[str, float]) -> str:
    return f"{found['median']:.1f} ms, 95 % within {found['p95']:.1f} ms, {found['most']:.1f} ms at most"
