"""A session of `handoff console` with a page and an episode store."""

import contextlib
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flows.__main__ import main
from flows.console import run_console_session
from flows.session.config import HilOperator
from flows.session.environment import SIMULATED
from robots.episodes.store import EpisodeStore
from tests.flows.console_session import (
    PATIENT,
    STARTS,
    Session,
    ended_by,
    ended_episodes,
    labelled,
    sent_to,
    stepped,
)
from tests.real.console.pages import logged


def console_session(out: Path, policy: str = "still", task: str = "reach") -> Session:
    return Session(_run, out, policy, task)


def _run(out: Path, policy: str, task: str, here: Any) -> None:
    operator = HilOperator(kind="console", person="login")
    run_console_session(task, policy, out, PATIENT, operator, None, sent_to(here))


def test_a_task_that_does_not_exist_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["console", "push_z"]) == 1
    assert "push_t" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_person_steers_the_pusher_of_push_t_in_the_plane(tmp_path: Path) -> None:
    session = console_session(tmp_path, task="push_t")
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 5)
        # A key of an axis that the task does not have takes nothing over.
        assert stepped(page, 3, "KeyI", "KeyC")["mode"] == "policy"
        assert stepped(page, 12, "ArrowDown")["mode"] == "person"
        page.keys()
        stepped(page, 8)
        page.keys("Escape")
        limit = time.monotonic() + STARTS
        while (why := page.newest()["why"]) != SIMULATED["home"]:
            page.keys("KeyH")
            page.keys()
            assert time.monotonic() < limit, why
        page.go()
        labelled(page, "KeyQ", 1)
        ended_by(page)
        session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    steps = store.read(0, "policy")
    agent, mine = steps["agent"], steps["intervention"].astype(bool).ravel()
    first, last = np.flatnonzero(mine)[[0, -1]]
    way = agent[last] - agent[first]
    # Towards the person, who stands behind the arm, is the board's y.
    assert way[1] > 0.06
    assert abs(way[0]) < 0.01
    assert store.metadata(0)["takeovers"] == 1
    # Released, the pusher stands still: on its way it was at most 0.15 m/s fast.
    assert np.linalg.norm(agent[-1] - agent[last]) < 0.04
    np.testing.assert_allclose(agent[-1], agent[-3], atol=0.002)
    assert (np.abs(steps["action"][first + 4 : last, 1] - agent[first + 4 : last, 1]) < 0.04).all()


def test_a_session_is_recorded_with_both_actions_and_labels(tmp_path):
    session = console_session(tmp_path)
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 5)
        state = stepped(page, 25, "KeyK")
        assert state["mode"] == "person"
        assert len(state["state"]["q"]) == 7
        page.keys()
        labelled(page, "KeyS", 1)
        page.go()
        stepped(page, 3)
        labelled(page, "KeyR", 2)
        ended_by(page)
        session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert store.num_episodes == 2
    first, second = store.metadata(0), store.metadata(1)
    assert (first["success"], first["source"], first["policy"]) == (True, "console", "still")
    assert second["discard_reason"] == "redo"
    assert (first["host"], first["ended_by"], first["labelled_by"]) == ("simulated", "label", "ada")
    assert first["session"][:19] <= first["began"][:19]
    assert first["began"] < first["ended"] <= second["began"] < second["ended"]
    assert first["session"] == second["session"]
    people = store.read(0, "policy", ["person", "intervention"])
    assert set(people["person"][people["intervention"] == 0]) == {-1}
    acted = {first["people"][place]["name"] for place in set(people["person"]) - {-1}}
    assert acted == {"ada"}
    columns = store.read(0, "policy", ["intervention", "action", "action_policy", "grasp_pose"])
    mine = columns["intervention"].astype(bool).ravel()
    assert 15 <= mine.sum() < len(mine)
    np.testing.assert_array_equal(columns["action"][~mine], columns["action_policy"][~mine])
    assert columns["action"][mine][-1, 2] < -0.3
    height = columns["grasp_pose"][mine, 2]
    assert height[-1] < height[0] - 0.02
    assert {line["who"] for line in logged(tmp_path / "console", "took the arm over")} == {"ada"}


def test_a_killed_session_keeps_finished_episodes_and_appends_to_them(tmp_path):
    session = console_session(tmp_path)
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 3)
        labelled(page, "KeyQ", 1)
        assert session.process.pid is not None
        os.kill(session.process.pid, signal.SIGKILL)
        session.ended()
    again = console_session(tmp_path)
    page = again.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 3)
        labelled(page, "KeyS", 1)
        ended_by(page)
        again.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert [store.metadata(episode)["success"] for episode in range(2)] == [False, True]


def test_an_expert_can_be_watched_and_interrupted(tmp_path):
    session = console_session(tmp_path, "expert")
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        ended_episodes(page, 1)
        ended_by(page)
        session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert store.metadata(0)["success"]
