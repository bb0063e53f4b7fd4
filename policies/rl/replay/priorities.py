"""Samples steps of a replay buffer in proportion to priorities, by loss-adjusted prioritisation
(LAP; Fujimoto et al., arXiv 2007.06049).

The priority of a step is the power of its newest absolute temporal-difference error, bounded below.
With a Huber loss that is linear above the bound, no importance weights are needed.

Shape suffixes: B batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from policies.rl.replay.buffer import Replay
from policies.rl.replay.config import LapConfig


class LapPriorities:
    """Priorities of the steps of a replay buffer without images and with single actions.

    A new step has the largest priority so far, so that it is sampled soon.

    Args:
        config: exponent and lower bound.
        replay: the buffer, to which steps are appended before `admit`.
    """

    def __init__(self, config: LapConfig, replay: Replay) -> None:
        self._config = config
        self._replay = replay
        self.values = np.zeros(replay.config.capacity, np.float32)
        """Priority of each slot."""
        self.largest = config.floor**config.exponent
        """Largest priority of any step so far."""
        self._admitted = 0
        """Steps of the buffer that have a priority; the serial number of the next one."""

    def admit(self) -> None:
        """Gives the steps that were appended since the last call the largest priority so far."""
        capacity, added = self._replay.config.capacity, self._replay.added
        new = np.arange(max(self._admitted, added - capacity), added)
        self.values[new % capacity] = self.largest
        self._admitted = added

    def sample(self, size: int, rng: np.random.Generator) -> np.ndarray:
        """(B,) slots, sampled with replacement in proportion to their priorities.

        Raises:
            HandoffError: the buffer is empty.
        """
        return self._replay.sampled_slots(size, rng, self.values[: len(self._replay)])

    def update(self, slot_B: np.ndarray, error_B: np.ndarray) -> None:
        """Sets the priorities of slots from their absolute temporal-difference errors."""
        bounded_B = np.maximum(error_B, self._config.floor)
        priority_B = (bounded_B**self._config.exponent).astype(np.float32)
        self.values[slot_B] = priority_B
        self.largest = max(self.largest, float(priority_B.max()))

    def state_dict(self) -> dict[str, Any]:
        """Complete state; the steps are saved with their buffer."""
        return {
            "values": torch.from_numpy(self.values[: len(self._replay)].copy()),
            "largest": self.largest,
            "admitted": self._admitted,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict` of priorities of the same slots."""
        values = state["values"].numpy()
        self.values[: len(values)] = values
        self.largest = state["largest"]
        self._admitted = state["admitted"]
