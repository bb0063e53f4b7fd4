"""Data from simulated arms: play without a task, and demonstrations by the scripted experts, into
an `EpisodeStore`.

Play in the sense of Lynch et al. (arXiv 1903.01973) and CALVIN (arXiv 2112.03227): one sub-goal
after another, whatever the task, with no reset in between for a long time. A person's curiosity is
replaced by a random choice among going somewhere, going to an object, pushing it, opening, closing,
and doing a bit of what the task's expert would do.

Frame t of an episode holds observation t, the action taken on seeing it, the reward that followed,
and whether the task was solved then.
Every world has its own random stream, keyed by its seed, so an episode does not depend on those
recorded beside it.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from robots.config import config
from robots.control.actions import CartesianDelta
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore, EpisodeWriter
from robots.errors import HandoffError
from robots.interfaces import Observation, Progress, no_progress
from robots.spec import FieldSpec
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.episode_streams import EpisodeStream
from sim.scene.view import View
from sim.tasks.task import CLOSED, Intent, Task
from sim.vec_env import Worlds, WorldsConfig

STREAM = "policy"
"""Stream of the recorded episodes."""
ARRIVED = 0.015
"""Distance to a waypoint that counts as there [m]."""
HOVER = 0.07
"""Height over an object from which it is approached [m]."""


class SubGoal(IntEnum):
    """What play is after; the field `subgoal`."""

    MOVE = 0
    """Goes to a random place of the workspace, with the hand as it is."""
    APPROACH = 1
    """Goes to an object from above, with the hand open."""
    PUSH = 2
    """Goes through an object, with the hand closed."""
    OPEN = 3
    CLOSE = 4
    EXPERT = 5
    """Does what the task's expert does."""


@config
class PlayConfig:
    """How play is recorded."""

    steps: int = 400
    """Length of an episode [control periods]; the task's time limit does not count, nor does its
    success."""
    weights: tuple[float, float, float, float, float, float] = (0.2, 0.15, 0.2, 0.1, 0.1, 0.25)
    """How often each `SubGoal` is chosen, relative to the others."""
    duration: tuple[float, float] = (0.6, 2.5)
    """Shortest and longest time for one sub-goal [s]; it is given up then, or left earlier once
    reached."""
    noise: float = 0.005
    """Standard deviation of the intended position at every step [m]."""
    spread: float = 0.01
    """Standard deviation of where the hand goes down on a thing, or through it [m]. Wide of it,
    play shows misses."""
    turn: float = 1.0
    """Most by which the hand is turned from how the expert would hold it [rad]."""
    slowest: float = 0.5
    """Speeds are drawn between this share of the largest and 1."""
    batch: int = 16
    """Worlds recorded together; bounds the memory."""
    worlds: MujocoConfig = MujocoConfig()
    """Action space, randomisation, pictures."""


@config
class ExpertDemonstrationsConfig:
    """How demonstrations are recorded."""

    noise: float = 0.0
    """Standard deviation of the intended position at every step [m]."""
    keep: Literal["successful", "all"] = "successful"
    """Which episodes are stored; either way their metadata tell `success`."""
    batch: int = 16
    """Worlds recorded together; bounds the memory."""
    worlds: MujocoConfig = MujocoConfig()
    """Action space, randomisation, pictures."""


class RecordedPlay(NamedTuple):
    """What was written."""

    episodes: int
    steps: int
    """Of all stored episodes."""
    success_rate: float
    """Of all episodes run, stored or not; play counts as success when it solved the task at any
    time."""


def play(
    task: Task,
    seeds: Sequence[int],
    out: Path,
    config: PlayConfig | None = None,
    progress: Progress = no_progress,
) -> RecordedPlay:
    """Records one episode of play per seed in a new store at `out`.

    An episode is shorter than asked for only where the task says that its world is beyond repair.
    Metadata: `seed`, `success`, `source`.

    Args:
        task: what lies on the table.
        seeds: of the starts and of the play.
        out: absent or an empty folder.
        config: how.
        progress: counts episodes.

    Raises:
        HandoffError: no seeds, bad weights or durations, or what the engine or the store finds.
    """
    config = config or PlayConfig()
    _check(seeds, config.batch)
    if min(config.weights) < 0.0 or sum(config.weights) <= 0.0 or config.steps < 1:
        raise HandoffError(
            f"play: weights {config.weights} and {config.steps} steps, expected no negative weight, one that is "
            "positive, and at least 1 step."
        )
    if not 0.0 < config.duration[0] <= config.duration[1]:
        raise HandoffError(f"play: duration {config.duration} s, expected 0 < shortest <= longest.")
    label = FieldSpec(
        shape=(),
        dtype="int32",
        about=f"sub-goal: {', '.join(f'{g.value} {g.name}' for g in SubGoal)}",
    )
    return _record(
        task,
        seeds,
        out,
        config.batch,
        config.worlds,
        {"subgoal": label},
        _PlayBatch(config),
        progress,
    )


