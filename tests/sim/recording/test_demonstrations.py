"""Demonstrations with noise keep the expert's own actions, and go on after success on request."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from robots.episodes.store import EpisodeStore
from sim.make import find_task
from sim.recording.batches import STREAM
from sim.recording.config import ExpertDemonstrationsConfig
from sim.recording.demonstrations import demonstrate

SEEDS = range(5, 8)


def recorded(
    out: Path, config: ExpertDemonstrationsConfig
) -> tuple[EpisodeStore, list[dict[str, np.ndarray]]]:
    demonstrate(find_task("reach"), SEEDS, out, config)
    store = EpisodeStore.open(out)
    fields = sorted(store.schema.streams[STREAM].fields)
    return store, [store.read(i, STREAM, fields) for i in range(store.num_episodes)]


def test_the_experts_action_is_kept_beside_a_noisy_one(tmp_path: Path) -> None:
    config = ExpertDemonstrationsConfig(noise=0.005, settle=4)
    store, episodes = recorded(tmp_path / "noisy", config)
    fields = store.schema.streams[STREAM].fields
    assert fields["action_expert"] == fields["action"]
    for episode in episodes:
        assert np.abs(episode["action"] - episode["action_expert"]).max() > 0.05
    # The first action is the expert's from the same start without noise.
    _, quiet = recorded(tmp_path / "quiet", ExpertDemonstrationsConfig())
    first = {int(store.metadata(i)["seed"]): e for i, e in enumerate(episodes)}
    assert "action_expert" not in quiet[0]
    for seed, episode in zip(SEEDS, quiet, strict=True):
        np.testing.assert_array_equal(episode["action"][0], first[seed]["action_expert"][0])


def test_noise_drawn_up_to_a_bound_keeps_the_experts_action_too(tmp_path: Path) -> None:
    _, episodes = recorded(tmp_path / "store", ExpertDemonstrationsConfig(noise_high=0.005))
    assert "action_expert" in episodes[0]


def test_an_episode_goes_on_after_its_first_success(tmp_path: Path) -> None:
    _, short = recorded(tmp_path / "short", ExpertDemonstrationsConfig())
    _, longer = recorded(tmp_path / "longer", ExpertDemonstrationsConfig(settle=6))
    for one, other in zip(short, longer, strict=True):
        assert one["success"].tolist() == [0] * (len(one["success"]) - 1) + [1]
        assert len(other["success"]) == len(one["success"]) + 6
        assert other["success"][-6:].all()
        np.testing.assert_array_equal(other["action"][: len(one["action"])], one["action"])


def test_the_time_limit_ends_an_episode_that_settles(tmp_path: Path) -> None:
    task = find_task("reach")
    _, episodes = recorded(tmp_path / "store", ExpertDemonstrationsConfig(settle=10_000))
    assert [len(episode["success"]) for episode in episodes] == [task.max_steps] * len(SEEDS)
