"""ManiSkill's batch of worlds on a GPU, met there: observations, actions and rewards stay tensors
of its device.

As `sim.device.arm`, with ManiSkill's own physics, terms and starts. What comes to the host is which
worlds have ended, once per decision: ManiSkill begins worlds anew by their numbers, and draws those
it begins together from the seed of the first. It has run on a stand-in only, not on a GPU.

Shape suffixes: N worlds, H actions of a chunk, A action.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from robots.errors import HandoffError
from sim.device.arm import ResidentEpisodes
from sim.engines.maniskill import NO_LIMIT
from sim.engines.maniskill_task import (
    ManiSkillConfig,
    action_spec,
    environment_arguments,
    field_specs,
    find_task,
    make_environment,
    observed,
)


class ResidentManiSkill(ResidentEpisodes):
    """N worlds of one ManiSkill task in one batch.

    Args:
        task: registered id, such as `PickCube-v1`.
        num_envs: N.
        config: how; on physx_cuda.
        max_steps: time limit [control periods]; None takes the task's own.

    Raises:
        HandoffError: see `sim.engines.maniskill.ManiSkillEngine`; another backend, pictures, or
            several robots.
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
        self.action_spec, parts = action_spec(self.name, self._env)
        if parts or any(name.startswith("image_") for name in self.observation_spec):
            raise HandoffError(
                f"{self.name}: pictures or several robots, expected a state and one."
            )
        self.rate_hz = float(self._env.control_freq)
        self._seeds: list[int] = []
        self._shown: dict[str, Tensor] = {}

    @property
    def waiting(self) -> int:
        """Seeds of starts that are to wait."""
        return 4 * self.num_envs

    def refill(self, seeds: Sequence[int]) -> dict[str, np.ndarray]:
        """Takes seeds of the next starts; what these show is known when they begin."""
        self._seeds += list(seeds)
        return {}

    def taken(self) -> int:
        """Seeds used of those that are to wait."""
        return max(0, self.waiting - len(self._seeds))

    def begin(self, size: int = 1) -> None:
        """Begins in all worlds.

        Raises:
            HandoffError: several from one start, of which ManiSkill's batch knows nothing.
        """
        if size != 1:
            raise HandoffError(
                f"{self.name}: groups of {size} from one start, which ManiSkill's batch does not have."
            )
        self._begin(list(range(self.num_envs)), self._take(self.num_envs)[0])

    def begin_again(self, over_N: Tensor) -> None:
        """Begins anew where `over_N`, from the next seeds in the order of the worlds."""
        rows = torch.nonzero(over_N)[:, 0].tolist()
        if rows:
            self._begin(rows, self._take(len(rows))[0])

    def observation(self) -> dict[str, Tensor]:
        """See `ResidentEpisodes.observation`."""
        return dict(self._shown)

    def check(self) -> None:
        """See `ResidentWorlds.check`.

        Raises:
            HandoffError: numbers that are not finite.
        """
        broken = self._broke()
        if broken:
            raise HandoffError(
                f"{self.name}: worlds {broken[:8]} had actions or rewards that are not finite."
            )

    def close(self) -> None:
        """Frees ManiSkill's scene."""
        self._env.close()

    def _advance(self, action_NA: Tensor, running_N: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """See `ResidentEpisodes._advance`; the batch steps ended worlds too, unseen."""
        asked_NA = torch.where(running_N[:, None], action_NA.float(), 0.0)
        shown, reward_N, _, _, info = self._env.step(asked_NA)
        self._show(shown, running_N)
        never_N = torch.zeros_like(running_N)
        return (
            reward_N.double(),
            info.get("success", never_N).bool(),
            info.get("fail", never_N).bool(),
        )

    def _take(self, count: int) -> list[int]:
        if count > len(self._seeds):
            raise HandoffError(
                f"{self.name}: {count} worlds begin and {len(self._seeds)} seeds wait. More than four episodes of each "
                "world ended in one rollout: make it shorter."
            )
        taken, self._seeds = self._seeds[:count], self._seeds[count:]
        return taken

    def _begin(self, rows: list[int], seed: int) -> None:
        over_N = torch.zeros_like(self._ended)
        index = torch.tensor(rows, device=self.device)
        over_N[index] = True
        # All that is reset together is drawn from the first world's seed.
        shown, _ = self._env.reset(seed=[seed] * self.num_envs, options={"env_idx": index})
        self._steps[index], self._ended[index] = 0, False
        self._show(shown, over_N)

    def _show(self, shown: Any, rows_N: Tensor) -> None:
        """Keeps what `rows_N` show; the others stay as they were."""
        for field, fresh in observed(shown):
            mask = rows_N.reshape(-1, *[1] * (fresh.dim() - 1))
            seen: Tensor = fresh.float()
            self._shown[field] = torch.where(mask, seen, self._shown.get(field, seen))
