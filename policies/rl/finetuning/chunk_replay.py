"""Stores visited states with the chunks that the policy sampled there, and the transitions between
them.

The N sampled chunks are stored with every state, so a Bellman target needs no sampling.

Shape suffixes: R rows, B batch, T observed steps, O observation, N chunks, H horizon, A action.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from policies.rl.collection.episode_statistics import EpisodeStatistics
from policies.rl.collection.interfaces import DecisionEnv, StepResult
from policies.rl.offline.offline_dataset import OfflineDataset
from robots.errors import HandoffError

ROLLOUTS = "experience"
"""Folder with one file per rollout."""


class ChunkCandidates(NamedTuple):
    """States with N sampled chunks each, and the chunk that was executed there."""

    obs: Tensor
    """(R, T, O) normalised observations."""
    chunk_RNHA: Tensor
    """float16, normalised chunks."""
    executed_RHA: Tensor
    """float16, the executed chunk; 0 for a state that is only a next state."""
    acted_R: Tensor
    """bool, False for a state that is only a next state."""
    reward_R: Tensor
    discount_R: Tensor
    """g^length; 0 where the task ended."""
    next_R: Tensor
    """int64, row of the next state."""


class ChunkTransitionBatch(NamedTuple):
    """B transitions with the chunks that the policy sampled before and after them."""

    obs: Tensor
    """(B, T, O)"""
    executed_BHA: Tensor
    reward_B: Tensor
    discount_B: Tensor
    next_obs: Tensor
    """(B, T, O)"""
    chunk_BNHA: Tensor
    """Chunks sampled at `obs`."""
    next_chunk_BNHA: Tensor
    """Chunks sampled at `next_obs`."""


class ChunkReplay:
    """All rollouts as one table, whose capacity doubles when it is full."""

    def __init__(self) -> None:
        self._ends = [0]
        self._buffer: ChunkCandidates | None = None
        self._saved = 0
        self.acted = torch.zeros(0, dtype=torch.int64)
        """Rows in which a chunk was executed."""

    @property
    def table(self) -> ChunkCandidates:
        """All rows."""
        return self._rows(0, self._ends[-1])

    @property
    def rollouts(self) -> int:
        """Number of rollouts."""
        return len(self._ends) - 1

    def add(self, rollout: ChunkCandidates) -> None:
        """Appends a rollout whose `next_R` counts from its own first row."""
        begin, end = self._ends[-1], self._ends[-1] + len(rollout.reward_R)
        if self._buffer is None or end > len(self._buffer.reward_R):
            larger = ChunkCandidates(
                *(column.new_zeros((2 * end, *column.shape[1:])) for column in rollout)
            )
            if self._buffer is not None:
                for new, old in zip(larger, self._buffer, strict=True):
                    new[:begin] = old[:begin]
            self._buffer = larger
        self._ends.append(end)
        for target, column in zip(
            self._rows(begin, end), rollout._replace(next_R=rollout.next_R + begin), strict=True
        ):
            target.copy_(column)
        self.acted = torch.cat([self.acted, begin + torch.nonzero(rollout.acted_R)[:, 0]])

    def rows_since(self, number: int) -> Tensor:
        """The rows of `acted` from rollout `number` on."""
        return self.acted[self.acted >= self._ends[number]]

    def sample(self, rows: int, generator: torch.Generator) -> Tensor:
        """(rows,) random rows in which a chunk was executed, with replacement."""
        return self.acted[torch.randint(len(self.acted), (rows,), generator=generator)]

    def transitions(self, row_B: Tensor) -> ChunkTransitionBatch:
        """The transitions that begin in these rows."""
        table = self.table
        next_B = table.next_R[row_B]
        return ChunkTransitionBatch(
            obs=table.obs[row_B],
            executed_BHA=table.executed_RHA[row_B].float(),
            reward_B=table.reward_R[row_B],
            discount_B=table.discount_R[row_B],
            next_obs=table.obs[next_B],
            chunk_BNHA=table.chunk_RNHA[row_B].float(),
            next_chunk_BNHA=table.chunk_RNHA[next_B].float(),
        )

    def rollout(self, number: int) -> ChunkCandidates:
        """Rollout `number` as it was added."""
        begin, end = self._ends[number : number + 2]
        rows = self._rows(begin, end)
        return ChunkCandidates(
            *(column.clone() for column in rows._replace(next_R=rows.next_R - begin))
        )

    def save(self, out: Path) -> None:
        """Writes a file per rollout, each once."""
        from policies.checkpoint import save_state

        (out / ROLLOUTS).mkdir(exist_ok=True)
        for number in range(self._saved, self.rollouts):
            save_state(_file(out, number), {"identity": ROLLOUTS, **self.rollout(number)._asdict()})
        self._saved = self.rollouts

    @classmethod
    def load(cls, out: Path, rollouts: int) -> ChunkReplay:
        """Reads the files of the first `rollouts` rollouts.

        Raises:
            HandoffError: a file is gone, or damaged.
        """
        from policies.checkpoint import read_state

        replay = cls()
        for number in range(rollouts):
            part = read_state(_file(out, number), ROLLOUTS)
            if part is None:
                raise HandoffError(
                    f"{_file(out, number)}: the file is missing. Remove the folder {out} to start again."
                )
            replay.add(ChunkCandidates(**{name: part[name] for name in ChunkCandidates._fields}))
        replay._saved = rollouts
        return replay

    def _rows(self, begin: int, end: int) -> ChunkCandidates:
        assert self._buffer is not None
        return ChunkCandidates(*(column[begin:end] for column in self._buffer))


class ReplayedRollouts:
    """Keeps every rollout of a fine-tuning method: `save_rollouts` and `load_rollouts` of
    `policies.rl.finetuning.method.FinetuneMethod`."""

    def __init__(self) -> None:
        self.done = 0
        """Number of rollouts."""
        self._replay = ChunkReplay()

    def save_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.save_rollouts`: a file per rollout, written once."""
        self._replay.save(out)

    def load_rollouts(self, out: Path) -> None:
        """See `FinetuneMethod.load_rollouts`.

        Raises:
            HandoffError: a file is gone, or damaged.
        """
        self._replay = ChunkReplay.load(out, self.done)

    def remove_rollouts(self, out: Path) -> None:
        """Removes the files of the rollouts, which only a resumed run needs."""
        shutil.rmtree(out / ROLLOUTS, ignore_errors=True)


