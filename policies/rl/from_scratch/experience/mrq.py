"""Collects the steps of a run of MR.Q, and learns from them, on the host.

Shape suffixes: N environments, A action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from policies.random_streams import LearnerStream
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import MrqAlgorithm
from policies.rl.from_scratch.experience.host import HostSteps
from policies.rl.mrq.learner import Mrq
from policies.rl.mrq.updates import MrqUpdates
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.off_policy.online import OnlineProgress, alternate
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Sizes


class MrqExperience(HostSteps):
    """Environments, learner and prioritised replay buffer.

    Args:
        algorithm: the algorithm with its options.
        env: the environments.
        online: ratio of updates to steps.
        replay: capacity and returns of the replay buffer.
        seed: seed of weights, exploration and minibatches.
    """

    def __init__(
        self,
        algorithm: MrqAlgorithm,
        env: StateEnv,
        online: OnlineConfig,
        replay: ReplayConfig,
        seed: int,
    ) -> None:
        super().__init__(env)
        self._online = online
        self._seed = seed
        self._random_steps = 0
        sizes = Sizes(observation=env.entries, action=env.env.action_spec.size)
        self.learner = Mrq(algorithm.learner, sizes, env.num_envs, seed)
        self.replay = Replay(replay, sizes.observation, sizes.action)
        self._updates = MrqUpdates(self.learner, self.replay, online.batch_size, seed)

    def state_dict(self) -> dict[str, Any]:
        """State of the learner and of the priorities."""
        return self._updates.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self._updates.load_state_dict(state)

    def learn(
        self,
        steps: int,
        watch: Callable[[OnlineProgress, dict[str, Any]], None],
        done: OnlineProgress,
        random_steps: int,
    ) -> None:
        """Collects and learns up to `steps` steps; see `learn_online`."""
        self._random_steps = random_steps
        alternate(self._collected, self._updates, self._online, steps, watch, done)

    def _collected(self, done: int) -> int:
        env = self._env
        rng = np.random.default_rng([self._seed, LearnerStream.EXPLORATION, done])
        obs_NO = env.observation
        self.learner.observe(obs_NO, env.step_index == 0, rng)
        action_NA = self.learner.act(obs_NO, rng)
        if done < self._random_steps:
            action_NA = rng.uniform(-1.0, 1.0, action_NA.shape).astype(np.float32)
        self._updates.append(env.step(action_NA))
        return env.num_envs
