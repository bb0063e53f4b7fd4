"""Sits through a recording session at the page, attempt by attempt."""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from websockets.exceptions import ConnectionClosed

from real.console.process import OpenConsole
from tests.person.eyes import Eyes, picture
from tests.person.hands import START, TAKE, Hands
from tests.person.skills import SKILLS, Skill
from tests.real.console.pages import Page

DECISION = 0.25
"""Time from one decision to the next [s]."""
JITTER = 0.1
"""Largest deviation from it [s]."""
PATIENCE = 1.0
"""Time for which the person lets a policy act before taking the arm over [s]."""
BEAT = 0.033
"""Time between two messages of a page [s], as the real page's."""


@dataclass
class Attempts:
    """What a person has done at the page."""

    decisions: int = 0
    """Decisions so far."""
    without_pictures: int = 0
    """Decisions for which no picture had come since the last one."""
    episodes: list[dict[str, object]] = field(default_factory=list)
    """Episodes that ended, as the page counts them."""


class Person:
    """Decides from the newest pictures, and has keys down in between; where a policy acts, takes
    the arm over if the task takes it too long.

    Args:
        url: address of the page, with its token.
        task: name of the task.
        seed: of the jitter.
    """

    def __init__(self, url: str, task: str, seed: int = 0) -> None:
        self._page = Page(OpenConsole(url, "", "", "", None), "mia")
        self._hands = Hands()
        self._eyes = Eyes(task)
        self._new_skill: Callable[[], Skill] = SKILLS[task]
        self._skill = self._new_skill()
        self._chance = random.Random(seed)
        self._state: dict[str, object] = {}
        self._pictures: dict[str, np.ndarray] = {}
        self._frames: dict[str, bytes] = {}
        self._episode: object = None
        self._began = 0.0
        self.done = Attempts()

    def sit_through(self, ended: Callable[[], bool]) -> Attempts:
        """Works until the session has ended.

        Args:
            ended: whether it has.
        """
        decide = beat = 0.0
        with contextlib.suppress(ConnectionClosed):
            while not ended():
                self._read(until=beat)
                now = time.monotonic()
                if now >= decide:
                    pause = DECISION + JITTER * self._chance.uniform(-1.0, 1.0)
                    decide = now + pause
                    self._decide(pause)
                self._page.keys(*self._hands.down(now))
                beat = now + BEAT
        return self.done

    def _read(self, until: float) -> None:
        """Takes what the page gets, for a while."""
        while (left := until - time.monotonic()) > 0.0:
            try:
                message = self._page.socket.recv(timeout=left)
            except TimeoutError:
                return
            if isinstance(message, str):
                self._state |= json.loads(message)
            else:
                name = message[1 : 1 + message[0]].decode()
                self._frames[name] = message

    def _decide(self, pause: float) -> None:
        state = self._state
        if "episodes" in state:
            self.done.episodes = list(state["episodes"])  # pyright: ignore
        if state.get("mode") == "hold":
            self._hands.press({START: 0.08} if state.get("robot") else {}, time.monotonic())
            return
        if state.get("episode") != self._episode:
            self._episode, self._skill = state.get("episode"), self._new_skill()
            self._began = time.monotonic()
            self._pictures.clear()
        self.done.decisions += 1
        self.done.without_pictures += not self._frames
        for frame in self._frames.values():
            name, image = picture(frame)
            self._pictures[name] = image
        self._frames.clear()
        if self._waits():
            self._hands.press({}, time.monotonic())
            return
        self._eyes.look(self._pictures)
        keys = self._skill.keys(self._eyes, pause)
        # The arm is kept a little beyond the next decision.
        self._hands.press(keys | {TAKE: pause + JITTER}, time.monotonic())

    def _waits(self) -> bool:
        """Whether a policy acts, and the person still gives it time."""
        about = self._state.get("about")
        alone = isinstance(about, dict) and about.get("still", False)
        return not alone and time.monotonic() - self._began < PATIENCE
