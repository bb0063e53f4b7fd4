"""Rewards of a task by playing recorded actions again, and demonstrations of varying quality."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.make import find_task
from sim.recording.config import ExpertDemonstrationsConfig, TaskRewardConfig
from sim.recording.demonstrations import demonstrate
from sim.recording.task_rewards import TaskRewards

MIXED = ExpertDemonstrationsConfig(noise_high=0.1, keep="all")


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> EpisodeStore:
    path = tmp_path_factory.mktemp("mixed") / "store.zarr"
    demonstrate(find_task("reach"), range(6), path, MIXED)
    return EpisodeStore.open(path)


def test_a_replay_gives_the_recorded_rewards_and_successes(store: EpisodeStore):
    rewards = TaskRewards(TaskRewardConfig(), store, "policy")
    for number in range(store.num_episodes):
        recorded = store.read(number, "policy", ["reward", "success"])
        replayed = rewards(number)
        assert replayed.reward_T == pytest.approx(recorded["reward"], abs=1e-5)
        assert replayed.solved_T.tolist() == (recorded["success"] > 0).tolist()
    rewards.close()


def test_another_start_than_the_recorded_one_is_refused(store: EpisodeStore, tmp_path: Path):
    with EpisodeStore.create(tmp_path / "other", store.schema) as other:
        other.append({"policy": store.read(0, "policy")}, {"seed": 99})
        other.append({"policy": store.read(0, "policy")}, {})
    rewards = TaskRewards(TaskRewardConfig(), other, "policy")
    with pytest.raises(HandoffError, match="episode 0 differs from its replay"):
        rewards(0)
    with pytest.raises(HandoffError, match="episode 1 has no metadata 'seed'"):
        rewards(1)
    rewards.close()


def test_every_attempt_is_kept_and_its_outcome_recorded(store: EpisodeStore):
    assert store.num_episodes == 6
    for number in range(6):
        success = store.read(number, "policy", ["success"])["success"]
        assert bool(success.any()) == store.metadata(number)["success"]


def test_noise_is_drawn_for_every_episode_from_its_own_stream(tmp_path: Path):
    def actions(path: str, seeds: range, config: ExpertDemonstrationsConfig) -> list[np.ndarray]:
        demonstrate(find_task("reach"), seeds, tmp_path / path, config)
        recorded = EpisodeStore.open(tmp_path / path)
        return [recorded.read(i, "policy", ["action"])["action"] for i in range(len(seeds))]

    three, one = actions("three", range(3), MIXED), actions("one", range(2, 3), MIXED)
    assert np.array_equal(three[2], one[0])
    plain = actions("plain", range(3), replace(MIXED, noise_high=None))
    assert not np.array_equal(three[0][: len(plain[0])], plain[0][: len(three[0])])


def test_an_upper_bound_below_the_lower_one_is_refused():
    with pytest.raises(HandoffError, match=r"noise is 0\.1 with noise_high 0\.05"):
        ExpertDemonstrationsConfig(noise=0.1, noise_high=0.05)
