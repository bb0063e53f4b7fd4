"""Counts the episodes of training: success, return, length and interventions of those that ended.

Shape suffixes: N environments.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from policies.rl.collection.interfaces import Decided
from robots.wire.learner import EPISODES_PER_START
from robots.wire.steps import Steps

RECENT = 100
"""Least number of newest episodes over which figures of training are averaged. Environments that
began together reach their time limit together, so fewer might all be episodes without success."""


class EndedEpisode(NamedTuple):
    """Figures of one episode that has ended."""

    success: bool
    length: int
    """Steps of the episode; 0 where a checkpoint does not hold it."""
    interventions: int = 0
    """Steps at which a person acted."""
    total_reward: float = 0.0
    """Sum of the rewards, not discounted between decisions."""
    cost: float = 0.0
    """Sum of the costs."""
    largest_reward: float | None = None
    """Largest reward that the task gave; None where it is unknown."""


class EpisodeStatistics:
    """Adds up steps by episode and keeps the figures of those that have ended.

    Episodes are told apart in one of two ways. The decisions of N environments, each of which runs
    one episode at a time, come through `add`, which leaves them on their device, and are counted
    by `flush`: call it before figures are read. Steps that carry the number of their episode are
    counted at once by `add_steps`.

    Args:
        num_envs: N; 0 where all steps carry the number of their episode.
        keep: newest ended episodes whose figures are kept; None keeps all.
    """

    def __init__(self, num_envs: int = 0, keep: int | None = None) -> None:
        self.ended: list[EndedEpisode] = []
        """Figures of the ended episodes that are kept, the newest last."""
        self.episodes = 0
        """Number of episodes that have ended."""
        self.steps = 0
        """Number of steps that came through `add_steps`."""
        self.interventions = 0
        """Number of those steps at which a person acted."""
        self.return_N = np.zeros(num_envs)
        """Sums of the rewards of the running episodes."""
        self._length_N = np.zeros(num_envs, np.int64)
        self._cost_N = np.zeros(num_envs)
        self._largest_N = np.full(num_envs, -np.inf)
        self._keep = keep
        self._waiting: list[Decided] = []
        self._running: dict[int, EndedEpisode] = {}

    def begin(self) -> None:
        """Leaves the running episodes of the N environments out, for new ones begin."""
        self.flush()
        self.resume_environments(np.zeros_like(self.return_N), np.zeros_like(self._length_N))

    def resume_environments(self, return_N: np.ndarray, length_N: np.ndarray) -> None:
        """Sets the sums of the rewards and the steps of the running episodes, which have no
        costs."""
        self.return_N = return_N
        self._length_N = length_N
        self._cost_N[:] = 0.0
        self._largest_N[:] = -np.inf

    def add(self, led: Decided) -> None:
        """Takes one decision of every environment, to be counted by `flush`."""
        self._waiting.append(led._replace(final_seen=None, reward_NH=None))

    def flush(self) -> None:
        """Counts the decisions that were added, which waits for the device where they lie."""
        waiting = self._waiting
        self._waiting = []
        for led in waiting:
            self.count(
                _array(led.reward_N),
                _array(led.terminated_N | led.truncated_N),
                _array(led.success_N),
                length_N=None if led.length_N is None else _array(led.length_N),
                cost_N=None if led.cost_N is None else _array(led.cost_N),
                largest_N=None if led.largest_N is None else _array(led.largest_N),
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
            reward_N: of the decision.
            ended_N: whether the episode ended by it.
            success_N: whether the episode that ended was solved.
            length_N: steps that were executed; None is one step each.
            cost_N: of the decision; None is no cost.
            largest_N: largest reward of the task; None where it is unknown.
        """
        self.return_N += reward_N
        self._length_N += 1 if length_N is None else length_N
        if cost_N is not None:
            self._cost_N += cost_N
        if largest_N is not None:
            np.maximum(self._largest_N, largest_N, out=self._largest_N)
        for row in np.flatnonzero(ended_N):
            ended = EndedEpisode(
                success=bool(success_N[row]),
                length=int(self._length_N[row]),
                total_reward=float(self.return_N[row]),
                cost=float(self._cost_N[row]),
                largest_reward=None if largest_N is None else float(self._largest_N[row]),
            )
            self._end(ended)
        self.return_N[ended_N] = 0.0
        self._length_N[ended_N] = 0
        self._cost_N[ended_N] = 0.0
        self._largest_N[ended_N] = -np.inf

    def add_steps(self, steps: Steps) -> None:
        """Counts steps by the number of their episode, those of an episode in their order; an
        episode succeeds if it terminates with a reward above 0."""
        self.steps += steps.rows
        self.interventions += int(steps.intervention.sum())
        for row in range(steps.rows):
            episode = int(steps.episode[row])
            reward = float(steps.reward[row])
            before = self._running.pop(episode, EndedEpisode(success=False, length=0))
            if before.length == 0:
                self._forget_before(episode)
            now = EndedEpisode(
                success=bool(steps.terminated[row]) and reward > 0.0,
                length=before.length + 1,
                interventions=before.interventions + int(steps.intervention[row]),
                total_reward=before.total_reward + reward,
            )
            if steps.terminated[row] or steps.truncated[row]:
                self._end(now)
            else:
                self._running[episode] = now

    def newest(self, since: int | None = None) -> list[EndedEpisode]:
        """The ended episodes that figures are averaged over: all from number `since` on, as a rule
        those of one rollout, or the newest `RECENT` where these are more."""
        those = RECENT if since is None else max(RECENT, self.episodes - since)
        return self.ended[-those:]

    def success_rate(self, since: int | None = None) -> float:
        """Share of the `newest` episodes that succeeded; 0 before the first."""
        return _mean([one.success for one in self.newest(since)])

    def mean_return(self, since: int | None = None) -> float:
        """Mean sum of the rewards of the `newest` episodes; 0 before the first."""
        return _mean([one.total_reward for one in self.newest(since)])

    def mean_largest_reward(self, since: int | None = None) -> float:
        """Mean of the largest rewards of the `newest` episodes; 0 where they are unknown."""
        largest = [one.largest_reward for one in self.newest(since)]
        return _mean([reward for reward in largest if reward is not None])

    def success_length(self) -> float:
        """Mean steps of the `newest` episodes that succeeded; 0 without any."""
        return _mean([one.length for one in self.newest() if one.success])

    def intervention_rate(self) -> float:
        """Share of the steps of the `newest` episodes at which a person acted; 1 before the
        first."""
        newest = self.newest()
        steps = sum(one.length for one in newest)
        return sum(one.interventions for one in newest) / steps if steps else 1.0

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
        """Takes `state_dict` over. Rows may end early: what they lack has its default."""
        self.steps, self.interventions, self.episodes = state["counts"]
        self.ended = [EndedEpisode(*row) for row in state["recent"]]
        self._running = {
            episode: EndedEpisode(False, *figures) for episode, *figures in state["running"]
        }

    def load_returns(self, episodes: int, rows: Iterable[Sequence[Any]]) -> None:
        """Takes over what a checkpoint of the N environments holds.

        Args:
            episodes: number of episodes that had ended.
            rows: success and sum of the rewards of the newest of them.
        """
        self.episodes = episodes
        self.ended = [
            EndedEpisode(bool(success), length=0, total_reward=total) for success, total in rows
        ]

    def _end(self, ended: EndedEpisode) -> None:
        self.episodes += 1
        self.ended.append(ended)
        if self._keep is not None:
            del self.ended[: -self._keep]

    def _forget_before(self, episode: int) -> None:
        """Drops what an earlier start of the same actor left unfinished."""
        begin = episode // EPISODES_PER_START * EPISODES_PER_START
        journal = episode >> 48
        stale = [other for other in self._running if other < begin and other >> 48 == journal]
        for other in stale:
            del self._running[other]


def _array(column: Tensor) -> np.ndarray:
    return column.cpu().numpy()


def _mean(values: list[Any]) -> float:
    return float(np.mean(values)) if values else 0.0
