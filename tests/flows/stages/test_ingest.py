"""The demonstrations that ship with Handoff: the fallback, and their provenance."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from flows.stages.data import ingest
from flows.stages.data.ingest import SHIPPED
from robots.episodes.ingest import IngestConfig
from robots.episodes.store import EpisodeStore
from robots.interfaces import no_progress
from sim.tasks.push_t import geometry


@pytest.fixture
def ingested(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[EpisodeStore, dict]:
    """The result of `ingest` on a machine without data and network."""
    monkeypatch.delenv("HANDOFF_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    away = tmp_path / "somewhere" / "else"
    away.mkdir(parents=True)
    monkeypatch.chdir(away)
    out = tmp_path / "out"
    out.mkdir()
    metrics = ingest.run(IngestConfig(download=False), out, no_progress).metrics
    return EpisodeStore.open(out / "store.zarr"), metrics


def test_machine_without_data_falls_back_to_them_and_states_it(
    ingested: tuple[EpisodeStore, dict],
) -> None:
    store, metrics = ingested
    assert metrics["source"] == "shipped"
    assert "Handoff" in metrics["source_line"]
    assert store.num_episodes == 200


def test_every_episode_ends_with_the_goal_nearly_covered(
    ingested: tuple[EpisodeStore, dict],
) -> None:
    store, _ = ingested
    last = [
        geometry.coverage(store.read(i, "policy", ["block_pose"])["block_pose"][-1])
        for i in range(0, 200, 10)
    ]
    assert min(last) > 0.8
    assert all(store.metadata(i)["coverage"] > geometry.SUCCESS_COVERAGE for i in range(200))


def test_keypoints_fit_the_block(ingested: tuple[EpisodeStore, dict]) -> None:
    store, _ = ingested
    steps = store.read(7, "policy", ["keypoints", "block_pose"])
    np.testing.assert_allclose(
        steps["keypoints"], geometry.keypoints(steps["block_pose"]), atol=2e-4
    )


def test_it_is_small_and_its_seeds_are_far_from_those_of_evaluation() -> None:
    provenance = json.loads(SHIPPED.with_name("rollouts.json").read_text())
    assert SHIPPED.stat().st_size <= 2e6
    assert min(provenance["seeds"]) >= 500_000
    assert len(provenance["taught_by"]["policy"]) == 64
