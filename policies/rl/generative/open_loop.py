"""Chunks executed without looking: who holds which world's chunk, and how far it has come.

Shape suffixes: N worlds, O observation, H horizon, A action, M worlds whose chunk is used up.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robots.errors import HandoffError

Chunks = Callable[[np.ndarray, np.random.Generator | None], np.ndarray]
"""`Learner.act` of a learner of chunks: observations (M, O) to flattened chunks (M, H * A)."""


class OpenLoop:
    """Acts one action at a time in N worlds from chunks of H; a world gets a new chunk when its own
    is used up or its episode ended.

    Each user of a policy, such as training and evaluation, has one of its own.

    Args:
        chunks: the policy.
        worlds: N.
        horizon: H.
    """

    def __init__(self, chunks: Chunks, worlds: int, horizon: int) -> None:
        self.chunks, self.horizon = chunks, horizon
        self.acts: list[np.ndarray] = [np.zeros((0, 0), np.float32) for _ in range(worlds)]
        """Per world (left, A) actions not executed yet."""

    def act(self, vector_NO: np.ndarray, draw: np.random.Generator | None = None) -> np.ndarray:
        """(N, A): the next action of every world; the policy is asked for the worlds that have none
        left.

        Raises:
            HandoffError: observations of another number of worlds, or chunks that do not divide
                into H actions.
        """
        if len(vector_NO) != len(self.acts):
            raise HandoffError(
                f"open loop: {len(vector_NO)} observations for {len(self.acts)} worlds. Whose are they?"
            )
        due_M = np.array([row for row, left in enumerate(self.acts) if not len(left)], np.int64)
        if len(due_M):
            chunk_MD = self.chunks(vector_NO[due_M], draw)
            if chunk_MD.shape[1] % self.horizon:
                raise HandoffError(
                    f"open loop: chunks of {chunk_MD.shape[1]} entries do not divide into {self.horizon} actions. "
                    f"Has the policy another horizon?"
                )
            for row, chunk_D in zip(due_M, chunk_MD, strict=True):
                self.acts[row] = chunk_D.reshape(self.horizon, -1)
        action_NA = np.stack([left[0] for left in self.acts])
        self.acts = [left[1:] for left in self.acts]
        return action_NA

    def ended(self, ended_N: np.ndarray) -> None:
        """Drops what is left of the chunks of worlds whose episode ended, or whose actions a person
        took over."""
        for row in np.flatnonzero(ended_N):
            self.acts[row] = self.acts[row][:0]

    def state_dict(self) -> dict[str, Any]:
        """What every world has left."""
        return {"acts": [left.copy() for left in self.acts]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes `state_dict` over."""
        self.acts = [left.copy() for left in state["acts"]]
