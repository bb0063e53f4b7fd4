"""The actor process of a HIL session: an interrupted episode is recorded."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.correction.actor_process import act
from flows.correction.config import CorrectConfig
from flows.correction.processes import RestartedProcess, end_together
from flows.reports.learning_curve import read_history
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.vec_env import EngineVecEnv
from tests.flows.recipe_stages import options

NOBODY = "ws://127.0.0.1:9"
"""Address without a learner: the actor takes random actions."""
TOKEN = "t" * 32


def session(speed: float) -> CorrectConfig:
    chosen = options("hil/reach")["corrected"]
    actor = replace(chosen.actor, random_steps=100_000)
    return replace(chosen, actor=actor, speed=speed)


def test_an_episode_that_an_error_ends_is_recorded_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    advance, steps = EngineVecEnv.step, []

    def lost(self: EngineVecEnv, action: np.ndarray) -> Any:
        steps.append(1)
        if len(steps) > 8:
            raise HandoffError("sensor: lost.")
        return advance(self, action)

    monkeypatch.setattr(EngineVecEnv, "step", lost)
    here, there = multiprocessing.Pipe()
    with pytest.raises(HandoffError, match=r"^sensor: lost\.$"):
        act(session(0.0), tmp_path, None, None, NOBODY, TOKEN, there)
    here.close()
    store = EpisodeStore.open(tmp_path / "store.zarr")
    assert store.num_episodes == 1
    metadata = store.metadata(0)
    assert (metadata["fault"], metadata["discard_reason"], metadata["success"]) == (
        "sensor: lost.",
        "fault",
        False,
    )
    rows, final = store.read(0, "policy"), store.read(0, "final")
    assert len(rows["reward"]) == 8
    assert final["grasp_pose"].shape == (1, *rows["grasp_pose"].shape[1:])
    assert not np.array_equal(final["dq"][0], rows["dq"][-1])
    assert len(read_history(tmp_path / "store.zarr").steps) == 0, (
        "a discarded episode does not count for the success rate"
    )


def test_the_episode_in_which_the_session_ends_is_recorded_as_unfinished(tmp_path: Path) -> None:
    chosen = session(0.0)
    here, there = multiprocessing.Pipe()
    # Fewer steps than an episode's time limit; the stop is answered after the next step.
    here.send("stop")
    act(chosen, tmp_path, None, None, NOBODY, TOKEN, there)
    store = EpisodeStore.open(tmp_path / "store.zarr")
    assert store.num_episodes == 1
    metadata = store.metadata(0)
    assert (metadata["discard_reason"], metadata["success"]) == ("unfinished", False)
    assert (metadata["ended_by"], metadata["labelled_by"]) == ("session_end", None)
    assert (metadata["host"], metadata["source"]) == ("simulated", "training")
    assert {"began", "ended", "session"}.isdisjoint(metadata), "nobody took part"
    assert "fault" not in metadata
    assert len(read_history(tmp_path / "store.zarr").steps) == 0


def test_an_episode_that_a_signal_ends_is_recorded(tmp_path: Path) -> None:
    process = RestartedProcess("actor", act, (session(1.0), tmp_path, None, None, NOBODY, TOKEN))
    process.start()
    statuses, limit = 0, time.monotonic() + 60.0
    # At most one status message per control step.
    while statuses < 2:
        assert time.monotonic() < limit, "the actor does not act"
        statuses += sum(message[0] == "status" for message in process.receive())
        time.sleep(0.01)
    end_together([process])
    store = EpisodeStore.open(tmp_path / "store.zarr")
    assert store.num_episodes == 1
    assert store.metadata(0)["fault"] == "ended by SIGTERM"
    assert store.metadata(0)["ended_by"] == "fault"
    assert len(store.read(0, "policy", ["reward"])["reward"]) >= 2
