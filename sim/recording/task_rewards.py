"""Computes the reward of a simulated task for recorded episodes, by playing the recorded actions
again from the recorded seeds.

The simulation repeats itself, so that the replayed observations agree with the recorded ones; where
they do not, the store was recorded with other options, or not in this simulation, and is refused.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from sim.engines.mujoco import MujocoEngine
from sim.make import find_task
from sim.recording.config import TaskRewardConfig
from sim.tasks.task import at_rate
from sim.vec_env import EngineVecEnv, VecEnvConfig


class ReplayedRewards(NamedTuple):
    """Rewards and successes of one episode of T steps."""

    reward_T: np.ndarray
    """Reward of the task after each action, float32."""
    solved_T: np.ndarray
    """Whether the task was solved after each action, bool."""


class TaskRewards:
    """Replays episodes of one store.

    Args:
        config: options of the engine and tolerance.
        store: recorded episodes, whose schema names the task and the robot.
        stream: stream of the steps.

    Raises:
        HandoffError: the store's task or robot is none of the simulation.
    """

    def __init__(self, config: TaskRewardConfig, store: EpisodeStore, stream: str) -> None:
        self._tolerance = config.tolerance
        self._store = store
        self._stream = stream
        schema = store.schema
        task = (
            find_task(schema.name, robot=schema.robot) if schema.robot else find_task(schema.name)
        )
        self._engine = MujocoEngine(at_rate(task, schema.stream(stream).rate_hz), 1, config.mujoco)

    def __call__(self, episode: int) -> ReplayedRewards:
        """Rewards of an episode.

        Raises:
            HandoffError: the episode has no seed, or its observations are not repeated.
        """
        metadata = self._store.metadata(episode)
        if "seed" not in metadata:
            raise HandoffError(
                f"{self._store.path}: episode {episode} has no metadata 'seed', which its simulation starts from. Take "
                "its reward from a classifier or from images and text."
            )
        env = EngineVecEnv(self._engine, VecEnvConfig(on_end="freeze"))
        rows = self._store.read(episode, self._stream)
        observation = env.reset([int(metadata["seed"])])
        reward, solved = [], []
        for step, action in enumerate(rows["action"]):
            for name in observation.keys() & rows.keys():
                self._check(episode, step, name, rows[name][step], observation[name][0])
            result = env.step(action[None])
            reward.append(float(result.reward[0]))
            solved.append(bool(result.info["success"][0]))
            observation = result.observation
        return ReplayedRewards(np.array(reward, np.float32), np.array(solved))

    def close(self) -> None:
        """Releases the engine."""
        self._engine.close()

    def _check(
        self, episode: int, step: int, name: str, recorded: np.ndarray, replayed: np.ndarray
    ) -> None:
        difference = np.abs(recorded.astype(np.float64) - replayed.astype(np.float64)).max()
        if difference > self._tolerance:
            raise HandoffError(
                f"{self._store.path}: episode {episode} differs from its replay by {difference:.3g} in '{name}' at "
                f"step {step}, expected at most {self._tolerance:g}. Was it recorded with randomisation, by another "
                "engine, or on a robot?"
            )
