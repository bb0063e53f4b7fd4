"""Counts the episodes of training: success, return, length and interventions of those that ended.

Shape suffixes: N environments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from policies.rl.collection.interfaces import StepResult
from robots.wire.learner import EPISODES_PER_START
from robots.wire.steps import Steps

RECENT = 100
"""Minimum number of recent episodes over which statistics are averaged. Environments that were
reset together reach their time limit together, so fewer episodes might all be failures."""


class EndedEpisode(NamedTuple):
    """Statistics of one episode that has ended."""

    success: bool
    length: int
    """Steps of the episode; 0 where a checkpoint does not contain it."""
    interventions: int = 0
    """Steps at which a person acted."""
    total_reward: float = 0.0
    """Sum of the rewards, without discount between decisions."""
    cost: float = 0.0
    """Sum of the costs."""
    largest_reward: float | None = None
    """Largest task reward; None where it is unknown."""


class EpisodeStatistics:
    """Accumulates steps per episode and keeps the statistics of ended episodes.

    There are two inputs. `add` takes decisions of N environments that run one episode each, leaves
    them on their device, and `flush` counts them; call it before reading statistics. `add_steps`
    immediately counts steps that carry the number of their episode.

    Args:
        num_envs: N; 0 where all steps carry the number of their episode.
        keep: most recent episodes whose statistics are kept; None keeps all.
    """

    def __init__(self, num_envs: int = 0, keep: int | None = None) -> None:
        self.ended: list[EndedEpisode] = []
        """Statistics of ended episodes, the newest last."""
        self.episodes = 0
        """Number of episodes that have ended."""
        self.steps = 0
        """Number of steps from `add_steps`."""
        self.interventions = 0
        """Number of those steps at which a person acted."""
        self.return_N = np.zeros(num_envs)
        """Sum of the rewards of each running episode."""
        self.cost_N = np.zeros(num_envs)
        """Sum of the costs of each running episode."""
        self._length_N = np.zeros(num_envs, np.int64)
        self._largest_N = np.full(num_envs, -np.inf)
        self._keep = keep
        self._pending: list[StepResult] = []
        self._running: dict[int, EndedEpisode] = {}

    def begin(self) -> None:
        """Drops the running episodes of the N environments, which are reset."""
        self.flush()
        self.resume_environments(np.zeros_like(self.return_N), np.zeros_like(self._length_N))

    def resume_environments(
        self, return_N: np.ndarray, length_N: np.ndarray, cost_N: np.ndarray | None = None
    ) -> None:
        """Restores reward sums, lengths and cost sums of the running episodes; None has no
        costs."""
        self.return_N = return_N
        self._length_N = length_N
        self.cost_N = np.zeros_like(return_N) if cost_N is None else cost_N
        self._largest_N[:] = -np.inf

    def running_sums(self) -> tuple[np.ndarray, np.ndarray]:
        """(N,) reward sums and (N,) lengths of the running episodes, for `resume_environments`."""
        return self.return_N.copy(), self._length_N.copy()

    def add(self, result: StepResult) -> None:
        """Adds one decision of every environment; `flush` counts it."""
        self._pending.append(result._replace(final_obs=None, reward_NH=None))

    def flush(self) -> None:
        """Counts the added decisions; waits for their device."""
        pending = self._pending
        self._pending = []
        for result in pending:
            self.count(
                _array(result.reward_N),
                _array(result.terminated_N | result.truncated_N),
                _array(result.success_N),
                length_N=None if result.length_N is None else _array(result.length_N),
                cost_N=None if result.cost_N is None else _array(result.cost_N),
                largest_N=None if result.largest_N is None else _array(result.largest_N),
            )

    def count(
        self,
        reward_N: np.ndarray,
        ended_N: np.ndarray,
        success_N: np.ndarray,
        *,
        length_N: np.ndarray | None = None,
        cost_N: np.ndarray | None = None,
        largest_N: np.ndarray | None = None,
    ) -> None:
        """Counts one decision of every environment at once.

        Args:
            reward_N: reward of the decision.
            ended_N: whether the episode ended with it.
            success_N: whether the ended episode was solved.
            length_N: executed steps; None counts one step each.
            cost_N: cost of the decision; None is no cost.
            largest_N: largest task reward; None where it is unknown.
        """
        self.return_N += reward_N
        self._length_N += 1 if length_N is None else length_N
        if cost_N is not None:
            self.cost_N += cost_N
        if largest_N is not None:
            np.maximum(self._largest_N, largest_N, out=self._largest_N)
        for row in np.flatnonzero(ended_N):
            ended = EndedEpisode(
                success=bool(success_N[row]),
                length=int(self._length_N[row]),
                total_reward=float(self.return_N[row]),
                cost=float(self.cost_N[row]),
                largest_reward=None if largest_N is None else float(self._largest_N[row]),
            )
            self._end(ended)
        self.return_N[ended_N] = 0.0
        self._length_N[ended_N] = 0
        self.cost_N[ended_N] = 0.0
        self._largest_N[ended_N] = -np.inf

    def add_steps(self, steps: Steps) -> None:
        """Counts steps by episode number, in order; an episode succeeds if it terminates with a
        reward above 0."""
        self.steps += steps.rows
        self.interventions += int(steps.intervention.sum())
        for row in range(steps.rows):
            episode = int(steps.episode[row])
            reward = float(steps.reward[row])
            previous = self._running.pop(episode, EndedEpisode(success=False, length=0))
            if previous.length == 0:
                self._drop_unfinished(episode)
            current = EndedEpisode(
                success=bool(steps.terminated[row]) and reward > 0.0,
                length=previous.length + 1,
                interventions=previous.interventions + int(steps.intervention[row]),
                total_reward=previous.total_reward + reward,
            )
            if steps.terminated[row] or steps.truncated[row]:
                self._end(current)
            else:
                self._running[episode] = current

    def newest(self, since: int | None = None) -> list[EndedEpisode]:
        """The ended episodes over which statistics are averaged: all from number `since` on
        (usually those of one rollout), but at least the newest `RECENT`."""
        count = RECENT if since is None else max(RECENT, self.episodes - since)
        return self.ended[-count:]

    def success_rate(self, since: int | None = None) -> float:
        """Share of the `newest` episodes that succeeded; 0 before the first."""
        return _mean([episode.success for episode in self.newest(since)])

    def mean_return(self, since: int | None = None) -> float:
        """Mean sum of the rewards of the `newest` episodes; 0 before the first."""
        return _mean([episode.total_reward for episode in self.newest(since)])

    def mean_cost(self, since: int | None = None) -> float:
        """Mean sum of the costs of the `newest` episodes; 0 before the first."""
        return _mean([episode.cost for episode in self.newest(since)])

    def mean_largest_reward(self, since: int | None = None) -> float:
        """Mean of the largest rewards of the `newest` episodes; 0 where they are unknown."""
        largest = [episode.largest_reward for episode in self.newest(since)]
        return _mean([reward for reward in largest if reward is not None])

    def success_length(self) -> float:
        """Mean steps of the `newest` episodes that succeeded; 0 without any."""
        return _mean([episode.length for episode in self.newest() if episode.success])

    def intervention_rate(self) -> float:
        """Share of the steps of the `newest` episodes at which a person acted; 1 before the
        first."""
        newest = self.newest()
        steps = sum(episode.length for episode in newest)
        return sum(episode.interventions for episode in newest) / steps if steps else 1.0

    def state_dict(self) -> dict[str, Any]:
        """Everything but the running episodes of the N environments, in plain values."""
        return {
            "counts": [self.steps, self.interventions, self.episodes],
            "recent": [list(one) for one in self.ended],
            "running": [
                [episode, one.length, one.interventions, one.total_reward]
                for episode, one in self._running.items()
            ],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores `state_dict`. Missing trailing entries of a row get their defaults."""
        self.steps, self.interventions, self.episodes = state["counts"]
        self.ended = [EndedEpisode(*row) for row in state["recent"]]
        self._running = {
            episode: EndedEpisode(False, *figures) for episode, *figures in state["running"]
        }

    def load_returns(self, episodes: int, rows: Iterable[Sequence[Any]]) -> None:
        """Restores the statistics in a checkpoint of the N environments.

        Args:
            episodes: number of ended episodes.
            rows: success, reward sum and, if there is one, cost sum of the newest of them.
        """
        self.episodes = episodes
        self.ended = [
            EndedEpisode(bool(success), length=0, total_reward=total, cost=sum(cost))
            for success, total, *cost in rows
        ]

    def _end(self, ended: EndedEpisode) -> None:
        self.episodes += 1
        self.ended.append(ended)
        if self._keep is not None:
            del self.ended[: -self._keep]

    def _drop_unfinished(self, episode: int) -> None:
        """Drops unfinished episodes of an earlier start of the same actor."""
        begin = episode // EPISODES_PER_START * EPISODES_PER_START
        journal = episode >> 48
        stale = [other for other in self._running if other < begin and other >> 48 == journal]
        for other in stale:
            del self._running[other]


def _array(column: Tensor) -> np.ndarray:
    return column.cpu().numpy()


def _mean(values: list[Any]) -> float:
    return float(np.mean(values)) if values else 0.0
