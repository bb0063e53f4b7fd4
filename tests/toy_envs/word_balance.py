"""WordBalance: an unstable position and an instruction that names its target mark; errors grow
unless corrected."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from robots.interfaces import EnvState, Observation, Step
from robots.language.text import INSTRUCTION, encode, text_field
from robots.spec import ActionSpec, FieldSpec

WORDS = ("keep left", "keep right")
MARK, NEAR = 0.5, 0.35
"""Where the marks are, to either side of 0, and how far from its mark a place is lost."""
GROWTH, PUSH, SHAKE, START = 1.4, 0.4, 0.01, 0.05
"""Of the distance in a step; of an action of 1; deviation of what shakes it; greatest distance at
the start."""


def target(right: np.ndarray) -> np.ndarray:
    """The marks (N,) that the words name."""
    return np.where(right, MARK, -MARK)


def expert(place: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Actions (N,) that lead to the mark in one step, as far as they reach."""
    return np.clip(-GROWTH * (place - target(right)) / PUSH, -0.99, 0.99)


class WordBalance:
    """Implements `robots.interfaces.VecEnv`; environments stay ended until they are reset. One
    action at a time, in chunks of one.

    Solved: still near its mark after `limit` steps.

    Args:
        num_envs: N.
        limit: steps of an episode.
    """

    def __init__(self, num_envs: int, limit: int) -> None:
        self.num_envs, self.rate_hz, self.limit = num_envs, 10.0, limit
        self.observation_spec: Mapping[str, FieldSpec] = {
            "place": FieldSpec(shape=(1,)),
            INSTRUCTION: text_field(16),
        }
        self.action_spec = ActionSpec(low=(-1.0,), high=(1.0,))
        self.place, self.right = np.zeros(num_envs), np.zeros(num_envs, bool)
        self.steps, self.ended = np.zeros(num_envs, np.int64), np.ones(num_envs, bool)
        self.shakes = np.zeros((num_envs, limit))

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`."""
        for row, seed in zip(
            range(self.num_envs) if env_ids is None else env_ids, seeds, strict=True
        ):
            draw = np.random.default_rng(seed)
            self.right[row] = draw.random() < 0.5
            self.place[row] = target(self.right[row]) + draw.uniform(-START, START)
            self.shakes[row] = SHAKE * draw.standard_normal(self.limit)
            self.steps[row], self.ended[row] = 0, False
        return self._observe()

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`."""
        run, mark = ~self.ended, target(self.right)
        shake = self.shakes[np.arange(self.num_envs), np.minimum(self.steps, self.limit - 1)]
        pushed = PUSH * np.clip(action.reshape(self.num_envs), -1.0, 1.0)
        moved = mark + GROWTH * (self.place - mark) + pushed + shake
        self.place = np.where(run, moved, self.place)
        self.steps += run
        lost = np.abs(self.place - mark) >= NEAR
        self.ended |= lost | (self.steps >= self.limit)
        reward = (run & ~lost).astype(np.float64).reshape(action.shape[:-1])
        obs, solved = self._observe(), self.ended & ~lost
        over = self.ended.copy()
        return Step(
            obs, reward, over, np.zeros_like(over), obs, {"success": solved}, run.astype(np.int64)
        )

    def save(self) -> EnvState:
        """See `VecEnv.save`."""
        return {
            name: getattr(self, name).copy()
            for name in ("place", "right", "steps", "ended", "shakes")
        }

    def restore(self, state: EnvState, env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.restore`."""
        rows = list(range(self.num_envs) if env_ids is None else env_ids)
        for name, array in state.items():
            getattr(self, name)[rows] = array
        return self._observe()

    def close(self) -> None:
        """See `VecEnv.close`."""

    def _observe(self) -> Observation:
        instructions = encode([WORDS[int(right)] for right in self.right], 16)
        return {"place": self.place[:, None].astype(np.float32), INSTRUCTION: instructions}