class RolloutBuilder:
    """Builds the table of a rollout from its states and decisions."""

    def __init__(self) -> None:
        self._obs: list[Tensor] = []
        self._chunks: list[Tensor] = []
        self._decisions: list[tuple[Tensor, Tensor, StepResult, Tensor]] = []
        self._count = 0

    def add_states(self, obs: Tensor, chunks: Tensor) -> Tensor:
        """Adds states with their sampled chunks; returns their rows."""
        self._obs.append(obs)
        self._chunks.append(chunks.half())
        self._count += len(obs)
        return torch.arange(self._count - len(obs), self._count)

    def add_decisions(
        self, rows: Tensor, executed_WHA: Tensor, result: StepResult, next_row: Tensor
    ) -> None:
        """Adds the chunks that were executed at these rows, their results and next states."""
        self._decisions.append((rows, executed_WHA, result, next_row))

    def build(self) -> ChunkCandidates:
        """The table of all states."""
        chunk_RNHA = torch.cat(self._chunks)
        executed_RHA = chunk_RNHA.new_zeros((self._count, *chunk_RNHA.shape[2:]))
        acted = torch.zeros(self._count, dtype=torch.bool)
        next_row = torch.zeros(self._count, dtype=torch.int64)
        reward, discount = torch.zeros(self._count), torch.zeros(self._count)
        for rows, executed_WHA, result, next_W in self._decisions:
            executed_RHA[rows] = executed_WHA.half()
            acted[rows] = True
            next_row[rows] = next_W
            reward[rows] = result.reward_N
            discount[rows] = result.discount_N * ~result.terminated_N
        return ChunkCandidates(
            torch.cat(self._obs), chunk_RNHA, executed_RHA, acted, reward, discount, next_row
        )


class Visit(NamedTuple):
    """What is stored of R visited states, and the decision that can be made there."""

    obs: Tensor
    """(R, ...) what the critics observe."""
    chunk_RNHA: Tensor
    """Sampled chunks; N may be 0."""
    decide: Callable[[], tuple[Tensor, Tensor]]
    """Returns the chunks to execute, (R, H, A), and what is stored as executed, (R, ...) of the
    shape of a stored chunk."""


def collect_rollout(
    env: DecisionEnv,
    statistics: EpisodeStatistics,
    decisions: int,
    visit: Callable[[Any], Visit],
) -> ChunkCandidates:
    """One rollout, whose next states are rows of the same rollout, so that it can be saved
    separately.

    Args:
        env: N environments.
        statistics: receives the results.
        decisions: decisions per environment.
        visit: called with the observations (R, ...) of visited states, once for each.
    """
    rows = RolloutBuilder()
    visited = visit(env.observation())
    row_N = rows.add_states(visited.obs, visited.chunk_RNHA)
    for _ in range(decisions):
        chunk_NHA, stored_NHA = visited.decide()
        result = env.step(chunk_NHA)
        statistics.add(result)
        visited = visit(env.observation())
        next_row_N = rows.add_states(visited.obs, visited.chunk_RNHA)
        truncated = torch.nonzero(result.truncated_N & ~result.terminated_N)[:, 0]
        # After a time limit the next state is the true final observation, not that of the reset.
        next_N = next_row_N.clone()
        if len(truncated):
            final = visit(result.final_obs[truncated])
            next_N[truncated] = rows.add_states(final.obs, final.chunk_RNHA)
        rows.add_decisions(row_N, stored_NHA, result, next_N)
        row_N = next_row_N
    return rows.build()


def demonstration_candidates(
    dataset: OfflineDataset, sample: Callable[[Tensor], Tensor]
) -> ChunkCandidates:
    """The transitions of demonstrations, with chunks that the policy samples at their states.

    Args:
        dataset: transitions; a state may occur both as a state and as a next state.
        sample: (R, T, O) observations to (R, N, H, A) chunks.
    """
    states = torch.cat([dataset.obs, dataset.next_obs])
    unique, row_S = torch.unique(states.flatten(1), dim=0, return_inverse=True)
    # A state may begin several transitions, so every transition gets a row of its own.
    obs_row, next_row = row_S.split(len(dataset.obs))
    chunks = sample(unique.unflatten(1, states.shape[1:])).half()
    count = len(dataset.obs)
    none = torch.zeros(len(unique))
    return ChunkCandidates(
        obs=torch.cat([dataset.obs, unique.unflatten(1, states.shape[1:])]),
        chunk_RNHA=torch.cat([chunks[obs_row], chunks]),
        executed_RHA=torch.cat([dataset.chunk_RHA.half(), torch.zeros_like(chunks[:, 0])]),
        acted_R=torch.cat([torch.ones(count, dtype=torch.bool), none.bool()]),
        reward_R=torch.cat([dataset.reward_R, none]),
        discount_R=torch.cat([dataset.discount_R, none]),
        next_R=torch.cat([count + next_row, torch.zeros(len(unique), dtype=torch.int64)]),
    )


def _file(out: Path, number: int) -> Path:
    return out / ROLLOUTS / f"rollout-{number:05d}.pt"
