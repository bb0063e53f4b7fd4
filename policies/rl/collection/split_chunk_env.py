"""Splits chunk environments into parts that are stepped independently, with the results of one
`policies.rl.collection.chunk_env.ChunkEnv`.

Shape suffixes: N environments, T observed steps, O observation, R states, H horizon, A action, D
entries of the executed part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from policies.data.visited_states import most_states
from policies.policy import ChunkPolicy
from policies.rl.collection.chunk_env import ChunkEnv, group_seeds
from policies.rl.collection.device_chunk_env import DeviceChunkEnv
from policies.rl.collection.device_episodes import DeviceEnv
from policies.rl.collection.interfaces import DecisionEnv, StepResult
from policies.rl.collection.reward_shaping import RewardShaping
from robots.interfaces import SplitVecEnv, VecEnv


class ChunkEnvPart:
    """One part of the environments; its steps are started first and collected later.

    Args:
        chunk_env: environments of the part.
        vec_env: the environments below `chunk_env`, which are stepped asynchronously.
        first: index of the part's first environment among all environments.
        upcoming_seeds: returns the seeds of the next episodes of all parts without using them.
    """

    def __init__(
        self,
        chunk_env: ChunkEnv,
        vec_env: SplitVecEnv,
        first: int,
        upcoming_seeds: Callable[[], Sequence[int]],
    ) -> None:
        self.chunk_env = chunk_env
        self._vec_env = vec_env
        self._upcoming_seeds = upcoming_seeds
        self.rows = slice(first, first + vec_env.num_envs)
        """Indices of the part's environments among all environments."""

    def begin_step(self, decision: Tensor) -> None:
        """Starts executing a normalised chunk (n, H, A)."""
        # Where several processes share the seeds, none knows which the others use: then this
        # process resets the environments and waits for them.
        resets_ahead = self.chunk_env.auto_reset and self._vec_env.accepts_starts
        self._vec_env.send(
            self.chunk_env.actions(decision), self._upcoming_seeds() if resets_ahead else None
        )

    def end_step(self) -> StepResult:
        """Waits for the result; environments whose episode ended are reset."""
        return self.chunk_env.step_result(*self._vec_env.receive())

    def discard(self) -> None:
        """Drops a started step, when all episodes have ended."""
        self._vec_env.discard()


class SplitChunkEnv:
    """Implements `policies.rl.collection.interfaces.DecisionEnv`.

    Seeds are used in the order of the environments, as by one `ChunkEnv` over all of them.

    Args:
        env: environments in parts, which freeze when their episode ends.
        policy, n_action_steps, discount, reward_shaping: see `ChunkEnv`.
        seeds: see `ChunkEnv`; copies of it must yield the same seeds, because processes receive
            seeds before they are used.

    Raises:
        HandoffError: see `ChunkEnv`.
    """

    def __init__(
        self,
        env: SplitVecEnv,
        policy: ChunkPolicy,
        n_action_steps: int,
        seeds: Iterator[int],
        discount: float,
        reward_shaping: RewardShaping | None = None,
    ) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._seeds = seeds
        self.device = torch.device("cpu")
        self.parts: list[ChunkEnvPart] = []
        first = 0
        for part in env.parts:
            chunk_env = ChunkEnv(part, policy, n_action_steps, seeds, discount, reward_shaping)
            self.parts.append(ChunkEnvPart(chunk_env, part, first, self._upcoming_seeds))
            first += part.num_envs
        self.entries = self.parts[0].chunk_env.entries
        """D, entries of the executed part of a chunk."""

    def take_executed(self) -> int:
        """See `ChunkEnv.take_executed`."""
        return sum(part.chunk_env.take_executed() for part in self.parts)

    def prepare(self) -> None:
        """See `ChunkEnv.prepare`."""

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        for part in self.parts:
            part.chunk_env.begin()

    def begin_groups(self, size: int) -> None:
        """See `DecisionEnv.begin_groups`; a group may span several parts."""
        seeds = group_seeds(self._seeds, self.num_envs, size)
        for part in self.parts:
            part.chunk_env.begin_from(seeds[part.rows], auto_reset=False)

    def observation(self) -> Any:
        """(N, T, O) normalised history, or a TensorDict; see `ChunkEnv`."""
        return torch.cat([part.chunk_env.observation() for part in self.parts])

    def step(self, decision: Tensor) -> StepResult:
        """See `ChunkEnv.step`; steps all parts at once."""
        for part in self.parts:
            part.begin_step(decision[part.rows])
        return concatenate_results([part.end_step() for part in self.parts])

    def _upcoming_seeds(self) -> list[int]:
        return list(islice(copy.copy(self._seeds), self.num_envs))

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): the part of a chunk that is executed, flattened."""
        return self.parts[0].chunk_env.executed_part(chunk)

    def with_executed_part(self, chunk: Tensor, part: Tensor) -> Tensor:
        """See `DecisionEnv.with_executed_part`."""
        return self.parts[0].chunk_env.with_executed_part(chunk, part)

    def visited_states(self) -> Any:
        """(R, T, O) the most recent observations with a decision, normalised, in the order of all
        environments."""
        columns = [
            part.chunk_env.visited_states().split(part.chunk_env.num_envs) for part in self.parts
        ]
        rows = [torch.cat(row) for row in zip(*columns, strict=True)]
        # A part has fewer environments and therefore keeps more steps than are needed.
        max_rows = -(-most_states(rows[0]) // self.num_envs)
        return torch.cat(rows[-max_rows:])

    def state_dict(self) -> dict[str, Any]:
        """See `ChunkEnv.state_dict`."""
        return {"visited_states": self.visited_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ChunkEnv.load_state_dict`."""
        rows = state["visited_states"].split(self.num_envs)
        for part in self.parts:
            part.chunk_env.load_state_dict(
                {"visited_states": torch.cat([row[part.rows] for row in rows])}
            )


def make_chunk_env(
    env: VecEnv | DeviceEnv,
    policy: ChunkPolicy,
    n_action_steps: int,
    seeds: Iterator[int],
    discount: float,
    reward_shaping: RewardShaping | None = None,
) -> DecisionEnv:
    """Chunk environments over `env`: on its device, in its parts, or in one piece; see
    `ChunkEnv`."""
    if isinstance(env, DeviceEnv):
        return DeviceChunkEnv(env, policy, n_action_steps, seeds, discount, reward_shaping)
    if isinstance(env, SplitVecEnv) and len(env.parts) > 1:
        return SplitChunkEnv(env, policy, n_action_steps, seeds, discount, reward_shaping)
    return ChunkEnv(env, policy, n_action_steps, seeds, discount, reward_shaping)


def concatenate_results(parts: Sequence[StepResult]) -> StepResult:
    """The result of all environments from those of their parts."""
    columns: list[Any] = [
        None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)
    ]
    return StepResult(*columns)
