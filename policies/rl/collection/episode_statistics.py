"""Options of this package."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from policies.rl.collection.interfaces import Decided

RECENT = 100
"""Least number of episodes over which success in practice is told."""


class Recent(NamedTuple):
    """Means over the newest episodes; 0 where none has ended."""

    success: float
    returned: float
    largest: float
    """Reward that the task told, where it is known."""


class EpisodeTally:
    """What the episodes of N worlds came to.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self._solved: list[bool] = []
        self._returns: list[float] = []
        self._costs: list[float] = []
        self._largest_of: list[float] = []
        self._running = np.zeros((2, num_envs))
        self._largest = np.full(num_envs, -np.inf)
        self._waiting: list[Decided] = []

    @property
    def solved(self) -> list[bool]:
        """Of every episode that has ended."""
        return self._counted()._solved

    @solved.setter
    def solved(self, solved: list[bool]) -> None:
        self._counted()._solved = solved

    @property
    def returns(self) -> list[float]:
        """Sums of the rewards, not discounted between decisions, of the same."""
        return self._counted()._returns

    @returns.setter
    def returns(self, returns: list[float]) -> None:
        self._counted()._returns = returns

    @property
    def costs(self) -> list[float]:
        """Sums of what they cost, of the same."""
        return self._counted()._costs

    @property
    def largest(self) -> list[float]:
        """Largest reward that the task told, of the same, where it is known."""
        return self._counted()._largest_of

    def recent(self, since: int) -> Recent:
        """Of the episodes that ended from number `since` on, as a rule those of one rollout, or of
        the newest `RECENT`.

        Worlds that began together run out of time together, so the newest few alone might all be
        such.
        """
        first = max(0, min(since, len(self.solved) - RECENT))
        columns = (self.solved, self.returns, self.largest)
        return Recent(
            *(float(np.mean(column[first:])) if column[first:] else 0.0 for column in columns)
        )

    def begin(self) -> None:
        """Episodes under way are left."""
        self._counted()
        self._running[:] = 0.0
        self._largest[:] = -np.inf

    def add(self, led: Decided) -> None:
        """One decision in every world; it is counted when somebody asks, so a device is not waited
        for before."""
        self._waiting.append(led._replace(final_seen=None, reward_NH=None))

    def _counted(self) -> EpisodeTally:
        waiting, self._waiting = self._waiting, []
        for led in waiting:
            columns: list[Any] = [part.cpu() if isinstance(part, Tensor) else part for part in led]
            self._count(Decided(*columns))
        return self

    def _count(self, led: Decided) -> None:
        self._running[0] += led.reward_N.numpy()
        if led.cost_N is not None:
            self._running[1] += led.cost_N.numpy()
        ended_N = (led.terminated_N | led.truncated_N).numpy()
        self._solved += led.success_N.numpy()[ended_N].tolist()
        self._returns += self._running[0, ended_N].tolist()
        self._costs += self._running[1, ended_N].tolist()
        self._running[:, ended_N] = 0.0
        if led.largest_N is not None:
            np.maximum(self._largest, led.largest_N.numpy(), out=self._largest)
            self._largest_of += self._largest[ended_N].tolist()
            self._largest[ended_N] = -np.inf
