"""Records task-independent play into an `EpisodeStore`.

Play is meant as in Lynch et al. (arXiv 1903.01973) and CALVIN (arXiv 2112.03227): one sub-goal
after another, independent of the task, without resets for a long time. A person's curiosity is
replaced by a random choice among moving to a point, approaching an object, pushing it, opening,
closing, and following the task's expert for a while.

Frame t of an episode holds observation t, the action taken after it, the reward that followed, and
whether the task was solved then. Every environment has its own random stream, keyed by its seed, so
an episode does not depend on the others of its batch.
"""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from functools import partial
from pathlib import Path

import numpy as np

from robots.control.actions import CartesianDelta
from robots.errors import HandoffError
from robots.interfaces import Observation, Progress, no_progress
from robots.spec import ActionSpec, FieldSpec
from sim.engines.mujoco import MujocoEngine
from sim.episode_streams import EpisodeStream
from sim.recording.batches import (
    EpisodeBatch,
    RecordingSummary,
    check_seeds,
    record,
    stack_frames,
    with_noise,
)
from sim.recording.config import PlayConfig
from sim.scene.view import View
from sim.tasks.task import CLOSED, ExpertTarget, Task

ARRIVED = 0.015
"""Maximum distance from a waypoint at which it is reached [m]."""
HOVER = 0.07
"""Height above an object from which it is approached [m]."""


class SubGoal(IntEnum):
    """Sub-goals of play, recorded as the field `subgoal`."""

    MOVE = 0
    """Moves to a random point of the workspace, with the gripper unchanged."""
    APPROACH = 1
    """Moves to an object from above, with the gripper open."""
    PUSH = 2
    """Moves through an object, with the gripper closed."""
    OPEN = 3
    CLOSE = 4
    EXPERT = 5
    """Follows the task's expert."""


def play(
    task: Task,
    seeds: Sequence[int],
    out: Path,
    config: PlayConfig | None = None,
    progress: Progress = no_progress,
) -> RecordingSummary:
    """Records one episode of play per seed in the store at `out`.

    An episode is shorter than `config.steps` only if the task has failed unrecoverably. Metadata:
    `seed`, `success`, `source`.

    Args:
        task: the task whose scene is used.
        seeds: seeds of the initial states and of play.
        out: missing folder, or the store of an interrupted call, which is continued.
        config: settings of the recording.
        progress: counts episodes.

    Raises:
        HandoffError: no seeds, invalid weights or durations, or an error of the engine or the
            store.
    """
    config = config or PlayConfig()
    check_seeds(seeds, config.batch)
    if min(config.weights) < 0.0 or sum(config.weights) <= 0.0 or config.steps < 1:
        raise HandoffError(
            f"play: weights {config.weights} and {config.steps} steps, expected no negative weight, at least one "
            "positive weight, and at least 1 step."
        )
    if not 0.0 < config.duration[0] <= config.duration[1]:
        raise HandoffError(f"play: duration {config.duration} s, expected 0 < minimum <= maximum.")
    make = partial(MujocoEngine, task, config=config.mujoco)
    return record(make, seeds, out, config.batch, _PlayBatch(config), progress)


class _PlayBatch:
    source = "play"

    def __init__(self, config: PlayConfig) -> None:
        self.config = config

    def labels(self, action: ActionSpec) -> dict[str, FieldSpec]:
        """See `BatchRecorder.labels`."""
        names = ", ".join(f"{g.value} {g.name}" for g in SubGoal)
        return {"subgoal": FieldSpec(shape=(), dtype="int32", about=f"sub-goal: {names}")}

    def __call__(self, engine: MujocoEngine, seeds: np.ndarray) -> EpisodeBatch:
        n = len(seeds)
        engine.reset(np.arange(n), seeds)
        players = [
            _Player(self.config, engine, np.random.default_rng([seed, EpisodeStream.RECORDING]))
            for seed in seeds
        ]
        rngs = [player.rng for player in players]
        state = engine.read()
        frames: list[Observation] = []
        running, length = np.ones(n, dtype=bool), np.zeros(n, dtype=np.int64)
        success = np.zeros(n, dtype=bool)
        while running.any() and len(frames) < self.config.steps:
            # Every environment pursues its own sub-goal.
            view = engine.view
            expert = engine.task.expert(view)
            targets = [
                player.target(i, view, expert, state.success) for i, player in enumerate(players)
            ]
            target = ExpertTarget(
                *(
                    np.stack([np.asarray(value) for value in column])
                    for column in zip(*targets, strict=True)
                )
            )
            action = engine.to_action(with_noise(target, self.config.noise, rngs))
            engine.step(action, running)
            next_state = engine.read()
            frames.append(
                {
                    **state.observation,
                    "action": action,
                    "reward": next_state.reward,
                    "success": next_state.success.astype(np.uint8),
                    "subgoal": np.array([player.subgoal for player in players], dtype=np.int32),
                }
            )
            length += running
            success |= next_state.success & running
            # Environments whose task has failed stop; success does not end play.
            running &= ~(next_state.terminated & ~next_state.success)
            state = next_state
        return EpisodeBatch(stack_frames(frames), length, success, np.ones(n, dtype=bool))


