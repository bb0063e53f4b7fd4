"""A HIL session from its first demonstration to its evaluation, with a person at the page."""

import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from websockets.exceptions import ConnectionClosed

from flows.session.environment import make_session_env
from real.console.process import OpenConsole
from robots.episodes.store import EpisodeStore
from tests.flows.correction.test_session import UNTIL
from tests.flows.recipe_stages import options
from tests.real.console.pages import Page, logged

DEMONSTRATIONS, STEPS = 3, 150
TASK_REWARD = [
    "~classifier",
    "~clone",
    "corrected.inputs.classifier=null",
    "corrected.algorithm.reward=task",
]
LIMIT = 240.0
"""Time limit of the session [s]."""


def goals(count: int) -> np.ndarray:
    """(count, 3) goals of the first starts [m], base frame, as a person sees them in the images."""
    config = options("hil/reach")["demos"]
    env, _ = make_session_env(config.env, on_end="freeze")
    with contextlib.closing(env):
        first = config.first_seed
        return np.stack(
            [env.reset([first + number])["goal"][0, :3].copy() for number in range(count)]
        )


class Person:
    """Resumes after a hold; demonstrates with the stick; in training takes over at the start of
    every second episode."""

    def __init__(self, url: str, goals: np.ndarray) -> None:
        self.page, self.goals = Page(OpenConsole(url, "", "", "", None)), goals
        self.stage, self.demonstrated = "", 0

    def act(self) -> None:
        """Reads the state of the page and reacts to it."""
        state = self.page.newest()
        self.stage = state.get("about", {}).get("stage", self.stage)
        if "episodes" in state and self.stage == "demonstration":
            self.demonstrated = len(state["episodes"])
        arm = state["state"]
        if state["mode"] == "hold":
            self.send()
            if state["robot"]:
                self.send("Enter")
        elif (
            self.stage == "demonstration"
            and "grasp_pose" in arm
            and self.demonstrated < len(self.goals)
        ):
            direction = self.goals[self.demonstrated] - np.array(arm["grasp_pose"][:3])
            self.send(stick=[*np.clip(20.0 * direction, -1.0, 1.0).tolist(), 0.0])
        elif self.stage == "training" and arm.get("episode", 1) % 2 == 0 and arm["step"] < 15:
            self.send("KeyI")
        else:
            self.send()

    def send(self, *keys: str, **inputs: Any) -> None:
        self.page.sequence += 1
        self.page.say(
            kind="inputs", keys=list(keys), sequence=self.page.sequence, visible=True, **inputs
        )


def test_a_whole_session_with_a_person_at_the_page(tmp_path: Path) -> None:
    overrides = [f"demos.episodes={DEMONSTRATIONS}", "corrected.speed=1", *TASK_REWARD]
    command = [sys.executable, "-m", "flows", "hil", "smoke", *overrides]
    command += [
        "--operator",
        "console",
        "--port",
        "0",
        "--steps",
        str(STEPS),
        "--out",
        str(tmp_path),
        *UNTIL,
    ]
    started = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "COLUMNS": "200"}
    ) as session:
        assert session.stdout is not None
        line = session.stdout.readline()
        assert line.startswith("console  http://"), line
        person = Person(line.split()[1], goals(DEMONSTRATIONS))
        while session.poll() is None:
            assert time.monotonic() - started < LIMIT, f"still at stage {person.stage}"
            # The console ends before the session.
            with contextlib.suppress(ConnectionClosed, TimeoutError):
                person.act()
        assert session.returncode == 0, session.stdout.read()
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert list(summary["stages"]) == ["demos", "corrected", "scores"]
    assert summary["metrics"]["demos.episodes"] == DEMONSTRATIONS
    assert summary["metrics"]["corrected.steps"] >= STEPS
    demos = EpisodeStore.open(tmp_path / "demos" / "store.zarr")
    for episode in range(demos.num_episodes):
        assert demos.metadata(episode)["success"]
        assert demos.read(episode, "policy", ["intervention"])["intervention"].mean() > 0.8
    trained = EpisodeStore.open(tmp_path / "corrected" / "store.zarr")
    interventions = [
        trained.read(e, "policy", ["intervention"])["intervention"].mean()
        for e in range(trained.num_episodes)
    ]
    assert max(interventions) > 0.05
    assert min(interventions) == 0.0
    takeovers = logged(tmp_path / "console", "took the arm over")
    assert len(takeovers) >= DEMONSTRATIONS
    assert {line["who"] for line in takeovers} == {"ada"}
