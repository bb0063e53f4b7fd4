"""Interrupted rollouts and demonstrations go on where they were, and their stores are those of
uninterrupted attempts, file by file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flows.artifacts import Policy
from flows.evaluation import agents
from flows.runner.artifact import Artifact
from flows.runner.stage import Stage, run_stage
from flows.session.config import HilEnvConfig
from flows.stages.data import demonstrate, rollouts
from flows.stages.data.config import DemonstrateConfig, RolloutConfig
from policies import checkpoint
from robots.episodes.store import EpisodeStore
from robots.interfaces import Progress, no_progress
from sim.evaluation.protocol import Protocol
from tests.interrupted import Killed, files, killed_at

REACH = Protocol(name="reach", engine="mujoco", task="reach", episodes=1, max_steps=5)


class Wanderer:
    """Acts by the seeds of its episodes alone."""

    def __init__(self, env: Any) -> None:
        self.size = env.action_spec.size
        self.rngs: list[np.random.Generator] = []

    def reset(self, seeds: Any) -> None:
        self.rngs = [np.random.default_rng(seed) for seed in seeds]

    def act(self, observation: Any, running: Any) -> np.ndarray:
        return np.stack([rng.uniform(-1.0, 1.0, self.size) for rng in self.rngs])


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> Policy:
    """A policy whose agents wander."""
    monkeypatch.setattr(agents, "checkpoint_agent", lambda path, protocol: (lambda: Wanderer, {}))
    monkeypatch.setattr(checkpoint, "read_card", lambda path: SimpleNamespace(task="reach"))
    monkeypatch.setattr(rollouts, "read_manifest", lambda path: {"digest": "0" * 64})
    return Policy(Path("policy"))


def resumed(run: Callable[[Path, Progress], Any], folder: Path) -> list[str]:
    """Compares an uninterrupted attempt with one that was ended at its second report; returns the
    notes of the attempt that went on."""
    expected = run(folder / "one", no_progress)
    with pytest.raises(Killed):
        run(folder / "two", killed_at(2))
    notes: list[str] = []

    def progress(done: int, total: int, note: str = "") -> None:
        notes.append(note)

    assert run(folder / "two", progress) == expected
    assert files(folder / "two") == files(folder / "one")
    return notes


def test_rollouts_go_on_with_the_next_attempts(tmp_path: Path, policy: Policy) -> None:
    config = RolloutConfig(protocol=REACH, episodes=5, keep="all", num_envs=2)

    def run(out: Path, progress: Progress) -> Any:
        return rollouts.run(config, out, progress, policy=policy)

    assert resumed(run, tmp_path)[0] == "2 episodes kept from the interrupted attempt"


def test_rollouts_of_one_batch_are_stored_at_once(
    tmp_path: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the attempts of the batch would count, and its other episodes be missing."""
    monkeypatch.setattr(EpisodeStore.writer.__wrapped__, "__defaults__", (1,))  # type: ignore[attr-defined]
    config = RolloutConfig(protocol=REACH, episodes=4, keep="all", num_envs=2)
    rollouts.run(config, tmp_path, no_progress, policy=policy)
    assert len(list((tmp_path / "store.zarr" / "segments").glob("0*"))) == 2


def test_demonstrations_go_on_with_the_next_attempt(tmp_path: Path) -> None:
    config = DemonstrateConfig(env=HilEnvConfig(task="reach"), episodes=3)

    def run(out: Path, progress: Progress) -> Any:
        return demonstrate.run(config, out, progress)

    expected = "2 demonstrations kept that were recorded before"
    assert resumed(run, tmp_path)[0] == expected


def test_recordings_without_a_person_state_no_wall_time(tmp_path: Path) -> None:
    config = DemonstrateConfig(env=HilEnvConfig(task="reach"), episodes=1)
    demonstrate.run(config, tmp_path, no_progress)
    about = EpisodeStore.open(tmp_path / "store.zarr").metadata(0)
    assert {"began", "ended", "session"}.isdisjoint(about)
    assert (about["robot"], about["source"], about["ended_by"]) == (
        "fr3 mujoco",
        "demonstration",
        "task",
    )


def test_rollouts_name_the_policy_that_acted(tmp_path: Path, policy: Policy) -> None:
    config = RolloutConfig(protocol=REACH, episodes=2, keep="all", num_envs=2)
    rollouts.run(config, tmp_path, no_progress, policy=policy)
    about = EpisodeStore.open(tmp_path / "store.zarr").metadata(1)
    assert (about["policy_digest"], about["robot"]) == ("0" * 64, "fr3 mujoco")


def test_more_simulated_demonstrations_are_those_of_a_new_run(tmp_path: Path) -> None:
    """The larger recording goes on from a copy of the smaller one."""

    def made(folder: str, episodes: int) -> Artifact:
        config = DemonstrateConfig(env=HilEnvConfig(task="reach"), episodes=episodes)
        module = "flows.stages.data.demonstrate"
        stage = Stage("demos", "episodes", module, config, grows=demonstrate.GROWS)
        return run_stage(stage, {}, tmp_path / folder, no_progress, isolate=False).artifact

    made("grown", 2)
    assert made("grown", 3).digest == made("new", 3).digest
