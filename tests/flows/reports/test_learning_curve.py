"""Errors of the success signal of a session, by hand-made episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.reports.learning_curve import read_history, success_errors
from flows.reports.results import describe, headline_metrics
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec

SCHEMA = EpisodeSchema(
    name="walk", streams={"policy": StreamSpec(rate_hz=10.0, fields={"x": FieldSpec(shape=())})}
)


def judged(said: bool, true: bool, version: int | None = None, **more: Any) -> dict[str, Any]:
    about = {"success": said, "true_success": true, "interventions": 0.0, "discard_reason": None}
    if version is not None:
        about |= {"classifier_version": version, "classifier_digest": "abc"[version]}
    return about | more


def errors(folder: Path, episodes: list[dict[str, Any]]) -> dict[str, Any]:
    with EpisodeStore.create(folder / "store.zarr", SCHEMA) as store:
        for about in episodes:
            store.append({"policy": {"x": np.zeros(4)}}, about)
    return success_errors(read_history(folder / "store.zarr"))


def test_errors_are_counted_with_their_shares(tmp_path: Path) -> None:
    solved, false, missed, failed = (True, True), (True, False), (False, True), (False, False)
    found = errors(tmp_path, [judged(*one) for one in (solved, solved, false, missed, failed)])
    assert (found["false_successes"], found["missed_successes"]) == (1, 1)
    false_share, missed_share = found["false_success_share"], found["missed_success_share"]
    assert (false_share["k"], false_share["n"]) == (1, 5)
    assert (missed_share["k"], missed_share["n"]) == (1, 3), "of the three that were solved"
    # Wilson's interval of 1 of 5.
    assert (false_share["low"], false_share["high"]) == pytest.approx((0.0362, 0.6245), abs=1e-3)
    assert "classifiers" not in found, "the task judged"


def test_errors_are_counted_by_the_version_that_judged(tmp_path: Path) -> None:
    found = errors(
        tmp_path,
        [
            judged(True, False, 0),
            judged(True, True, 0),
            judged(True, False, 2, discard_reason="fault"),
            judged(False, True, 2),
        ],
    )
    counts = ("episodes", "false_successes", "missed_successes")
    rows = [
        (one["version"], one["digest"], *(one[k] for k in counts)) for one in found["classifiers"]
    ]
    assert rows == [(0, "a", 2, 1, 0), (2, "c", 1, 0, 1)]


def test_a_session_without_a_solved_episode_has_no_share_of_missed_ones(tmp_path: Path) -> None:
    share = errors(tmp_path, [judged(False, False)])["missed_success_share"]
    assert share == {"k": 0, "n": 0, "low": 0.0, "high": 1.0}


def test_the_summary_states_counts_shares_and_versions(tmp_path: Path) -> None:
    found = errors(tmp_path, [judged(True, False, 0), *(judged(True, True, 1) for _ in range(3))])
    metrics = {
        "recent_success": {"k": 3, "n": 4, "low": 0.0, "high": 1.0},
        "recent_corrected": 0.25,
        **found,
    }
    assert describe("correct", metrics) == (
        "success 3 of the last 4 episodes, 0.25 corrected; false successes 1 (25.0 %) of 4 episodes, "
        "missed 0 (0.0 %) of 3 solved ones, 2 versions of the classifier"
    )


def test_the_sessions_headline_has_both_shares() -> None:
    from flows.reports.results import StageResult

    shares = {"false_success_share": {"k": 1, "n": 4}, "missed_success_share": {"k": 0, "n": 3}}
    row = StageResult("corrected", "correct", "computed", 1.0, False, 1.0, "", "", shares)
    assert headline_metrics([row]) == {f"corrected.{name}": rate for name, rate in shares.items()}