class _Player:
    """Sub-goal and waypoints of one environment's play."""

    def __init__(self, config: PlayConfig, engine: MujocoEngine, rng: np.random.Generator) -> None:
        model, task = engine.model, engine.task
        self.rng = rng
        self._config = config
        self._rate = engine.rate_hz
        self._interaction_point = task.interaction_point
        self._objects = [model.joint(i).name for i in range(model.njnt) if model.jnt_type[i] == 0]
        space = task.actions if isinstance(task.actions, CartesianDelta) else CartesianDelta()
        self._low = np.array(space.low)
        self._high = np.array(space.high)
        # A tool that cannot change its height keeps it, otherwise it could not reach a waypoint.
        self._flat = not isinstance(task.actions, CartesianDelta) or "z" not in task.actions.axes
        weights = np.array(config.weights)
        if not engine.use_gripper:
            weights[[SubGoal.OPEN, SubGoal.CLOSE]] = 0.0
        if weights.sum() <= 0.0:
            raise HandoffError(
                f"play: {task.name} has no gripper to open or close, and no other sub-goal has a weight."
            )
        self._weights = weights / weights.sum()
        self.subgoal = SubGoal.MOVE
        self._steps_left = 0
        self._waypoint_index = 0
        self._waypoints = np.zeros((2, 6))
        self._open = task.robot.gripper.width_max
        self._width = self._open
        self._speed = 1.0

    def target(
        self, env_id: int, view: View, expert: ExpertTarget, solved: np.ndarray
    ) -> ExpertTarget:
        """Target of environment `env_id` with shapes (6,), () and (); the sub-goal `EXPERT` ends
        when it is `solved` (N,)."""
        if self._steps_left == 0 or self._reached(env_id, view, solved):
            self._begin_subgoal(env_id, view, expert)
        self._steps_left -= 1
        if self.subgoal == SubGoal.EXPERT:
            self._width = float(expert.width[env_id])
            return ExpertTarget(expert.pose[env_id], np.asarray(self._width), self._speed)
        return ExpertTarget(
            self._waypoints[self._waypoint_index], np.asarray(self._width), self._speed
        )

    def _reached(self, env_id: int, view: View, solved: np.ndarray) -> bool:
        match self.subgoal:
            case SubGoal.EXPERT:
                return bool(solved[env_id])
            case SubGoal.OPEN | SubGoal.CLOSE:
                return abs(view.target[env_id, -1] - self._width) < 1e-3
        there = bool(
            np.linalg.norm(self._waypoints[self._waypoint_index, :3] - view.grasp_position[env_id])
            < ARRIVED
        )
        if there and self._waypoint_index == 0:
            self._waypoint_index = 1
            return self.subgoal == SubGoal.MOVE
        return there

    def _begin_subgoal(self, env_id: int, view: View, expert: ExpertTarget) -> None:
        """Draws the next sub-goal with its time limit, speed, waypoints and opening."""
        rng, config = self.rng, self._config
        self.subgoal = SubGoal(int(rng.choice(len(SubGoal), p=self._weights)))
        self._steps_left = max(1, round(rng.uniform(*config.duration) * self._rate))
        self._speed = float(rng.uniform(config.slowest, 1.0))
        self._waypoint_index = 0
        pose = view.grasp_pose[env_id].copy()
        point, graspable = self._draw_object(env_id, view, expert)
        first, last = pose[:3].copy(), pose[:3].copy()
        match self.subgoal:
            case SubGoal.MOVE:
                first = last = rng.uniform(self._low, self._high)
            case SubGoal.APPROACH:
                last = point + rng.normal(0.0, config.spread, 3)
                first = last + np.array([0.0, 0.0, HOVER])
                # Free objects are grasped; a handle can also be hooked with a closed gripper.
                self._width = self._open if graspable or rng.random() < 0.5 else CLOSED
            case SubGoal.PUSH:
                angle = rng.uniform(-np.pi, np.pi)
                push = rng.uniform(0.06, 0.12) * np.array([np.cos(angle), np.sin(angle), 0.0])
                contact = point + rng.normal(0.0, config.spread, 3)
                first, last = contact - push, contact + push
                self._width = CLOSED
            case SubGoal.OPEN:
                self._width = self._open
            case SubGoal.CLOSE:
                self._width = CLOSED
        if self.subgoal in (SubGoal.MOVE, SubGoal.APPROACH, SubGoal.PUSH):
            # The tilt is the expert's, the proper orientation of the tool; the yaw is random.
            pose[3:5] = expert.pose[env_id, 3:5]
            pose[5] = np.clip(
                expert.pose[env_id, 5] + config.turn * rng.uniform(-1.0, 1.0), -1.5, 1.5
            )
        self._waypoints[:, 3:] = pose[3:]
        self._waypoints[0, :3] = np.clip(first, self._low, self._high)
        self._waypoints[1, :3] = np.clip(last, self._low, self._high)
        if self._flat:
            self._waypoints[:, 2] = view.grasp_position[env_id, 2]

    def _draw_object(
        self, env_id: int, view: View, expert: ExpertTarget
    ) -> tuple[np.ndarray, bool]:
        """Draws the position (3,) of an object, and whether it is graspable; besides the free
        objects it may be the task's interaction point or the expert's target."""
        choice = int(self.rng.integers(len(self._objects) + 1))
        if choice < len(self._objects):
            return view.position(self._objects[choice])[env_id], True
        if self._interaction_point is not None:
            return self._interaction_point(view)[env_id], False
        return expert.pose[env_id, :3], True