def demonstrate(
    task: Task,
    seeds: Sequence[int],
    out: Path,
    config: ExpertDemonstrationsConfig | None = None,
    progress: Progress = no_progress,
) -> RecordedPlay:
    """Records the scripted expert, one attempt per seed, in a new store at `out`.

    An episode ends with success, failure or the task's time limit. Metadata: `seed`, `success`,
    `source`.

    Args:
        task: what is demonstrated.
        seeds: of the starts and of the noise.
        out: absent or an empty folder.
        config: how.
        progress: counts attempts.

    Raises:
        HandoffError: no seeds, or what the engine or the store finds.
    """
    config = config or ExpertDemonstrationsConfig()
    _check(seeds, config.batch)
    return _record(
        task, seeds, out, config.batch, config.worlds, {}, _ExpertBatch(config), progress
    )


class _Rows(NamedTuple):
    """One batch of episodes, N of them, T steps each at most."""

    fields: dict[str, np.ndarray]
    """(T, N, ...)."""
    length: np.ndarray
    """(N,) steps that count."""
    success: np.ndarray
    """(N,) bool."""
    keep: np.ndarray
    """(N,) bool."""


class _ExpertBatch:
    source = "expert"

    def __init__(self, config: ExpertDemonstrationsConfig) -> None:
        self.config = config

    def __call__(self, engine: MujocoEngine, seeds: np.ndarray) -> _Rows:
        worlds = Worlds(engine, WorldsConfig(on_end="freeze"))
        rngs = [np.random.default_rng([seed, EpisodeStream.RECORDING]) for seed in seeds]
        observation = worlds.reset(seeds.tolist())
        frames: list[Observation] = []
        success, over = np.zeros(len(seeds), dtype=bool), np.zeros(len(seeds), dtype=bool)
        while not over.all():
            intent = engine.task.expert(engine.view)
            action = engine.to_action(_shaken(intent, self.config.noise, rngs))
            step = worlds.step(action)
            success = step.info["success"]
            frames.append(
                {
                    **observation,
                    "action": action,
                    "reward": step.reward,
                    "success": success.astype(np.uint8),
                }
            )
            observation, over = step.observation, step.terminated | step.truncated
        keep = success | (self.config.keep == "all")
        return _Rows(_stacked(frames), worlds.steps, success, keep)


class _PlayBatch:
    source = "play"

    def __init__(self, config: PlayConfig) -> None:
        self.config = config

    def __call__(self, engine: MujocoEngine, seeds: np.ndarray) -> _Rows:
        n = len(seeds)
        engine.reset(np.arange(n), seeds)
        players = [
            _Player(self.config, engine, np.random.default_rng([seed, EpisodeStream.RECORDING]))
            for seed in seeds
        ]
        rngs = [player.rng for player in players]
        reading = engine.read()
        frames: list[Observation] = []
        running, length = np.ones(n, dtype=bool), np.zeros(n, dtype=np.int64)
        success = np.zeros(n, dtype=bool)
        while running.any() and len(frames) < self.config.steps:
            view, expert = engine.view, engine.task.expert(engine.view)
            intents = [
                player.intend(i, view, expert, reading.success) for i, player in enumerate(players)
            ]
            intent = Intent(
                *(
                    np.stack([np.asarray(part) for part in column])
                    for column in zip(*intents, strict=True)
                )
            )
            action = engine.to_action(_shaken(intent, self.config.noise, rngs))
            engine.step(action, running)
            after = engine.read()
            subgoal = np.array([player.subgoal for player in players], dtype=np.int32)
            told = {
                "reward": after.reward,
                "success": after.success.astype(np.uint8),
                "subgoal": subgoal,
            }
            frames.append({**reading.observation, "action": action, **told})
            length += running
            success |= after.success & running
            # Worlds beyond repair are left; a solved task is not an end of play.
            running &= ~(after.terminated & ~after.success)
            reading = after
        return _Rows(_stacked(frames), length, success, np.ones(n, dtype=bool))


