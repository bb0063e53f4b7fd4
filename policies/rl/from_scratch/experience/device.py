"""Collects the steps of a run from a replay buffer, and learns from them, in environments that stay
on a device.

Environments, learner, replay buffer and random generator are on that device. Between two looks
nothing is copied from it to the host: no observation, reward, flag, minibatch or loss.

Shape suffixes: N environments, A action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from policies.random_streams import LearnerStream, sequence_seed
from policies.rl.from_scratch.config import FastTd3Algorithm, PqlAlgorithm
from policies.rl.from_scratch.device_env import DeviceStateEnv
from policies.rl.off_policy.config import OnlineConfig
from policies.rl.off_policy.device_fast_td3 import DeviceFastTd3
from policies.rl.off_policy.online import OnlineProgress, alternate
from policies.rl.replay.config import ReplayConfig
from policies.rl.replay.device_buffer import DeviceReplay, DeviceSteps
from policies.rl.replay.transitions import Sizes

LOOK_EVERY = 32
"""Collections between two looks, at which values are checked, episodes counted and starts drawn.
Four starts of every environment wait, so that they suffice for episodes of eight steps."""


class DeviceExperience:
    """Environments, learner and replay buffer on one device.

    Args:
        algorithm: FastTD3 or PQL with its options.
        env: the environments.
        online: ratio of updates to steps.
        replay: capacity and returns of the replay buffer.
        seed: seed of weights, exploration and minibatches.

    Raises:
        HandoffError: the device has no room for the replay buffer.
    """

    def __init__(
        self,
        algorithm: FastTd3Algorithm | PqlAlgorithm,
        env: DeviceStateEnv,
        online: OnlineConfig,
        replay: ReplayConfig,
        seed: int,
    ) -> None:
        self._env = env
        self._online = online
        self._seed = seed
        n, device = env.num_envs, env.device
        self._sizes = Sizes(observation=env.entries, action=env.env.action_spec.size)
        self.learner = DeviceFastTd3(algorithm.learner, self._sizes, n, seed, device)
        self.replay = DeviceReplay(replay, n, self._sizes.observation, self._sizes.action, device)
        self._generator = torch.Generator(device)
        self._random_steps = 0

    def begin(self) -> None:
        """Draws the first starts and resets all environments."""
        self._env.begin()

    def resume(self) -> None:
        """Begins new episodes where the environments could not be restored."""
        if not self._env.running:
            self._env.begin()

    def look(self) -> None:
        """Checks the values since the last look, counts the episodes that ended, and draws starts
        for those that were taken; waits for the device.

        Raises:
            HandoffError: the simulation failed, or values are not finite.
        """
        self._env.prepare()
        self.learner.check()
        self._env.statistics.flush()

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
        """Collects and learns up to `steps` steps; see `alternate`.

        Raises:
            HandoffError: see `look`.
        """
        self._random_steps = random_steps
        alternate(self._collected, self.update, self._online, steps, watch, done)

    def collect(self, done: int, *, random: bool = False) -> None:
        """Makes and stores one step of every environment.

        Args:
            done: number of steps before, which the random numbers depend on.
            random: whether actions are uniform in [-1, 1].
        """
        env, learner = self._env, self.learner
        generator = self._seeded(LearnerStream.EXPLORATION, done)
        obs_NO, number_N = env.observation(), env.step_index
        learner.observe(obs_NO, number_N == 0, generator)
        if random:
            shape = (env.num_envs, self._sizes.action)
            action_NA = 2.0 * torch.rand(shape, generator=generator, device=obs_NO.device) - 1.0
        else:
            action_NA = learner.act(obs_NO, generator)
        result = env.step(action_NA)
        env.statistics.add(result)
        self.replay.append(
            DeviceSteps(
                observation=obs_NO,
                next_observation=result.final_obs,
                action=action_NA,
                reward=result.reward_N,
                terminated=result.terminated_N,
                truncated=result.truncated_N,
                number=number_N,
            )
        )

    def update(self, number: int) -> dict[str, Any]:
        """Makes an update, whose random numbers depend on its number; returns metrics, which stay
        on the device."""
        generator = self._seeded(LearnerStream.REPLAY, number)
        return self.learner.update([self.replay.sample(self._online.batch_size, generator)])

    def _collected(self, done: int) -> int:
        num_envs = self._env.num_envs
        if done // num_envs % LOOK_EVERY == 0:
            self.look()
        self.collect(done, random=done < self._random_steps)
        return num_envs

    def _seeded(self, stream: LearnerStream, number: int) -> torch.Generator:
        return self._generator.manual_seed(sequence_seed(self._seed, stream, number))
