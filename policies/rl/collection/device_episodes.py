"""Runs the episodes of environments whose data stay on a device: initial states from consecutive
seeds, and shaped rewards.

Shape suffixes: N environments, H actions of a chunk, A action.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from policies.rl.collection.reward_shaping import RewardShaping


@runtime_checkable
class DeviceEnv(Protocol):
    """N environments whose observations, actions and rewards are tensors of one device, such as
    `sim.device.arm.DeviceArmEnv`."""

    num_envs: int
    device: torch.device
    rate_hz: float
    observation_spec: Any
    action_spec: Any

    @property
    def waiting(self) -> int:
        """Size of the pool of initial states drawn in advance."""
        ...

    def refill(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Replaces the used initial states by new ones; returns their observations."""
        ...

    def taken(self) -> int:
        """Initial states used since the last refill."""
        ...

    def begin(self, size: int = 1) -> None:
        """Resets all environments, each group of `size` neighbours to one initial state."""
        ...

    def reset_ended(self, ended_N: Tensor) -> None:
        """Resets the environments where `ended_N` is true, to the next initial states."""
        ...

    def observation(self) -> dict[str, Tensor]:
        """(N, ...) per field."""
        ...

    def step(self, action_NHA: Tensor) -> Any:
        """Executes a chunk; see `sim.device.arm.DeviceStep`."""
        ...

    def check(self) -> None:
        """Raises HandoffError if the simulation failed since the last call."""
        ...

    def save(self) -> dict[str, Any] | None:
        """Complete state on the host; None where it cannot be saved."""
        ...

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a state of `save`."""
        ...

    def close(self) -> None:
        """Frees the simulation's resources."""
        ...


class DeviceEpisodes:
    """Episodes of N environments on a device; only `prepare` copies anything to the host.

    Args:
        env: N environments that were not reset yet.
        seeds: seeds of the initial states, in the order in which they are drawn.
        reward_shaping: shaping on top of the task reward.
    """

    def __init__(self, env: DeviceEnv, seeds: Iterator[int], reward_shaping: RewardShaping) -> None:
        self._env = env
        self._seeds = seeds
        self._reward_shaping = reward_shaping
        self._pool_drawn = False
        self._last_reward_N = torch.full(
            (env.num_envs,), torch.nan, dtype=torch.float64, device=env.device
        )

    def prepare(self) -> dict[str, np.ndarray]:
        """Checks the simulation and replaces the initial states that were taken; call it before a
        rollout.

        Returns:
            Observations at the new initial states, per field; empty if there are none.

        Raises:
            HandoffError: the simulation failed, see `DeviceEnv.check`.
        """
        self._env.check()
        count = self._env.taken() if self._pool_drawn else self._env.waiting
        self._pool_drawn = True
        return self._env.refill(list(islice(self._seeds, count))) if count else {}

    def begin(self, size: int = 1) -> None:
        """Resets all environments; see `DeviceEnv.begin`."""
        self._env.begin(size)
        self._last_reward_N.fill_(torch.nan)

    def save(self) -> dict[str, Any] | None:
        """State of the environments and their episodes on the host; None where the environments
        cannot be saved."""
        state = self._env.save()
        return None if state is None else {"env": state, "reward": self._last_reward_N.cpu()}

    def restore(self, state: dict[str, Any]) -> None:
        """Continues from a state of `save`; the seeds go on where they were."""
        self._env.restore(state["env"])
        self._last_reward_N.copy_(state["reward"])
        self._pool_drawn = True

    def shaped_reward(
        self,
        task_reward_NH: Tensor,
        length_N: Tensor,
        success_N: Tensor,
        terminated_N: Tensor,
        truncated_N: Tensor,
    ) -> Tensor:
        """Computes `RewardShaping.shaped_reward` on the device, for consecutive chunks.

        Args:
            task_reward_NH: task reward of each action.
            length_N: executed actions of each chunk.
            success_N: bool, the chunk solved the task.
            terminated_N: bool, the task ended in this chunk.
            truncated_N: bool, the time limit ended the episode in this chunk.

        Returns:
            (N, H) float32; 0 for actions that were not executed.
        """
        shaping = self._reward_shaping
        number_H = torch.arange(task_reward_NH.shape[1], device=task_reward_NH.device)
        solved_N, failed_N = terminated_N & success_N, terminated_N & ~success_N
        ending_N = shaping.success * solved_N + shaping.failure * failed_N
        # An episode that begins has no progress in its first action.
        begin_N = torch.where(
            self._last_reward_N.isnan(), task_reward_NH[:, 0], self._last_reward_N
        )
        rise_NH = task_reward_NH.diff(dim=1, prepend=begin_N[:, None])
        shaped_NH = shaping.task * task_reward_NH + shaping.progress * rise_NH + shaping.step
        shaped_NH = shaped_NH + ending_N[:, None] * (number_H == length_N[:, None] - 1)
        last_N = task_reward_NH.gather(1, (length_N - 1).clamp(min=0)[:, None])[:, 0]
        self._last_reward_N = torch.where(
            terminated_N | truncated_N,
            torch.nan,
            torch.where(length_N > 0, last_N, self._last_reward_N),
        )
        return torch.where(number_H < length_N[:, None], shaped_NH, 0.0).float()