class _Player:
    """What one world's play is after."""

    def __init__(self, config: PlayConfig, engine: MujocoEngine, rng: np.random.Generator) -> None:
        model, task = engine.model, engine.task
        self.rng = rng
        self._config = config
        self._rate = engine.rate_hz
        self._named = task.thing
        self._objects = [model.joint(i).name for i in range(model.njnt) if model.jnt_type[i] == 0]
        space = task.actions if isinstance(task.actions, CartesianDelta) else CartesianDelta()
        self._low, self._high = np.array(space.low), np.array(space.high)
        # A tool that cannot leave its height stays there, or no waypoint would ever be reached.
        self._flat = not isinstance(task.actions, CartesianDelta) or "z" not in task.actions.axes
        weights = np.array(config.weights)
        if not engine.use_gripper:
            weights[[SubGoal.OPEN, SubGoal.CLOSE]] = 0.0
        if weights.sum() <= 0.0:
            raise HandoffError(
                f"play: {task.name} has no hand to open or close, and no other sub-goal has a weight."
            )
        self._weights = weights / weights.sum()
        self.subgoal = SubGoal.MOVE
        self._left = 0
        self._leg = 0
        self._waypoints = np.zeros((2, 6))
        self._open = task.robot.gripper.width_max
        self._width = self._open
        self._speed = 1.0

    def intend(self, world: int, view: View, expert: Intent, solved: np.ndarray) -> Intent:
        """(6,), (), (): what world `world` shall do now; where it is `solved` (N,), the expert is
        done."""
        if self._left == 0 or self._reached(world, view, solved):
            self._choose(world, view, expert)
        self._left -= 1
        if self.subgoal == SubGoal.EXPERT:
            self._width = float(expert.width[world])
            return Intent(expert.pose[world], np.asarray(self._width), self._speed)
        return Intent(self._waypoints[self._leg], np.asarray(self._width), self._speed)

    def _reached(self, world: int, view: View, solved: np.ndarray) -> bool:
        match self.subgoal:
            case SubGoal.EXPERT:
                return bool(solved[world])
            case SubGoal.OPEN | SubGoal.CLOSE:
                return abs(view.target[world, -1] - self._width) < 1e-3
        there = bool(
            np.linalg.norm(self._waypoints[self._leg, :3] - view.grasp_position[world]) < ARRIVED
        )
        if there and self._leg == 0:
            self._leg = 1
            return self.subgoal == SubGoal.MOVE
        return there

    def _choose(self, world: int, view: View, expert: Intent) -> None:
        rng, config = self.rng, self._config
        self.subgoal = SubGoal(int(rng.choice(len(SubGoal), p=self._weights)))
        self._left = max(1, round(rng.uniform(*config.duration) * self._rate))
        self._speed = float(rng.uniform(config.slowest, 1.0))
        self._leg = 0
        pose = view.grasp_pose[world].copy()
        thing, lies_free = self._thing(world, view, expert)
        first, last = pose[:3].copy(), pose[:3].copy()
        match self.subgoal:
            case SubGoal.MOVE:
                first = last = rng.uniform(self._low, self._high)
            case SubGoal.APPROACH:
                last = thing + rng.normal(0.0, config.spread, 3)
                first = last + np.array([0.0, 0.0, HOVER])
                # What lies free is there to be grasped, a handle to be hooked as well.
                self._width = self._open if lies_free or rng.random() < 0.5 else CLOSED
            case SubGoal.PUSH:
                angle = rng.uniform(-np.pi, np.pi)
                way = rng.uniform(0.06, 0.12) * np.array([np.cos(angle), np.sin(angle), 0.0])
                aimed = thing + rng.normal(0.0, config.spread, 3)
                first, last = aimed - way, aimed + way
                self._width = CLOSED
            case SubGoal.OPEN:
                self._width = self._open
            case SubGoal.CLOSE:
                self._width = CLOSED
        if self.subgoal in (SubGoal.MOVE, SubGoal.APPROACH, SubGoal.PUSH):
            # Tilted as the expert would, for that is how the tool is meant to be held; turned at
            # will.
            pose[3:5] = expert.pose[world, 3:5]
            pose[5] = np.clip(
                expert.pose[world, 5] + config.turn * rng.uniform(-1.0, 1.0), -1.5, 1.5
            )
        self._waypoints[:, 3:] = pose[3:]
        self._waypoints[0, :3] = np.clip(first, self._low, self._high)
        self._waypoints[1, :3] = np.clip(last, self._low, self._high)
        if self._flat:
            self._waypoints[:, 2] = view.grasp_position[world, 2]

    def _thing(self, world: int, view: View, expert: Intent) -> tuple[np.ndarray, bool]:
        """(3,) position of an object, and whether it lies free; else it is what task or expert
        name."""
        choice = int(self.rng.integers(len(self._objects) + 1))
        if choice < len(self._objects):
            return view.position(self._objects[choice])[world], True
        if self._named is not None:
            return self._named(view)[world], False
        return expert.pose[world, :3], True


