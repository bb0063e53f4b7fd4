"""Keeps ManiSkill's batch of environments on its GPU: observations, actions and rewards stay
tensors of that device.

It corresponds to `sim.device.arm`, with ManiSkill's own physics, terms and initial states. Only the
ids of ended environments are copied to the host, once per chunk: ManiSkill resets environments by
id, and draws all that are reset together from the first one's seed. It has been tested only with a
fake of ManiSkill, not on a GPU.

Shape suffixes: N environments, H actions of a chunk, A action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robots.errors import HandoffError
from sim.device.arm import DeviceVecEnv
from sim.engines.maniskill import NO_LIMIT
from sim.engines.maniskill_task import (
    ManiSkillConfig,
    action_spec,
    environment_arguments,
    field_specs,
    find_task,
    make_environment,
    observation_fields,
)


class DeviceManiSkillEnv(DeviceVecEnv):
    """N environments of one ManiSkill task in one batch.

    Args:
        task: registered id, such as `PickCube-v1`.
        num_envs: N.
        config: options of ManiSkill, with `sim_backend: physx_cuda`.
        max_steps: time limit [control periods]; None takes the task's own.

    Raises:
        HandoffError: another backend, image observations, several robots, or an error of
            `sim.engines.maniskill.ManiSkillEngine`.
    """

    def __init__(
        self, task: str, num_envs: int, config: ManiSkillConfig, max_steps: int | None = None
    ) -> None:
        self.name = f"resident maniskill {task}"
        if config.sim_backend != "physx_cuda":
            raise HandoffError(
                f"{self.name}: sim_backend '{config.sim_backend}', expected 'physx_cuda'."
            )
        make, limit = find_task(self.name, task)
        self._env = make_environment(self.name, make, environment_arguments(config, num_envs))
        super().__init__(num_envs, max_steps or limit or NO_LIMIT, torch.device(self._env.device))
        self.observation_spec = field_specs(self.name, self._env.get_obs(), num_envs)
        self.action_spec, robots = action_spec(self.name, self._env)
        if robots or any(name.startswith("image_") for name in self.observation_spec):
            raise HandoffError(
                f"{self.name}: image observations or several robots, expected state observations of one robot."
            )
        self.rate_hz = float(self._env.control_freq)
        self._seeds: list[int] = []
        self._observation: dict[str, Tensor] = {}

    @property
    def waiting(self) -> int:
        """Number of seeds in the pool."""
        return 4 * self.num_envs

    def refill(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Adds seeds of the next episodes; returns no observations, which are known only after a
        reset."""
        self._seeds += list(seeds)
        return {}

    def taken(self) -> int:
        """Number of seeds that are missing from the pool."""
        return max(0, self.waiting - len(self._seeds))

    def begin(self, size: int = 1) -> None:
        """Starts an episode in all environments.

        Raises:
            HandoffError: groups that share an initial state, which ManiSkill does not support.
        """
        if size != 1:
            raise HandoffError(
                f"{self.name}: groups of {size} environments with one initial state, which ManiSkill does not "
                "support. Use groups of 1."
            )
        self._begin(list(range(self.num_envs)), self._take(self.num_envs)[0])

    def reset_ended(self, ended_N: Tensor) -> None:
        """Starts an episode in the environments `ended_N` (bool), from the next seeds in the order
        of the environments."""
        rows = torch.nonzero(ended_N)[:, 0].tolist()
        if rows:
            self._begin(rows, self._take(len(rows))[0])

    def observation(self) -> dict[str, Tensor]:
        """See `DeviceVecEnv.observation`."""
        return dict(self._observation)

    def check(self) -> None:
        """See `DeviceArmEnv.check`.

        Raises:
            HandoffError: non-finite actions or rewards.
        """
        broken = self._pop_broken()
        if broken:
            raise HandoffError(
                f"{self.name}: environments {broken[:8]} had actions or rewards that are not finite."
            )

    def close(self) -> None:
        """Frees ManiSkill's scene."""
        self._env.close()

    def _advance(self, action_NA: Tensor, running_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `DeviceVecEnv._advance`; ended environments are stepped, too, but their observations
        are dropped."""
        masked_NA = torch.where(running_N[:, None], action_NA.float(), 0.0)
        observation, reward_N, _, _, info = self._env.step(masked_NA)
        self._update(observation, running_N)
        false_N = torch.zeros_like(running_N)
        return (
            reward_N.double(),
            info.get("success", false_N).bool(),
            info.get("fail", false_N).bool(),
        )

    def _take(self, count: int) -> list[int]:
        if count > len(self._seeds):
            raise HandoffError(
                f"{self.name}: {count} environments begin and {len(self._seeds)} seeds are left. More than four "
                "episodes of each environment ended in one rollout: make it shorter."
            )
        seeds = self._seeds[:count]
        self._seeds = self._seeds[count:]
        return seeds

    def _begin(self, rows: list[int], seed: int) -> None:
        reset_N = torch.zeros_like(self._ended)
        index = torch.tensor(rows, device=self.device)
        reset_N[index] = True
        # All environments that are reset together are drawn from the first one's seed.
        observation, _ = self._env.reset(seed=[seed] * self.num_envs, options={"env_idx": index})
        self._steps[index], self._ended[index] = 0, False
        self._update(observation, reset_N)

    def _update(self, observation: Any, rows_N: Tensor) -> None:
        """Updates the observations of `rows_N` (bool); the others stay unchanged."""
        for field, array in observation_fields(observation):
            mask = rows_N.reshape(-1, *[1] * (array.dim() - 1))
            new: Tensor = array.float()
            self._observation[field] = torch.where(mask, new, self._observation.get(field, new))
