"""Adapts environments whose data stay on a device to learners on observation vectors; a step never
copies to the host. Pictures enter the vector as features of a frozen network.

It does the work of `policies.rl.collection.state_env.StateEnv` and
`policies.rl.from_scratch.rollout_env.StateRolloutEnv` with tensors of the device.

Shape suffixes: N environments, O observation, A action.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from policies.rl.collection.device_episodes import DeviceEnv, DeviceEpisodes
from policies.rl.collection.episode_statistics import RECENT, EpisodeStatistics
from policies.rl.collection.interfaces import StepResult
from policies.rl.collection.reward_shaping import RewardShaping
from policies.rl.collection.state_env import check_actions, vector_entries, vector_fields
from robots.spec import FieldSpec

if TYPE_CHECKING:
    from policies.networks.images.picture_features import DevicePictureEncoder


class DeviceStateEnv:
    """Implements `policies.rl.collection.interfaces.RolloutEnv`.

    Args:
        env: N environments that were not reset yet, with actions in [-1, 1].
        fields: fields of the observation vector, in this order; empty takes all but images.
        seeds: episode seeds, in the order in which initial states are drawn.
        reward_shaping: shaping on top of the task reward.
        discount: discount per control period.
        pictures: encoder of the pictures, whose features follow the fields of the vector.

    Raises:
        HandoffError: fields that the environments do not have, or actions with other bounds.
    """

    cost_N = None
    """These environments report no costs."""

    def __init__(
        self,
        env: DeviceEnv,
        fields: Sequence[str],
        seeds: Iterator[int],
        reward_shaping: RewardShaping,
        discount: float,
        pictures: DevicePictureEncoder | None = None,
    ) -> None:
        self._pictures = pictures
        self.fields = vector_fields(env.observation_spec, fields)
        check_actions(env.action_spec)
        self.env = env
        self.num_envs = env.num_envs
        self.device = env.device
        self._episodes = DeviceEpisodes(env, seeds, reward_shaping)
        self._discount_N = torch.full((env.num_envs,), discount, device=env.device)
        self._obs_NO = torch.zeros((env.num_envs, 0), device=env.device)
        self.step_index = torch.zeros(env.num_envs, dtype=torch.int64, device=env.device)
        """(N,) indices of the next steps within the running episodes."""
        self.statistics = EpisodeStatistics(env.num_envs, keep=max(RECENT, env.num_envs))
        """Statistics, to which whoever collects adds every step; flush them before reading."""
        self.running = False
        """Whether `load_state_dict` restored running episodes."""

    @property
    def observation_spec(self) -> dict[str, FieldSpec]:
        """Fields of the observation vector, in their order."""
        return {name: self.env.observation_spec[name] for name in self.fields}

    @property
    def entries(self) -> int:
        """O, entries of the observation vector."""
        entries = vector_entries(self.observation_spec)
        return entries if self._pictures is None else entries + self._pictures.size

    def prepare(self) -> None:
        """Checks the simulation and refills the pool of initial states, before a rollout.

        Raises:
            HandoffError: the simulation failed, see `check`.
        """
        self._episodes.prepare()

    def check(self) -> None:
        """Checks the steps since the last call; copies a few numbers to the host.

        Raises:
            HandoffError: an action, reward or speed that is not finite, or another error of
                `DeviceEnv.check`.
        """
        self.env.check()

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        self.prepare()
        self._episodes.begin()
        self._obs_NO = self._vector(self.env.observation())
        self.step_index = torch.zeros_like(self.step_index)

    def observation(self) -> Tensor:
        """(N, O) current observation vectors in physical units."""
        return self._obs_NO

    def step(self, decision: Tensor) -> StepResult:
        """Executes actions (N, A), clipped to [-1, 1]; environments whose episode ends are reset to
        the next initial states."""
        result = self.env.step(decision.clamp(-1.0, 1.0)[:, None])
        terminated_N, truncated_N = result.terminated_N, result.truncated_N
        success_N = result.success_N
        reward_NH = self._episodes.shaped_reward(
            result.reward_NH, result.executed_N, success_N, terminated_N, truncated_N
        )
        final_NO = self._vector(result.observation)
        ended_N = terminated_N | truncated_N
        self.env.reset_ended(ended_N)
        self._obs_NO = self._vector(self.env.observation())
        self.step_index = torch.where(ended_N, 0, self.step_index + 1)
        return StepResult(
            reward_N=reward_NH[:, 0],
            discount_N=self._discount_N,
            terminated_N=terminated_N,
            truncated_N=truncated_N,
            final_obs=final_NO,
            success_N=success_N,
        )

    def take_costs(self) -> list[float]:
        """No costs; see `StateRolloutEnv.take_costs`."""
        return []

    def state_dict(self) -> dict[str, Any]:
        """Statistics, which were flushed, and the running episodes; `running` is None where the
        environments cannot be saved."""
        statistics = self.statistics
        ended = [[one.success, one.total_reward] for one in statistics.ended]
        sums, lengths = statistics.running_sums()
        return {
            "episodes": statistics.episodes,
            "recent": ended,
            "running": self._episodes.save(),
            "return": torch.from_numpy(sums),
            "length": torch.from_numpy(lengths),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores `state_dict`; call `begin` afterwards if nothing is `running`."""
        self.statistics.load_returns(state["episodes"], state["recent"])
        self.running = state["running"] is not None
        if not self.running:
            return
        self._episodes.restore(state["running"])
        self._obs_NO = self._vector(self.env.observation())
        self.statistics.resume_environments(
            state["return"].numpy().copy(), state["length"].numpy().copy()
        )
        self.step_index = state["length"].to(self.device)

    def _vector(self, fields: Mapping[str, Tensor]) -> Tensor:
        columns = [fields[name].float().reshape(self.num_envs, -1) for name in self.fields]
        if self._pictures is not None:
            columns.append(self._pictures(fields))
        return torch.cat(columns, dim=1)