def _record(
    task: Task,
    seeds: Sequence[int],
    out: Path,
    batch: int,
    worlds: MujocoConfig,
    labels: dict[str, FieldSpec],
    run: _ExpertBatch | _PlayBatch,
    progress: Progress,
) -> RecordedPlay:
    keys = np.asarray(seeds, dtype=np.int64)
    engine = MujocoEngine(task, min(batch, len(keys)), worlds)
    episodes = steps = solved = 0
    try:
        with EpisodeStore.create(out, _schema(engine, labels)) as store, store.writer() as writer:
            for first in range(0, len(keys), batch):
                part = keys[first : first + batch]
                if len(part) != engine.num_envs:
                    engine.close()
                    engine = MujocoEngine(task, len(part), worlds)
                rows = run(engine, part)
                steps += _append(writer, rows, part, run.source)
                episodes += int(rows.keep.sum())
                solved += int(rows.success.sum())
                progress(first + len(part), len(keys), f"{episodes} episodes kept")
    finally:
        engine.close()
    return RecordedPlay(episodes, steps, solved / len(keys))


def _schema(engine: MujocoEngine, labels: dict[str, FieldSpec]) -> EpisodeSchema:
    spec = engine.action_spec
    about = ", ".join(spec.names)
    fields = {
        **engine.observation_spec,
        "action": FieldSpec(shape=(spec.size,), unit=spec.unit, about=f"{spec.interface}: {about}"),
        "reward": FieldSpec(shape=(), about="that followed the action"),
        "success": FieldSpec(
            shape=(), dtype="uint8", about="1 where the task is solved behind the action"
        ),
        **labels,
    }
    return EpisodeSchema(
        name=engine.task.name,
        streams={STREAM: StreamSpec(rate_hz=engine.rate_hz, fields=fields)},
        robot=engine.task.robot.name,
    )


def _append(writer: EpisodeWriter, rows: _Rows, seeds: np.ndarray, source: str) -> int:
    """Hands the kept episodes in; returns their steps."""
    for i in np.flatnonzero(rows.keep):
        fields = {name: array[: rows.length[i], i] for name, array in rows.fields.items()}
        metadata = {"seed": int(seeds[i]), "success": bool(rows.success[i]), "source": source}
        writer.append({STREAM: fields}, metadata)
    return int(rows.length[rows.keep].sum())


def _shaken(intent: Intent, noise: float, rngs: Sequence[np.random.Generator]) -> Intent:
    """The intent with noise of `noise` [m] on its position, each world's from its own stream."""
    pose = np.array(intent.pose, dtype=np.float64)
    pose[:, :3] += noise * np.stack([rng.standard_normal(3) for rng in rngs])
    return intent._replace(pose=pose)


def _stacked(frames: Sequence[Observation]) -> dict[str, np.ndarray]:
    return {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}


def _check(seeds: Sequence[int], batch: int) -> None:
    if not len(seeds) or min(seeds) < 0 or len(set(seeds)) != len(seeds) or batch < 1:
        raise HandoffError(
            f"recording: seeds {list(seeds)[:8]} in batches of {batch}, expected different seeds >= 0, at least one, "
            "and batches of at least 1."
        )
