"""A deployment writes its running episode to the disk: a kill costs its last moments only."""

from __future__ import annotations

import os
import random
import signal
import time
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from flows.datasets import examine
from flows.deployment import session as deploying
from real.console.server import ConsoleConfig
from robots.episodes.running_episode import recover_interrupted
from robots.episodes.segments.episode_files import unfinished
from robots.episodes.store import EpisodeStore
from robots.interfaces import no_progress
from tests.flows.deployment.fake_tables import SEED, SupervisedTable
from tests.flows.deployment.test_session import on
from tests.real.onnx_models import save_policy
from tests.robots.episodes.killed_writers import Forker

BEGUN = {"robot": "fake arm", "host": "twin", "source": "deployment", "seed": SEED}
PERIOD = 0.1
"""Period of the policy [s]."""


@pytest.fixture(scope="module")
def forker():
    forker = Forker()
    yield forker
    forker.close()


def deploy_for_ever(folder: Path) -> None:
    """Runs a long episode, and notes the robot's time after every tick."""
    table = SupervisedTable(folder, steps=10_000)
    file = os.open(folder / "time", os.O_RDWR | os.O_CREAT)
    table.clock.on_tick.append(
        lambda: os.pwrite(file, np.float64(table.clock.now()).tobytes(), 0) and time.sleep(0.001)
    )
    table.run()


def noted_time(folder: Path) -> float:
    file = folder / "time"
    noted = np.frombuffer(file.read_bytes() if file.exists() else b"")
    return float(noted[0]) if noted.size else 0.0


def kill_after(forker: Forker, folder: Path, seconds: float) -> float:
    """Kills a deployment once its robot's time is later than `seconds`; returns that time."""
    deployment = forker.start(deploy_for_ever, folder)
    try:
        while noted_time(folder) < seconds:
            assert not forker.ended(0.002), "the deployment died by itself"
    finally:
        os.kill(deployment, signal.SIGKILL)
    assert forker.wait() == -signal.SIGKILL
    return noted_time(folder)


def test_a_killed_deployment_loses_the_last_moments_of_its_running_episode(
    tmp_path: Path, forker: Forker
) -> None:
    SupervisedTable(tmp_path).run()
    path = tmp_path / "store.zarr"
    committed = EpisodeStore.open(path).read(0, "robot")
    chance = random.Random(0)
    for kill in range(1, 4):
        (tmp_path / "time").unlink(missing_ok=True)
        reached = kill_after(forker, tmp_path, chance.uniform(0.3, 1.5))
        assert EpisodeStore.open(path).num_episodes == kill
        said = next(examine(path, None, None, no_progress, repair=True))
        assert f"an interrupted recording is now episode {kill}" in said
        store = EpisodeStore.open(path)
        assert store.num_episodes == kill + 1
        about = store.metadata(kill)
        assert about.items() >= {**BEGUN, "discard_reason": "interrupted"}.items()
        check_complete(store, kill, reached)
    for name, rows in EpisodeStore.open(path).read(0, "robot").items():
        np.testing.assert_array_equal(rows, committed[name])


def check_complete(store: EpisodeStore, episode: int, reached: float) -> None:
    """Checks that the rows up to a moment before the kill are there, each once."""
    policy, reference, robot = (
        store.read(episode, stream) for stream in ("policy", "reference", "robot")
    )
    np.testing.assert_allclose(np.diff(robot["time"]), 0.004, atol=1e-9)
    np.testing.assert_allclose(np.diff(policy["step_time"]), PERIOD, atol=1e-9)
    assert (robot["time"][0], policy["step_time"][0]) == (0.004, 0.0)
    ends = robot["time"][-1], 0.004 * len(reference["asked"]), policy["step_time"][-1]
    # Written once per period, by a thread that may be late on a busy machine.
    assert all(reached - 5 * PERIOD < end <= reached + 0.004 for end in ends), (ends, reached)


def test_the_next_session_recovers_an_interrupted_episode_and_says_so(
    tmp_path: Path, forker: Forker
) -> None:
    save_policy(tmp_path / "policy.onnx", scale=0.0)
    kill_after(forker, tmp_path, 0.5)
    said: list[str] = []
    held = deploying.deploy(
        on("127.0.79.22"), tmp_path, tmp_path, ConsoleConfig(port=0), episodes=1, say=said.append
    )
    assert held == 1
    assert "an interrupted recording is now episode 0" in said[0]
    assert list(unfinished(tmp_path / "store.zarr")) == []


def test_a_recovered_episode_states_what_was_known_when_it_began(
    tmp_path: Path, forker: Forker
) -> None:
    before = datetime.now(UTC)
    kill_after(forker, tmp_path, 0.5)
    with EpisodeStore.open(tmp_path / "store.zarr", "a") as store:
        recover_interrupted(store, log=lambda line: None)
        about = store.metadata(0)
    assert before <= datetime.fromisoformat(about.pop("began")) <= datetime.now(UTC)
    assert about == {
        **SupervisedTable.about,
        **BEGUN,
        "policy": "p" * 8,
        "policy_digest": "p" * 8,
        "operator": "ada",
        "device": "console",
        "people": [{"name": "ada", "device": "console"}],
        "success": False,
        "ended_by": "interrupted",
        "discard_reason": "interrupted",
        "labelled_by": None,
    }
