"""Reads sequences of consecutive steps from a replay buffer, for losses over several predicted
steps.

Shape suffixes: B batch, H steps, O observation, A action.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.rl.replay.buffer import Replay


class Unrolls(NamedTuple):
    """Minibatch of B sequences of up to H steps."""

    vector_BO: Tensor
    """Observation vectors before the first step, in physical units."""
    action_BHA: Tensor
    """Executed actions in [-1, 1]."""
    reward_BH: Tensor
    """Rewards of the steps."""
    next_BHO: Tensor
    """Observation vectors after each step, before any reset, in physical units."""
    terminated_BH: Tensor
    """1.0 where the task terminated with the step, else 0.0."""
    valid_BH: Tensor
    """1.0 for steps of the sequence, 0.0 behind its end: behind a termination, a truncation or the
    newest step of a running episode. What the other tensors contain there has no meaning."""

    @property
    def steps(self) -> int:
        """Number of steps H."""
        return self.action_BHA.shape[1]


def read_unrolls(replay: Replay, slot_B: np.ndarray, steps: int) -> Unrolls:
    """SequenceBatch of up to `steps` steps that begin at the given slots.

    Args:
        replay: a buffer.
        slot_B: slots of the first steps.
        steps: number of steps H.
    """
    columns = replay.columns
    capacity = replay.config.capacity
    slot_BH = np.zeros((len(slot_B), steps), np.int64)
    valid_BH = np.zeros((len(slot_B), steps), np.float32)
    current_B, running_B = slot_B, np.ones(len(slot_B), bool)
    for step in range(steps):
        slot_BH[:, step] = current_B
        valid_BH[:, step] = running_B
        # The step that ends an episode has no successor.
        successor_B = columns["successor"][current_B]
        running_B = running_B & (successor_B >= 0)
        current_B = np.where(running_B, successor_B % capacity, current_B)
    return Unrolls(
        vector_BO=torch.from_numpy(columns["observation"][slot_B]),
        action_BHA=torch.from_numpy(columns["action"][slot_BH]),
        reward_BH=torch.from_numpy(columns["reward"][slot_BH]),
        next_BHO=torch.from_numpy(columns["next_observation"][slot_BH]),
        terminated_BH=torch.from_numpy(columns["terminated"][slot_BH].astype(np.float32)),
        valid_BH=torch.from_numpy(valid_BH),
    )
