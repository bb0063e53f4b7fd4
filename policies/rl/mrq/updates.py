"""Makes the updates of MR.Q from a prioritised replay buffer, in the order of the released code.

Shape suffixes: B batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from policies.random_streams import LearnerStream
from policies.rl.mrq.learner import Mrq
from policies.rl.replay.buffer import Replay
from policies.rl.replay.priorities import LapPriorities
from policies.rl.replay.unrolls import read_unrolls
from robots.wire.steps import Steps


class MrqUpdates:
    """Learner, replay buffer and priorities.

    Random numbers depend only on the seed and the numbers of updates.

    Args:
        learner: the learner.
        replay: buffer of single actions with the multi-step return of the values.
        batch_size: rows B per minibatch.
        seed: seed of the minibatches.
    """

    def __init__(self, learner: Mrq, replay: Replay, batch_size: int, seed: int) -> None:
        self.learner = learner
        self.replay = replay
        self.priorities = LapPriorities(learner.config.priorities, replay)
        self._batch_size = batch_size
        self._seed = seed

    def append(self, steps: Steps) -> None:
        """Stores steps with the largest priority so far."""
        self.replay.append(steps)
        self.priorities.admit()

    def __call__(self, number: int) -> dict[str, Any]:
        """Makes the update with this number, after a synchronisation if one is due; returns
        metrics."""
        learner = self.learner
        if learner.synchronisation_due:
            self._synchronise()
        rng = np.random.default_rng([self._seed, LearnerStream.REPLAY, number])
        slot_B = self.priorities.sample(self._batch_size, rng)
        metrics, error_B = learner.update(self.replay.transitions(slot_B))
        self.priorities.update(slot_B, error_B)
        return metrics

    def state_dict(self) -> dict[str, Any]:
        """Complete state; the steps are saved with their buffer."""
        return {"mrq": self.learner.state_dict(), "priorities": self.priorities.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a `state_dict`."""
        self.learner.load_state_dict(state["mrq"])
        self.priorities.load_state_dict(state["priorities"])

    def _synchronise(self) -> None:
        learner = self.learner
        learner.synchronise(mean_absolute_reward(self.replay))
        terminates = bool(self.replay.columns["terminated"][: len(self.replay)].any())
        for _ in range(learner.config.target_every):
            sequence = [self._seed, LearnerStream.MRQ_ENCODER, learner.encoder_updates]
            slot_B = self.priorities.sample(self._batch_size, np.random.default_rng(sequence))
            batch = read_unrolls(self.replay, slot_B, learner.config.encoder.horizon)
            learner.update_encoder(batch, terminates=terminates)


def mean_absolute_reward(replay: Replay) -> float:
    """Mean absolute reward of all stored steps; 1 if all rewards are 0."""
    mean = float(np.abs(replay.columns["reward"][: len(replay)]).mean(dtype=np.float64))
    return mean if mean > 0.0 else 1.0
