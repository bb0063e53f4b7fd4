"""How late a session was, from its episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flows.session.latency import latency_line, session_latency
from robots.episodes.metadata.capture_times import capture_time_field
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.spec import FieldSpec

CAMERA = "image_front"


@pytest.fixture
def store(tmp_path: Path) -> EpisodeStore:
    """Three episodes at 20 Hz, whose pictures are 30 ms old, 80 ms in the last step."""
    seconds = FieldSpec(shape=(), dtype="float64", unit="s", role="other")
    fields = {"step_time": seconds, f"{CAMERA}_time": capture_time_field(CAMERA)}
    schema = EpisodeSchema(name="made", streams={"policy": StreamSpec(rate_hz=20.0, fields=fields)})
    store = EpisodeStore.create(tmp_path / "store.zarr", schema)
    steps = np.arange(10) / 20.0
    captured = steps - 0.03
    captured[-1] -= 0.05
    rows = {"policy": {"step_time": steps, f"{CAMERA}_time": captured}}
    for share, slow in ((1.0, 900.0), (0.98, 12.0), (1.0, 60.0)):
        about = {"inference_ms": [10.0] * 9 + [slow], "min_success_rate": share}
        store.append(rows, about)
    return store


def test_the_report_is_that_of_the_sessions_own_episodes(store: EpisodeStore) -> None:
    report = session_latency(store, 1, [CAMERA])
    assert report["episodes"] == 2
    inference = report["inference_ms"]
    assert (inference["number"], inference["median"], inference["most"]) == (20, 10.0, 60.0)
    assert inference["late"] == 1, "one is longer than the 50 ms of a step"
    assert report["picture_age_ms"][CAMERA]["median"] == pytest.approx(30.0)
    assert report["picture_age_ms"][CAMERA]["most"] == pytest.approx(80.0)
    assert report["commands"] == 0.98


def test_a_session_without_episodes_has_none(store: EpisodeStore) -> None:
    assert session_latency(store, 3, [CAMERA]) == {}


def test_the_line_names_every_part(store: EpisodeStore) -> None:
    line = latency_line(session_latency(store, 0, [CAMERA]))
    assert line == (
        "inference 10.0 ms, 95 % within 38.4 ms, 900.0 ms at most of 30, 2 longer than a step; "
        "age of image_front 30.0 ms, 95 % within 80.0 ms, 80.0 ms at most; at worst 98 % of the commands arrived"
    )


def test_a_policy_without_pictures_has_no_ages(store: EpisodeStore) -> None:
    assert "picture_age_ms" not in session_latency(store, 0, [])
