"""Worlds of chunks whose parts are stepped apart; together they are what
`policies.rl.collection.chunk_env.ChunkWorlds` is.

Shape suffixes: N worlds, T observed steps, O observation, R states, H horizon, A action, D entries
of the executed part.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from policies.data.visited_states import MOST
from policies.policy import ChunkPolicy
from policies.rl.collection.chunk_env import ChunkWorlds, group_seeds
from policies.rl.collection.device_chunk_env import ResidentChunkWorlds, StaysOnDevice
from policies.rl.collection.interfaces import Decided, DecisionEnv
from policies.rl.collection.reward_shaping import PracticeReward
from robots.interfaces import SplitVecEnv, VecEnv


class WorldsPart:
    """One part: its decisions are begun and, later, led to their ends.

    Args:
        worlds: of the part.
        env: the same, to be stepped apart.
        first: number of its first world in the whole.
        upcoming: seeds of the next episodes in all parts, not taken yet.
    """

    def __init__(
        self,
        worlds: ChunkWorlds,
        env: SplitVecEnv,
        first: int,
        upcoming: Callable[[], Sequence[int]],
    ) -> None:
        self.worlds = worlds
        self._env = env
        self._upcoming = upcoming
        self.rows = slice(first, first + env.num_envs)
        """In the whole."""

    def begin_step(self, decision: Tensor) -> None:
        """Sets its worlds going with a normalised chunk (n, H, A)."""
        # Several processes do not know of each other's ends: then it is this one that starts worlds
        # anew, and waits.
        ahead = self.worlds.begins_again and self._env.takes_starts
        self._env.send(self.worlds.actions(decision), self._upcoming() if ahead else None)

    def end_step(self) -> Decided:
        """Waits for what that led to; worlds that ended start anew."""
        return self.worlds.led(*self._env.receive())

    def discard(self) -> None:
        """Forgets what was begun: of worlds that have all ended."""
        self._env.discard()


class ChunkWorldsInParts:
    """Implements `policies.rl.collection.interfaces.DecisionEnv`.

    Seeds are taken in the order of the worlds, as they would be by one `ChunkWorlds` of all of
    them.

    Args:
        env: in parts; worlds that freeze when they end.
        policy, n_action_steps, discount, pays: see `ChunkWorlds`.
        seeds: likewise; a copy of it must go on as it does, for starts are told to the processes
            before they are taken.

    Raises:
        HandoffError: see `ChunkWorlds`.
    """

    def __init__(
        self,
        env: SplitVecEnv,
        policy: ChunkPolicy,
        n_action_steps: int,
        seeds: Iterator[int],
        discount: float,
        pays: PracticeReward | None = None,
    ) -> None:
        self.env = env
        self.num_envs = env.num_envs
        self._seeds = seeds
        self.device = torch.device("cpu")
        self.parts: list[WorldsPart] = []
        first = 0
        for part in env.parts:
            worlds = ChunkWorlds(part, policy, n_action_steps, seeds, discount, pays)
            self.parts.append(WorldsPart(worlds, part, first, self._upcoming))
            first += part.num_envs
        self.entries = self.parts[0].worlds.entries
        """D, of the executed part of a chunk."""

    def take_executed(self) -> int:
        """See `ChunkWorlds.take_executed`."""
        return sum(part.worlds.take_executed() for part in self.parts)

    def prepare(self) -> None:
        """See `ChunkWorlds.prepare`."""

    def begin(self) -> None:
        """See `RolloutEnv.begin`."""
        for part in self.parts:
            part.worlds.begin()

    def begin_groups(self, size: int) -> None:
        """See `ChunkWorlds.begin_groups`; a group may lie in several parts."""
        seeds = group_seeds(self._seeds, self.num_envs, size)
        for part in self.parts:
            part.worlds.begin_from(seeds[part.rows], again=False)

    def seen(self) -> Any:
        """(N, T, O) normalised; see `ChunkWorlds`."""
        return torch.cat([part.worlds.seen() for part in self.parts])

    def step(self, decision: Tensor) -> Decided:
        """See `ChunkWorlds.step`: all parts at once, and no deciding meanwhile."""
        for part in self.parts:
            part.begin_step(decision[part.rows])
        return joined_parts([part.end_step() for part in self.parts])

    def _upcoming(self) -> list[int]:
        return list(islice(copy.copy(self._seeds), self.num_envs))

    def executed_part(self, chunk: Tensor) -> Tensor:
        """(..., H, A) to (..., D): what a world sees of a chunk."""
        return self.parts[0].worlds.executed_part(chunk)

    def visited_states(self) -> Any:
        """(R, T, O) the newest states in which was decided, normalised, in the order of the
        whole."""
        columns = [part.worlds.visited_states().split(part.worlds.num_envs) for part in self.parts]
        rows = [torch.cat(row) for row in zip(*columns, strict=True)]
        # A part keeps longer than the whole would, for its rows are fewer.
        kept = -(-MOST // self.num_envs)
        return torch.cat(rows[-kept:])

    def state_dict(self) -> dict[str, Any]:
        """See `ChunkWorlds.state_dict`."""
        return {"met": self.visited_states()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `ChunkWorlds.load_state_dict`."""
        rows = state["met"].split(self.num_envs)
        for part in self.parts:
            part.worlds.load_state_dict({"met": torch.cat([row[part.rows] for row in rows])})


def worlds_of(
    env: VecEnv | StaysOnDevice,
    policy: ChunkPolicy,
    n_action_steps: int,
    seeds: Iterator[int],
    discount: float,
    pays: PracticeReward | None = None,
) -> DecisionEnv:
    """Worlds of chunks, in parts or on a device if `env` is; see `ChunkWorlds`."""
    if isinstance(env, StaysOnDevice):
        return ResidentChunkWorlds(env, policy, n_action_steps, seeds, discount, pays)
    if isinstance(env, SplitVecEnv) and len(env.parts) > 1:
        return ChunkWorldsInParts(env, policy, n_action_steps, seeds, discount, pays)
    return ChunkWorlds(env, policy, n_action_steps, seeds, discount, pays)


def joined_parts(parts: Sequence[Decided]) -> Decided:
    """What all worlds were led to, of what those of every part were."""
    columns: list[Any] = [
        None if column[0] is None else torch.cat(column) for column in zip(*parts, strict=True)
    ]
    return Decided(*columns)
