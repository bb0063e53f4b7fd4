"""A practice session as a person has it: `handoff console`, a page, an episode store."""

import contextlib
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from flows.console import practise
from flows.hil_config import HilOperator
from real.console.desk import DeskConfig
from real.console.process import Open
from real.console.server import ConsoleConfig
from robots.episodes.store import EpisodeStore
from tests.real.console.pages import Page, logged, until

STARTS = 60.0
"""Seconds for a session to come up: processes, a renderer, a scene."""


class Session:
    """A session in a process of its own, which tells where its console is."""

    def __init__(self, out: Path, policy: str = "still") -> None:
        context = multiprocessing.get_context("spawn")
        there, here = context.Pipe()
        self.process = context.Process(target=_practise, args=(out, policy, here))
        self.process.start()
        assert there.poll(STARTS)
        self.opened = Open(there.recv(), "", "", None)

    def page(self) -> Page:
        page = Page(self.opened)
        until(lambda: page.state()["robot"], STARTS)
        return page

    def ended(self) -> None:
        self.process.join(20.0)
        assert not self.process.is_alive()


def _practise(out: Path, policy: str, here: Any) -> None:
    def say(text: str) -> None:
        here.send(text.removeprefix("console  "))

    # A page on a busy machine may be late.
    config = ConsoleConfig(port=0, desk=DeskConfig(watchdog=2.0))
    practise("reach", policy, out, config, HilOperator(kind="console", person="login"), None, say)


def stepped(page: Page, steps: int, *codes: str) -> dict[str, Any]:
    """Goes on telling what is down until as many steps were made; returns what was told last."""
    state = page.state()
    first, limit = state["state"].get("step", 0), time.monotonic() + STARTS
    while state["state"].get("step", 0) < first + steps:
        assert time.monotonic() < limit, f"no more steps: {state}"
        page.keys(*codes)
        state = page.state()
    return state


def labelled(page: Page, code: str, episodes: int) -> None:
    """Says a label at once, and waits until so many episodes have ended."""
    for codes in ((code,), (), (code,), ()):
        page.keys(*codes)
    ended_episodes(page, episodes)


def ended_episodes(page: Page, episodes: int) -> None:
    """Looks on until so many episodes have ended."""
    ended, limit = 0, time.monotonic() + STARTS
    while ended < episodes:
        assert time.monotonic() < limit, f"{ended} of {episodes} episodes ended"
        page.keys()
        ended = len(page.state().get("episodes", [])) or ended


def test_a_practice_session_is_recorded_with_both_actions_and_labels(tmp_path):
    session = Session(tmp_path)
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 5)
        told = stepped(page, 25, "KeyK")
        assert told["mode"] == "person"
        assert len(told["state"]["q"]) == 7
        page.keys()
        labelled(page, "KeyS", 1)
        page.go()
        stepped(page, 3)
        labelled(page, "KeyR", 2)
        page.keys("End")
        session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert store.num_episodes == 2
    first, second = store.metadata(0), store.metadata(1)
    assert (first["success"], first["source"], first["policy"]) == (True, "practice", "still")
    assert second["discard_reason"] == "redo"
    columns = store.read(0, "policy", ["intervention", "action", "action_policy", "grasp_pose"])
    mine = columns["intervention"].astype(bool).ravel()
    assert 15 <= mine.sum() < len(mine)
    np.testing.assert_array_equal(columns["action"][~mine], columns["action_policy"][~mine])
    assert columns["action"][mine][-1, 2] < -0.3
    height = columns["grasp_pose"][mine, 2]
    assert height[-1] < height[0] - 0.02
    assert {line["who"] for line in logged(tmp_path / "console", "took the arm over")} == {"ada"}


def test_a_killed_session_keeps_what_ended_and_goes_on_behind_it(tmp_path):
    session = Session(tmp_path)
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 3)
        labelled(page, "KeyQ", 1)
        assert session.process.pid is not None
        os.kill(session.process.pid, signal.SIGKILL)
        session.ended()
    again = Session(tmp_path)
    page = again.page()
    with contextlib.closing(page.socket):
        page.go()
        stepped(page, 3)
        labelled(page, "KeyS", 1)
        page.keys("End")
        again.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert [store.metadata(episode)["success"] for episode in range(2)] == [False, True]


def test_an_expert_can_be_watched_and_interrupted(tmp_path):
    session = Session(tmp_path, "expert")
    page = session.page()
    with contextlib.closing(page.socket):
        page.go()
        ended_episodes(page, 1)
        page.keys("End")
        session.ended()
    store = EpisodeStore.open(tmp_path / "store.zarr", "r")
    assert store.metadata(0)["success"]
