"""Draws minibatches of transitions with the actions that followed, from the policy's own steps and
from demonstrations.

Shape suffixes: B batch, K steps of a sequence, A action.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from policies.rl.replay.buffer import Replay
from policies.rl.replay.transitions import Transitions, concatenated
from policies.rl.replay.unrolls import read_unrolls


class SequenceBatch(NamedTuple):
    """Minibatch of B transitions with sequences of actions."""

    transitions: Transitions
    """Transitions of n-step returns, which begin with the first action of the sequence; `demo_B`
    tells the rows that imitation learns from."""
    action_BKA: Tensor
    """Actions in [-1, 1] that were executed from the first step on."""
    valid_BK: Tensor
    """1.0 for steps of the episode, 0.0 behind its end, where the actions have no meaning."""


class SequenceSampler:
    """Draws minibatches with a fixed share of demonstrations.

    Args:
        replay: complete episodes of the policy; with `self_imitation`, those whose rows are marked
            as demonstrations are drawn among these.
        demos: at least one episode of demonstrations, of which the marked ones are imitated.
        batch_size: rows B.
        demo_share: share of the rows that are drawn from demonstrations.
        horizon: steps K of a sequence.
        self_imitation: whether marked episodes of the policy are demonstrations.
    """

    def __init__(
        self,
        replay: Replay,
        demos: Replay,
        batch_size: int,
        demo_share: float,
        horizon: int,
        *,
        self_imitation: bool,
    ) -> None:
        self.replay = replay
        self.demos = demos
        self._demo_rows = round(demo_share * batch_size)
        self._own_rows = batch_size - self._demo_rows
        self._horizon = horizon
        self._self_imitation = self_imitation

    def __call__(self, rng: np.random.Generator) -> SequenceBatch:
        """One minibatch; while there are no episodes of the policy, all rows are demonstrations."""
        own_rows, demo_rows = self._own_rows, self._demo_rows
        if not len(self.replay):
            own_rows, demo_rows = 0, own_rows + demo_rows
        imitated = self._imitated()
        total = len(self.demos) + len(imitated)
        parts = []
        if own_rows:
            slot_B = self.replay.sampled_slots(own_rows, rng)
            marked_B = self.replay.columns["demo"][slot_B] & self._self_imitation
            parts.append(self._read(self.replay, slot_B, marked_B))
        if demo_rows:
            row_B = rng.integers(total, size=demo_rows)
            recorded_B = row_B < len(self.demos)
            for replay, slot_B in (
                (self.demos, row_B[recorded_B]),
                (self.replay, imitated[row_B[~recorded_B] - len(self.demos)]),
            ):
                if len(slot_B):
                    parts.append(self._read(replay, slot_B, replay.columns["demo"][slot_B]))
        return SequenceBatch(
            concatenated([part.transitions for part in parts]),
            torch.cat([part.action_BKA for part in parts]),
            torch.cat([part.valid_BK for part in parts]),
        )

    def _imitated(self) -> np.ndarray:
        """Slots of the policy's own steps that count as demonstrations."""
        if not self._self_imitation:
            return np.zeros(0, np.int64)
        return np.flatnonzero(self.replay.columns["demo"][: len(self.replay)])

    def _read(self, replay: Replay, slot_B: np.ndarray, imitated_B: np.ndarray) -> SequenceBatch:
        transitions = replay.transitions(slot_B)._replace(demo_B=torch.from_numpy(imitated_B))
        unrolls = read_unrolls(replay, slot_B, self._horizon)
        return SequenceBatch(transitions, unrolls.action_BHA, unrolls.valid_BH)
