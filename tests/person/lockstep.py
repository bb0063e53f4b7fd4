"""The same person without a page, in simulated time: what a loaded machine would delay passes in
steps of the arm."""

from __future__ import annotations

import contextlib
import random
from collections import deque
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from flows.session.config import HilEnvConfig, HilOperator
from flows.session.environment import make_session_env, still_policy
from flows.session.viewer import SceneView, scene_reader
from real.console.console_operator import ConsoleOperator
from real.console.control.bindings import DEFAULTS, Bindings, Inputs
from real.console.control.commands import ControlCommand, Mode
from real.teleop.takeover import TakeoverConfig
from robots.interfaces import Label
from tests.person.attempts import DECISION, JITTER
from tests.person.eyes import Eyes, picture
from tests.person.hands import TAKE, Hands
from tests.person.skills import SKILLS
from tests.person.tee import PushT

AGE = 2
"""Age of the pictures when the person decides [control steps]."""
SECONDS = 60.0
"""Longest attempt [s], as in a session."""


class _Desk:
    """A `real.console.console_operator.ConsoleConnection` of somebody whose keys are known."""

    connection = 0

    def __init__(self) -> None:
        self.keys: tuple[str, ...] = ()
        self.stick: tuple[float, float, float, float] | None = None
        """Deflection of the stick on the page: forward, left, up, turn."""
        self._bindings = Bindings(DEFAULTS)

    def command(self) -> ControlCommand:
        hand = self._bindings.hand(Inputs(keys=frozenset(self.keys), stick=self.stick))
        mode = Mode.PERSON if hand.engaged else Mode.POLICY
        return ControlCommand(mode, hand, "mia", 0, Label.NONE, 0, 0)

    def send(self, message: dict[str, Any], scene: bytes | None = None) -> None: ...

    def describe(self, message: dict[str, Any], scene: bytes | None = None) -> None: ...

    def await_hold(self) -> None: ...

    def close(self) -> None: ...


def attempts(
    task: str, seeds: Sequence[int], *, seconds: float = SECONDS, dark: bool = False
) -> list[float | None]:
    """Duration [s] of an attempt from each start; None where the task was not done in time.

    Args:
        task: name of the task.
        seeds: of the starts, and of the person's jitter.
        seconds: longest attempt [s].
        dark: negative control: all pictures are black.
    """
    config = HilEnvConfig(task=task, observation_fields=())
    env, engine = make_session_env(config, on_end="freeze", seconds=seconds)
    view, desk, eyes = SceneView(config, images=True), _Desk(), Eyes(task)
    assert view.cameras, "no OpenGL on this machine"
    scene, still = scene_reader(engine), still_policy(engine.action_spec, engine.task.robot)
    time = [0.0]
    operator = ConsoleOperator(
        engine.action_spec,
        TakeoverConfig(),
        desk,
        "mia",
        env.rate_hz,
        now=lambda: time[0],
        width_max=engine.task.robot.gripper.width_max,
    )
    durations: list[float | None] = []
    with contextlib.closing(env):
        for seed in seeds:
            observation = env.reset([seed])
            operator.reset([seed])
            skill, hands, chance = SKILLS[task](), Hands(), random.Random(seed)
            scenes = deque([scene()], maxlen=AGE + 1)
            decide, done = time[0], None
            began = time[0]
            while time[0] - began < seconds and done is None:
                if time[0] >= decide:
                    pause = DECISION + JITTER * chance.uniform(-1.0, 1.0)
                    decide = time[0] + pause
                    pictures = dict(picture(frame) for frame in view.frames(scenes[0]))
                    eyes.look(
                        {name: 0.0 * image if dark else image for name, image in pictures.items()}
                    )
                    hands.press(skill.keys(eyes, pause) | {TAKE: pause + JITTER}, time[0])
                desk.keys = hands.down(time[0])
                action = operator.intervene(still(observation), observation).executed
                step = env.step(action)
                time[0] += 1.0 / env.rate_hz
                observation = step.observation
                scenes.append(scene())
                if np.any(step.info["success"]):
                    done = time[0] - began
            durations.append(done)
    return durations


class Pushed(NamedTuple):
    """An attempt at push-T."""

    seconds: float | None
    """Time until the T was at the goal [s]; None if it was not in time."""
    coverage: float
    """Largest coverage of the goal."""


def pushed(seeds: Sequence[int], *, seconds: float = SECONDS, dark: bool = False) -> list[Pushed]:
    """Attempts at push-T with the stick on the page, at the speed of a session; arguments of
    `attempts`."""
    config = HilEnvConfig(task="push_t", observation_fields=())
    env, engine = make_session_env(config, on_end="freeze", seconds=seconds)
    view, desk = SceneView(config, images=True), _Desk()
    assert view.cameras, "no OpenGL on this machine"
    scene, still = scene_reader(engine), still_policy(engine.action_spec, engine.task.robot)
    time = [0.0]
    operator = ConsoleOperator(
        engine.action_spec, HilOperator().console, desk, "mia", env.rate_hz, now=lambda: time[0]
    )
    results = []
    with contextlib.closing(env):
        for seed in seeds:
            observation = env.reset([seed])
            operator.reset([seed])
            skill, chance = PushT(), random.Random(seed)
            scenes = deque([scene()], maxlen=AGE)
            decide = began = time[0]
            done, best = None, 0.0
            while time[0] - began < seconds and done is None:
                if time[0] >= decide:
                    decide = time[0] + DECISION + JITTER * chance.uniform(-1.0, 1.0)
                    pictures = dict(picture(frame) for frame in view.frames(scenes[0]))
                    forward, left = skill.stick(
                        {name: 0.0 * image if dark else image for name, image in pictures.items()}
                    )
                    desk.stick = (forward, left, 0.0, 0.0)
                action = operator.intervene(still(observation), observation).executed
                step = env.step(action)
                time[0] += 1.0 / env.rate_hz
                observation = step.observation
                scenes.append(scene())
                best = max(best, float(step.info["coverage"][0]))
                if np.any(step.info["success"]):
                    done = time[0] - began
            results.append(Pushed(done, best))
    return results


def shown(task: str, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray, np.ndarray]:
    """Pictures of a start by camera, and where grasp point, goal and cube, (3,) each [m], are."""
    config = HilEnvConfig(task=task, observation_fields=())
    env, engine = make_session_env(config, on_end="freeze")
    with contextlib.closing(env):
        observation = env.reset([seed])
        view = SceneView(config, images=True)
        pictures = dict(picture(frame) for frame in view.frames(scene_reader(engine)()))
        cube = engine.view.position("cube")[0]
        return pictures, observation["grasp_pose"][0, :3], engine.view.goal[0, :3].copy(), cube


def shown_board(seed: int) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Pictures of a start of push-T by camera, and where the pusher (2,) and the T (3,) are, board
    frame."""
    config = HilEnvConfig(task="push_t", observation_fields=())
    env, engine = make_session_env(config, on_end="freeze")
    with contextlib.closing(env):
        observation = env.reset([seed])
        view = SceneView(config, images=True)
        pictures = dict(picture(frame) for frame in view.frames(scene_reader(engine)()))
        return pictures, observation["agent"][0], observation["block_pose"][0]
