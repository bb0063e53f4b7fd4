"""Collects the steps of a run from a replay buffer, and learns from them, on the host.

Shape suffixes: N environments, O observation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import ReplayOptions
from policies.rl.from_scratch.learners import MinibatchAlgorithm, make_learner
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.off_policy.online import Learner, MinibatchSampler, OnlineProgress, learn_online
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Sizes
from robots.wire.steps import Steps


class HostSteps:
    """Environments of the host, of which every step is checked and counted as it is made.

    Args:
        env: the environments.
    """

    def __init__(self, env: StateEnv) -> None:
        self._env = env

    def begin(self) -> None:
        """Resets all environments."""
        self._env.begin()

    def resume(self) -> None:
        """Does nothing: restored environments go on, or have begun new episodes."""

    def look(self) -> None:
        """Does nothing: there is nothing left to check or count."""


class HostExperience(HostSteps):
    """Environments, learner and replay buffer on the host.

    Args:
        algorithm: the algorithm with its options.
        env: the environments.
        online: ratio of updates to steps.
        replay: capacity and returns of the replay buffer.
        seed: seed of weights, exploration and minibatches.
        demos: episodes of demonstrations; needed by RLPD alone.
    """

    def __init__(
        self,
        algorithm: MinibatchAlgorithm,
        env: StateEnv,
        online: OnlineConfig,
        replay: ReplayConfig,
        seed: int,
        demos: Sequence[Steps] = (),
    ) -> None:
        super().__init__(env)
        self._online = online
        self._seed = seed
        sizes = Sizes(observation=env.entries, action=env.env.action_spec.size)
        self.learner = make_learner(algorithm, sizes, env.num_envs, seed)
        self.replay = Replay(replay, sizes.observation, sizes.action)
        recorded = demo_replay(algorithm, demos, sizes) if demos else None
        self._batches = MinibatchSampler(online, self.replay, recorded)

    def state_dict(self) -> dict[str, Any]:
        """State of the learner."""
        return self.learner.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.learner.load_state_dict(state)

    def learn(
        self,
        steps: int,
        watch: Callable[[OnlineProgress, dict[str, Any]], None],
        done: OnlineProgress,
        random_steps: int,
    ) -> None:
        """Collects and learns up to `steps` steps; see `learn_online`."""
        learn_online(
            self.learner,
            self._batches,
            self._collect,
            self._online,
            steps,
            self._seed,
            watch,
            done,
            random_steps=random_steps,
        )

    def _collect(self, actor: Learner, rng: np.random.Generator) -> Steps:
        env = self._env
        obs_NO = env.observation
        self.learner.observe(obs_NO, env.step_index == 0, rng)
        return env.step(actor.act(obs_NO, rng))


def demo_replay(algorithm: ReplayOptions, demos: Sequence[Steps], sizes: Sizes) -> Replay:
    """Buffer that holds at least one episode of demonstrations, with the returns of the
    algorithm."""
    rows = sum(steps.rows for steps in demos)
    config = ReplayConfig(capacity=rows, discount=algorithm.discount, n_step=algorithm.n_step)
    replay = Replay(config, sizes.observation, sizes.action)
    for steps in demos:
        replay.append(steps)
    return replay
