"""Replay: steps in, batches of n-step transitions or chunks out.

Shape suffixes: B batch, H steps of a chunk, O observation, A action.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from policies.rl.config import Sizes
from policies.rl.transitions import Seen, Transitions
from robots.config import config
from robots.errors import HandoffError
from robots.steps import Steps


@config
class ReplayConfig:
    """What is kept, and what a sample looks like."""

    capacity: int = 200_000
    """Steps; the oldest are overwritten. 200k in HIL-SERL [C]."""
    discount: float = 0.97
    """Per control period; HIL-SERL .97 to .985 [C]."""
    n_step: int = 1
    """Steps whose rewards a sample sums up before it looks at a value."""
    horizon: int = 1
    """Actions of a chunk; above 1 a sample holds that many actions and sums up as many rewards (Q-chunking), and
    `n_step` has no say."""
    timeouts_end: bool = False
    """Whether a time limit counts as an end of the task, as in the code of HIL-SERL; or the value goes on behind it."""


class Replay:
    """A ring of steps. Steps of one episode find their successors by serial numbers, however episodes interleave.

    Args:
        config: see there.
        observation: O.
        action: A.
    """

    def __init__(self, config: ReplayConfig, observation: int, action: int) -> None:
        self.config = config
        n = config.capacity
        self.columns: dict[str, np.ndarray] = {
            "observation": np.zeros((n, observation), np.float32),
            "next_observation": np.zeros((n, observation), np.float32),
            "action": np.zeros((n, action), np.float32),
            "reward": np.zeros(n, np.float32),
            "terminated": np.zeros(n, bool),
            "truncated": np.zeros(n, bool),
            "intervention": np.zeros(n, bool),
            "demo": np.zeros(n, bool),
            "toggle": np.zeros(n, bool),
            "episode": np.zeros(n, np.int64),
            "number": np.zeros(n, np.int64),
            "serial": np.full(n, -1, np.int64),
            "successor": np.full(n, -1, np.int64),
        }
        self.added = 0
        """Steps ever appended; the next one's serial number."""
        self._open: dict[int, int] = {}
        """Serial number of the newest step of every episode that has not ended."""

    def __len__(self) -> int:
        return min(self.added, self.config.capacity)

    def append(self, steps: Steps) -> None:
        """Takes steps in, in their order.

        Raises:
            HandoffError: another number of entries than the buffer was made for.
        """
        columns = self.columns
        if (
            steps.observation.shape[1:] != columns["observation"].shape[1:]
            or steps.action.shape[1:] != (columns["action"].shape[1:])
        ):
            raise HandoffError(
                f"replay: observations {steps.observation.shape} and actions {steps.action.shape}, expected "
                f"{columns['observation'].shape[1]} and {columns['action'].shape[1]} entries. Another task?"
            )
        for row in range(steps.rows):
            slot = self.added % self.config.capacity
            for name in columns.keys() - {"serial", "successor"}:
                columns[name][slot] = getattr(steps, name)[row]
            columns["serial"][slot], columns["successor"][slot] = self.added, -1
            episode = int(steps.episode[row])
            before = self._open.pop(episode, None)
            if before is not None:
                place = before % self.config.capacity
                # Of an episode's corrections only those of one takeover follow one another.
                follows = columns["number"][place] + 1 == steps.number[row]
                if columns["serial"][place] == before and follows:
                    columns["successor"][place] = self.added
            if not (steps.terminated[row] or steps.truncated[row]):
                self._open[episode] = self.added
            self.added += 1

    def sample(self, size: int, draw: np.random.Generator, probability: np.ndarray | None = None) -> Transitions:
        """`size` transitions, drawn with replacement.

        Args:
            size: B.
            draw: all chance.
            probability: `(len(self),)` of every slot; None is uniform.

        Raises:
            HandoffError: nothing is stored.
        """
        if not len(self):
            raise HandoffError("replay: empty, nothing can be drawn. Did no step arrive yet?")
        slot_B = (
            draw.integers(len(self), size=size)
            if probability is None
            else draw.choice(len(self), size=size, p=probability)
        )
        return self.transitions(slot_B)

    def transitions(self, slot_B: np.ndarray) -> Transitions:
        """The transitions that begin at the given slots."""
        config, columns = self.config, self.columns
        steps = config.horizon if config.horizon > 1 else config.n_step
        at_B, running_B = slot_B.copy(), np.ones(len(slot_B), bool)
        reward_B, toggles_B = np.zeros(len(slot_B), np.float32), np.zeros(len(slot_B), np.float32)
        discount_B = np.ones(len(slot_B), np.float32)
        action_BHA = np.zeros((len(slot_B), config.horizon, columns["action"].shape[1]), np.float32)
        next_BO = np.zeros((len(slot_B), columns["observation"].shape[1]), np.float32)
        for k in range(steps):
            reward_B += np.where(running_B, discount_B * columns["reward"][at_B], 0.0)
            toggles_B += np.where(running_B, discount_B * columns["toggle"][at_B], 0.0)
            if k < config.horizon:
                action_BHA[running_B, k] = columns["action"][at_B[running_B]]
            next_BO[running_B] = columns["next_observation"][at_B[running_B]]
            ended_B = columns["terminated"][at_B] | (config.timeouts_end & columns["truncated"][at_B])
            discount_B = np.where(running_B, discount_B * config.discount * ~ended_B, discount_B)
            follow_B = columns["successor"][at_B]
            there_B = (follow_B >= 0) & (columns["serial"][follow_B % config.capacity] == follow_B)
            running_B &= ~ended_B & there_B
            at_B = np.where(running_B, follow_B % config.capacity, at_B)
        tensor = torch.from_numpy
        return Transitions(
            seen=Seen(tensor(columns["observation"][slot_B])),
            action_BA=tensor(action_BHA.reshape(len(slot_B), -1)),
            reward_B=tensor(reward_B.astype(np.float32)),
            discount_B=tensor(discount_B.astype(np.float32)),
            next_seen=Seen(tensor(next_BO)),
            demo_B=tensor(columns["demo"][slot_B]),
            intervention_B=tensor(columns["intervention"][slot_B]),
            toggles_B=tensor(toggles_B.astype(np.float32)),
        )

    def state_dict(self) -> dict[str, Any]:
        """All that is stored, for `load_state_dict`."""
        filled = len(self)
        return {
            "columns": {name: column[:filled].copy() for name, column in self.columns.items()},
            "added": self.added,
            "open": dict(self._open),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes `state_dict` over."""
        for name, column in state["columns"].items():
            self.columns[name][: len(column)] = column
        self.added, self._open = state["added"], dict(state["open"])


def sizes_of(replay: Replay) -> Sizes:
    """The sizes that a replay's columns give."""
    return Sizes(observation=replay.columns["observation"].shape[1], action=replay.columns["action"].shape[1])
