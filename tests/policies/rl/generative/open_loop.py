"""Executes action chunks open-loop in vectorised environments.

Shape suffixes: N environments, O observation, H horizon, A action, M environments that need a
new chunk.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from robots.errors import HandoffError

ActChunks = Callable[[np.ndarray, np.random.Generator | None], np.ndarray]
"""`Learner.act` of a learner with chunks: observation vectors (M, O) to chunks (M, H * A)."""


class OpenLoop:
    """Executes chunks of H actions in N environments, one action per step. An environment gets a
    new chunk when all actions were executed or its episode ended.

    Training and evaluation need separate instances.

    Args:
        chunks: policy that returns chunks.
        num_envs: number of environments N.
        horizon: actions per chunk H.
    """

    def __init__(self, chunks: ActChunks, num_envs: int, horizon: int) -> None:
        self.chunks = chunks
        self.horizon = horizon
        self.pending: list[np.ndarray] = [np.zeros((0, 0), np.float32) for _ in range(num_envs)]
        """Actions not executed yet, per environment, each of shape (remaining, A)."""

    def act(self, vector_NO: np.ndarray, rng: np.random.Generator | None = None) -> np.ndarray:
        """(N, A) next actions; the policy is called for environments without remaining actions.

        Raises:
            HandoffError: the number of observations is not N, or chunks do not divide into H
                actions.
        """
        if len(vector_NO) != len(self.pending):
            raise HandoffError(
                f"open loop: {len(vector_NO)} observations for {len(self.pending)} environments."
            )
        due_M = np.array(
            [row for row, actions in enumerate(self.pending) if not len(actions)], np.int64
        )
        if len(due_M):
            chunk_MD = self.chunks(vector_NO[due_M], rng)
            if chunk_MD.shape[1] % self.horizon:
                raise HandoffError(
                    f"open loop: chunks of {chunk_MD.shape[1]} entries do not divide into {self.horizon} actions. "
                    f"Does the policy have another horizon?"
                )
            for row, chunk_D in zip(due_M, chunk_MD, strict=True):
                self.pending[row] = chunk_D.reshape(self.horizon, -1)
        action_NA = np.stack([actions[0] for actions in self.pending])
        self.pending = [actions[1:] for actions in self.pending]
        return action_NA

    def reset(self, ended_N: np.ndarray) -> None:
        """Discards the remaining actions of environments whose episode ended, or where a person
        took over.

        Args:
            ended_N: (N,) bool mask.
        """
        for row in np.flatnonzero(ended_N):
            self.pending[row] = self.pending[row][:0]

    def state_dict(self) -> dict[str, Any]:
        """Remaining actions of each environment."""
        return {"acts": [actions.copy() for actions in self.pending]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.pending = [actions.copy() for actions in state["acts"]]
