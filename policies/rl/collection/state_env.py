"""Adapts simulated environments to learners on observation vectors: single actions in, steps out,
with a state for resumed runs. Pictures enter the vector as features of a frozen network.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from policies.rl.collection.episode_statistics import RECENT, EpisodeStatistics
from policies.rl.collection.reward_shaping import RewardShaping, last_task_reward
from robots.errors import HandoffError
from robots.interfaces import EnvState, Observation, VecEnv
from robots.spec import ActionSpec, FieldSpec
from robots.wire.steps import Steps, plain_steps

if TYPE_CHECKING:
    from policies.networks.images.picture_features import PictureEncoder


def vector_fields(spec: Mapping[str, FieldSpec], fields: Sequence[str]) -> tuple[str, ...]:
    """Names of the fields of the observation vector.

    Args:
        spec: all fields of the environments.
        fields: the configured ones, in order; empty takes all but images.

    Raises:
        HandoffError: fields that the environments do not have, none, or a camera.
    """
    names = tuple(fields) or tuple(name for name, field in spec.items() if field.unit != "u8")
    missing = [name for name in names if name not in spec]
    if missing or not names:
        raise HandoffError(
            f"environments: fields {missing} are configured, available are {sorted(spec)}."
        )
    cameras = [name for name in names if spec[name].unit == "u8"]
    if cameras:
        raise HandoffError(
            f"environments: the fields {cameras} are pictures, expected vectors. List cameras under image_fields."
        )
    return names


def vector_entries(spec: Mapping[str, FieldSpec]) -> int:
    """Number of entries of the observation vector of the fields `spec`."""
    return sum(prod(field.shape) for field in spec.values())


def check_actions(spec: ActionSpec) -> None:
    """Checks that actions are normalised.

    Raises:
        HandoffError: an entry that does not range from -1 to 1.
    """
    if set(spec.low) != {-1.0} or set(spec.high) != {1.0}:
        raise HandoffError(
            f"environments: actions range from {spec.low} to {spec.high}, expected -1 to 1 in every entry. Does "
            "the task offer a normalised action space?"
        )


class StateEnv:
    """N environments that are reset as soon as their episode ends, each time with the next seed.

    Args:
        env: environments that freeze when their episode ends, with actions in [-1, 1].
        fields: fields of the observation vector, in this order; empty takes all but images.
        seeds: episode seeds, in the order in which episodes begin.
        reward_shaping: shaping on top of the task reward.
        pictures: encoder of the pictures, whose features follow the fields of the vector.

    Raises:
        HandoffError: fields that the environments do not have, or actions with other bounds.
    """

    def __init__(
        self,
        env: VecEnv,
        fields: Sequence[str],
        seeds: Iterator[int],
        reward_shaping: RewardShaping,
        pictures: PictureEncoder | None = None,
    ) -> None:
        self._pictures = pictures
        self.fields = vector_fields(env.observation_spec, fields)
        check_actions(env.action_spec)
        self.env = env
        self.num_envs = env.num_envs
        self._seeds = seeds
        self._reward_shaping = reward_shaping
        n = env.num_envs
        self.episode = np.arange(n)
        self.step_index = np.zeros(n, np.int64)
        """(N,) indices of the next steps within the running episodes; `episode` has their
        numbers."""
        self._started = 0
        self.statistics = EpisodeStatistics(n, keep=max(RECENT, n))
        """Counts every step immediately; nothing needs flushing."""
        self._last_reward_N = np.full(n, np.nan)
        """Latest task reward of the running episodes; NaN before their first action."""
        self.success_N = np.zeros(n, bool)
        """(N,) whether the last step solved the task."""
        self.cost_N: np.ndarray | None = None
        """(N,) costs of the last step; None where the environments report none."""
        self._obs = np.zeros((n, 0), np.float32)

    @property
    def observation_spec(self) -> dict[str, FieldSpec]:
        """Fields of the observation vector, in their order."""
        return {name: self.env.observation_spec[name] for name in self.fields}

    @property
    def entries(self) -> int:
        """O, entries of the observation vector."""
        entries = vector_entries(self.observation_spec)
        return entries if self._pictures is None else entries + self._pictures.size

    @property
    def observation(self) -> np.ndarray:
        """(N, O) float32 current observations."""
        return self._obs

    def begin(self) -> None:
        """Abandons the running episodes and resets all environments."""
        n = self.num_envs
        self._obs = self._vector(self.env.reset([next(self._seeds) for _ in range(n)]))
        self.episode = self._started + np.arange(n)
        self.step_index = np.zeros(n, np.int64)
        self._started += n
        self.statistics.begin()
        self._last_reward_N = np.full(n, np.nan)

    def step(self, action_NA: np.ndarray) -> Steps:
        """Steps all environments with actions in [-1, 1]; those whose episode ends are reset.

        Raises:
            HandoffError: a reward that is not finite.
        """
        obs_NO = self._obs
        episode_N = self.episode.copy()
        step_index_N = self.step_index.copy()
        result = self.env.step(action_NA.astype(np.float64))
        ended_N = result.terminated | result.truncated
        success_N = np.asarray(result.info["success"], bool)
        solved_N, failed_N = result.terminated & success_N, result.terminated & ~success_N
        task_reward_N1 = np.asarray(result.reward, np.float32)[:, None]
        single_N = np.ones(self.num_envs, np.int64)
        reward_N = self._reward_shaping.shaped_reward(
            task_reward_N1, single_N, solved_N, failed_N, self._last_reward_N
        )[:, 0]
        if not np.isfinite(reward_N).all():
            env_id = int(np.flatnonzero(~np.isfinite(reward_N))[0])
            raise HandoffError(
                f"environments: the reward of environment {env_id} is {reward_N[env_id]}, expected a finite number."
            )
        # `Step` may share arrays with the environments, which the reset below overwrites.
        final_NO = self._vector(result.final_observation).copy()
        self._last_reward_N = last_task_reward(
            task_reward_N1, single_N, self._last_reward_N, ended_N
        )
        self.success_N = success_N
        cost = result.info.get("cost")
        self.cost_N = None if cost is None else np.asarray(cost, np.float64)
        self.statistics.count(reward_N, ended_N, success_N, cost_N=self.cost_N)
        self.step_index += 1
        rows = np.flatnonzero(ended_N)
        terminated_N, truncated_N = result.terminated.copy(), result.truncated.copy()
        self._obs = self._reset_ended(rows, final_NO) if len(rows) else final_NO
        return plain_steps(
            episode_N,
            step_index_N,
            obs_NO,
            action_NA,
            reward_N,
            final_NO,
            terminated_N,
            truncated_N,
        )

    def state_dict(self) -> dict[str, Any]:
        """State that the next step depends on, without the seeds; `env` is None where the
        environments cannot be saved."""
        try:
            state: EnvState | None = self.env.save()
        except HandoffError:
            state = None
        return {
            "env": None
            if state is None
            else {name: torch.from_numpy(np.array(one)) for name, one in state.items()},
            "episode": torch.from_numpy(self.episode.copy()),
            "number": torch.from_numpy(self.step_index.copy()),
            "return": torch.from_numpy(self.statistics.return_N.copy()),
            "cost": torch.from_numpy(self.statistics.cost_N.copy()),
            "task_reward": torch.from_numpy(self._last_reward_N.copy()),
            "counts": [self.statistics.episodes, self._started],
            "recent": [[one.success, one.total_reward, one.cost] for one in self.statistics.ended],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`; environments that cannot be restored begin new episodes."""
        episodes, self._started = state["counts"]
        self.statistics.load_returns(episodes, state["recent"])
        if state["env"] is None:
            self.begin()
            return
        # Restoring needs environments that were reset before.
        self.env.reset([0] * self.num_envs)
        observation = self.env.restore(
            {name: array.numpy() for name, array in state["env"].items()}
        )
        self._obs = self._vector(observation)
        self.episode = state["episode"].numpy().copy()
        self.step_index = state["number"].numpy().copy()
        self.statistics.resume_environments(
            state["return"].numpy().copy(), self.step_index.copy(), state["cost"].numpy().copy()
        )
        self._last_reward_N = state["task_reward"].numpy().copy()

    def _reset_ended(self, rows: np.ndarray, final_NO: np.ndarray) -> np.ndarray:
        observation = self.env.reset([next(self._seeds) for _ in rows], rows.tolist())
        self.episode[rows] = self._started + np.arange(len(rows))
        self._started += len(rows)
        self.step_index[rows] = 0
        # The environments that go on keep their observations; their pictures are encoded already.
        obs_NO = final_NO.copy()
        obs_NO[rows] = self._vector({name: array[rows] for name, array in observation.items()})
        return obs_NO

    def _vector(self, observation: Observation) -> np.ndarray:
        columns = [
            np.asarray(observation[name], np.float32).reshape(len(observation[name]), -1)
            for name in self.fields
        ]
        columns += [] if self._pictures is None else [self._pictures(observation)]
        return np.concatenate(columns, axis=1)
