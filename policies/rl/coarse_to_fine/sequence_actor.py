"""Acts in vectorised environments by temporal ensembling of sequences of actions.

Shape suffixes: N environments, K steps of a sequence, A action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from robots.control.temporal_ensemble import temporal_ensemble


class EnsembledSequences:
    """SequenceBatch of the last steps of every environment, which are averaged.

    Args:
        num_envs: environments N.
        horizon: steps K of a sequence.
        actions: entries A of an action.
        coefficient: see `temporal_ensemble`.
    """

    def __init__(self, num_envs: int, horizon: int, actions: int, coefficient: float) -> None:
        self._coefficient = coefficient
        self._kept_KNKA = np.zeros((horizon, num_envs, horizon, actions), np.float32)
        """Newest sequences, oldest first."""
        self._count_N = np.zeros(num_envs, np.int64)
        """SequenceBatch of the running episodes, at most K."""

    def __call__(self, sequence_NKA: np.ndarray, began_N: np.ndarray) -> np.ndarray:
        """(N, A) actions of the present step.

        Args:
            sequence_NKA: sequences that were predicted at this step.
            began_N: (N,) bool, environments whose episode begins with this step.
        """
        horizon = len(self._kept_KNKA)
        self._kept_KNKA = np.concatenate([self._kept_KNKA[1:], sequence_NKA[None]])
        self._count_N = np.minimum(np.where(began_N, 1, self._count_N + 1), horizon)
        action_NA = np.zeros_like(sequence_NKA[:, 0])
        for count in np.unique(self._count_N):
            rows = np.flatnonzero(self._count_N == count)
            action_NA[rows] = temporal_ensemble(
                self._kept_KNKA[horizon - count :, rows], self._coefficient
            )
        return action_NA

    def state_dict(self) -> dict[str, Any]:
        """Complete state."""
        return {
            "kept": torch.from_numpy(self._kept_KNKA.copy()),
            "count": torch.from_numpy(self._count_N.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self._kept_KNKA = state["kept"].numpy().copy()
        self._count_N = state["count"].numpy().copy()
