"""Computes the learning curve of a HIL training from its recorded episodes: success with its
interval, corrections and cycle time."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.metadata.episode_metadata import CLASSIFIER_DIGEST, CLASSIFIER_VERSION
from robots.episodes.store import EpisodeStore
from robots.proportions import wilson

WINDOW = 20
"""Number of episodes over which rates are averaged."""


class TrainingHistory(NamedTuple):
    """The E episodes of a training, in order, without dropped ones."""

    steps: np.ndarray
    """(E,) total control steps at the end of the episode."""
    length: np.ndarray
    """(E,) length of the episode [control steps]."""
    success: np.ndarray
    """(E,) bool: success by the reward or the person's label."""
    true: np.ndarray
    """(E,) bool: success by the environment."""
    corrected: np.ndarray
    """(E,) share of the steps at which a person intervened."""
    rate_hz: float
    classifier: np.ndarray
    """(E,) version of the success classifier that judged the episode; -1 without one."""
    digests: dict[int, str]
    """Digest of the file of each version."""


class Curve(NamedTuple):
    """Rates over the last `WINDOW` episodes, at the end of each of E episodes."""

    success: np.ndarray
    """(E,) success rate."""
    bounds: np.ndarray
    """(E, 2) its 95 % Wilson interval."""
    corrected: np.ndarray
    """(E,) share of the steps at which a person intervened."""


def read_history(path: Path) -> TrainingHistory:
    """Reads the episodes of the store at `path`."""
    store = EpisodeStore.open(path)
    length = np.diff(store.ends("policy"), prepend=0)
    metadata = [store.metadata(episode) for episode in range(store.num_episodes)]
    valid = np.array([entry["discard_reason"] is None for entry in metadata], dtype=bool)

    def column(name: str, kind: type) -> np.ndarray:
        # Dropped episodes, such as one that a kill cut off, need not state it.
        return np.array(
            [entry[name] for entry in metadata if entry["discard_reason"] is None], kind
        )

    judged = [entry for entry in metadata if entry["discard_reason"] is None]
    return TrainingHistory(
        steps=np.cumsum(length)[valid],
        length=length[valid],
        success=column("success", bool),
        true=column("true_success", bool),
        corrected=column("interventions", float),
        rate_hz=store.schema.stream("policy").rate_hz,
        classifier=np.array([entry.get(CLASSIFIER_VERSION, -1) for entry in judged], int),
        digests={
            entry[CLASSIFIER_VERSION]: entry[CLASSIFIER_DIGEST]
            for entry in judged
            if CLASSIFIER_VERSION in entry
        },
    )


def learning_metrics(history: TrainingHistory, demonstrations: TrainingHistory) -> dict[str, Any]:
    """Returns metrics of the last 20 episodes, and the errors of the success signal."""
    last = slice(-WINDOW, None)
    solved, count = int(history.success[last].sum()), len(history.success[last])
    low, high = wilson(solved, count) if count else (0.0, 1.0)
    return {
        "episodes": len(history.steps),
        "recent_success": {"k": solved, "n": count, "low": low, "high": high},
        "recent_corrected": _mean(_weighted(history, last)),
        "cycle_seconds": _mean(history.length[last][history.success[last]]) / history.rate_hz,
        "demonstrated_seconds": episode_seconds(demonstrations),
        **success_errors(history),
    }


def success_errors(history: TrainingHistory) -> dict[str, Any]:
    """Returns how often the success signal was wrong by the environment's own success.

    A false success is an episode that was judged solved and never was; a missed one was solved at
    some step and not judged so. `false_success_share` is that of all episodes, and
    `missed_success_share` that of the solved ones, each with its 95 % Wilson interval;
    `classifiers` has the same counts by the version that judged, where classifiers judged.
    """
    signalled, actual = history.success, history.true
    false, missed = signalled & ~actual, ~signalled & actual
    errors: dict[str, Any] = {
        "false_successes": int(false.sum()),
        "missed_successes": int(missed.sum()),
        "false_success_share": _share(int(false.sum()), len(signalled)),
        "missed_success_share": _share(int(missed.sum()), int(actual.sum())),
    }
    if history.digests:
        errors["classifiers"] = [
            {
                "version": version,
                "digest": digest,
                "episodes": int((history.classifier == version).sum()),
                "false_successes": int(false[history.classifier == version].sum()),
                "missed_successes": int(missed[history.classifier == version].sum()),
            }
            for version, digest in sorted(history.digests.items())
        ]
    return errors


def _share(k: int, n: int) -> dict[str, float]:
    low, high = wilson(k, n) if n else (0.0, 1.0)
    return {"k": k, "n": n, "low": low, "high": high}


def episode_seconds(history: TrainingHistory) -> float:
    """Returns the mean length of the episodes [s]."""
    return _mean(history.length) / history.rate_hz


def learning_curve(history: TrainingHistory) -> Curve:
    """Returns the rates over the last 20 episodes, at the end of each episode."""
    windows = [slice(max(0, end - WINDOW), end) for end in range(1, len(history.steps) + 1)]
    counts = [(int(history.success[part].sum()), len(history.success[part])) for part in windows]
    return Curve(
        success=np.array([k / n for k, n in counts]),
        bounds=np.array([wilson(k, n) for k, n in counts]).reshape(-1, 2),
        corrected=np.array([_mean(_weighted(history, part)) for part in windows]),
    )


def _weighted(history: TrainingHistory, part: slice) -> np.ndarray:
    """Share of corrected steps, weighted by episode length, as an array of one value; empty without
    episodes."""
    length = history.length[part]
    return (
        np.array([np.average(history.corrected[part], weights=length)])
        if len(length)
        else np.empty(0)
    )


def _mean(values: np.ndarray) -> float:
    """Mean of the values; 0 without values, because JSON has no NaN."""
    return float(np.mean(values)) if len(values) else 0.0
