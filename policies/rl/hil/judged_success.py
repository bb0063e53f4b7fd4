"""Replaces the rewards of solved episodes by the judgement of the newest success classifier.

Only the last step of an episode that a classifier ended as solved is judged anew: where the newest
version does not call the episode solved, its reward is 0 and its end that of a time limit; where a
later one does again, both are as they were. Other steps keep their reward: an episode that went on
has no step that a success could end. Rewards in a buffer follow from the newest judgement alone, so
that nothing of it is kept in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

from policies.rl.replay.buffer import Replay
from robots.wire.steps import Steps


class Judgement(NamedTuple):
    """Judgement of K episodes by a version of the classifier."""

    version: int
    episode: np.ndarray
    """(K,) int64 numbers of the episodes in the actor's journal, ascending."""
    number: np.ndarray
    """(K,) int64 numbers of their last steps."""
    success: np.ndarray
    """(K,) bool: the version calls the episode solved."""


class JudgedSuccess:
    """A `policies.rl.hil.learner.RewardRelabeling` by the newest judgement.

    Args:
        newer: returns the newest judgement if its version is above the given one, else None.
    """

    def __init__(self, newer: Callable[[int], Judgement | None]) -> None:
        self._newer = newer
        none = np.zeros(0, np.int64)
        self._judgement = Judgement(-1, none, none, none.astype(bool))

    def __call__(self, steps: Steps) -> Steps:
        """The steps with the rewards of the newest judgement."""
        rows, success = self._judged(steps.episode, steps.number, steps.demo)
        if not len(rows):
            return steps
        reward, terminated, truncated = (
            np.array(column) for column in (steps.reward, steps.terminated, steps.truncated)
        )
        reward[rows] = success
        terminated[rows] = success
        truncated[rows] = ~success
        return steps._replace(reward=reward, terminated=terminated, truncated=truncated)

    def revise(self, buffers: Iterable[Replay]) -> None:
        """Asks for a newer judgement, by which it replaces the stored rewards."""
        newer = self._newer(self._judgement.version)
        if newer is None:
            return
        self._judgement = newer
        for buffer in buffers:
            columns, stored = buffer.columns, slice(0, len(buffer))
            names = ("episode", "number", "demo")
            rows, success = self._judged(*(columns[name][stored] for name in names))
            columns["reward"][rows] = success
            columns["terminated"][rows] = success
            columns["truncated"][rows] = ~success

    def state_dict(self) -> dict[str, Any]:
        """Nothing: the judgement is asked for again."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `RewardRelabeling`; nothing to restore."""

    def _judged(
        self, episode: np.ndarray, number: np.ndarray, demo: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Rows of the judged steps, and their (rows,) success."""
        judgement = self._judgement
        if not len(judgement.episode):
            return np.zeros(0, np.int64), np.zeros(0, bool)
        place = np.searchsorted(judgement.episode, episode)
        place = np.minimum(place, len(judgement.episode) - 1)
        found = (judgement.episode[place] == episode) & (judgement.number[place] == number)
        rows = np.flatnonzero(found & ~demo)
        return rows, judgement.success[place[rows]]
