"""Collects the episodes of a run of CQN-AS, and learns from them and from demonstrations, on the
host.

Shape suffixes: N environments, A action.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from policies.random_streams import LearnerStream
from policies.rl.coarse_to_fine.learner import CqnAs
from policies.rl.coarse_to_fine.sequence_actor import EnsembledSequences
from policies.rl.coarse_to_fine.sequences import SequenceSampler
from policies.rl.collection.state_env import StateEnv
from policies.rl.from_scratch.config import CqnAsAlgorithm
from policies.rl.from_scratch.experience.host import HostSteps, demo_replay
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.off_policy.online import OnlineProgress, alternate
from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.transitions import Sizes
from policies.rl.replay.whole_episodes import WholeEpisodes
from robots.wire.steps import Steps


class CqnAsExperience(HostSteps):
    """Environments, learner, demonstrations, and a replay buffer of episodes that have ended.

    Args:
        algorithm: the algorithm with its options.
        env: the environments.
        online: ratio of updates to steps.
        replay: capacity and returns of the replay buffer.
        seed: seed of weights, exploration and minibatches.
        demos: episodes of demonstrations, at least one; those that did not end in success are
            learned from, and not imitated.
    """

    def __init__(
        self,
        algorithm: CqnAsAlgorithm,
        env: StateEnv,
        online: OnlineConfig,
        replay: ReplayConfig,
        seed: int,
        demos: Sequence[Steps],
    ) -> None:
        super().__init__(env)
        config = algorithm.learner
        self._online = online
        self._seed = seed
        self._random_steps = 0
        sizes = Sizes(observation=env.entries, action=env.env.action_spec.size)
        self.learner = CqnAs(config, sizes, seed)
        self.replay = Replay(replay, sizes.observation, sizes.action)
        self._sample = SequenceSampler(
            self.replay,
            demo_replay(algorithm, [_imitated_if_solved(steps) for steps in demos], sizes),
            algorithm.batch_size,
            algorithm.demo_share,
            config.horizon,
            self_imitation=config.self_imitation,
        )
        self._running = WholeEpisodes(env.num_envs)
        self._ensembled = EnsembledSequences(
            env.num_envs, config.horizon, sizes.action, config.temporal_ensemble
        )
        for steps in demos:
            self.learner.observe(steps.observation)

    def resume(self) -> None:
        """Forgets steps of episodes that environments which cannot be restored have abandoned."""
        self._running.abandon(self._env.step_index == 0)

    def state_dict(self) -> dict[str, Any]:
        """State of the learner, and of the running episodes."""
        return {
            "cqn_as": self.learner.state_dict(),
            "running": self._running.state_dict(),
            "sequences": self._ensembled.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.learner.load_state_dict(state["cqn_as"])
        self._running.load_state_dict(state["running"])
        self._ensembled.load_state_dict(state["sequences"])

    def learn(
        self,
        steps: int,
        watch: Callable[[OnlineProgress, dict[str, Any]], None],
        done: OnlineProgress,
        random_steps: int,
    ) -> None:
        """Collects and learns up to `steps` steps; see `learn_online`."""
        self._random_steps = random_steps
        alternate(self._collected, self._updated, self._online, steps, watch, done)

    def _collected(self, done: int) -> int:
        env, config = self._env, self.learner.config
        rng = np.random.default_rng([self._seed, LearnerStream.EXPLORATION, done])
        obs_NO = env.observation
        self.learner.observe(obs_NO)
        sequence_NKA = self.learner.act(obs_NO, rng)
        action_NA = self._ensembled(sequence_NKA, env.step_index == 0)
        noise_NA = config.noise * rng.standard_normal(action_NA.shape)
        action_NA = np.clip(action_NA + noise_NA, -1.0, 1.0).astype(np.float32)
        if done < self._random_steps:
            action_NA = rng.uniform(-1.0, 1.0, action_NA.shape).astype(np.float32)
        steps = env.step(action_NA)
        for episode in self._running.add(steps, env.success_N):
            self.replay.append(episode)
        return env.num_envs

    def _updated(self, number: int) -> dict[str, Any]:
        rng = np.random.default_rng([self._seed, LearnerStream.REPLAY, number])
        return self.learner.update(self._sample(rng))


def _imitated_if_solved(steps: Steps) -> Steps:
    # Of a demonstration only success terminates the task.
    return steps._replace(demo=np.full(steps.rows, steps.terminated.any()))
