"""WordLine: a point on a line, and an instruction that names the end to reach. Only the instruction
tells the direction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from robots.interfaces import EnvState, Observation, Step
from robots.language.text import INSTRUCTION, encode, text_field
from robots.spec import ActionSpec, FieldSpec

WORDS = ("go left", "go right")
END, STRIDE, LIMIT = 1.0, 0.4, 12
"""Where the ends are, the longest step, and the steps after which it is over."""


class WordLine:
    """Implements `robots.interfaces.VecEnv`; environments stay ended until they are reset.

    An action has two entries: the step, and one of no effect. Arriving at the named end pays 1,
    nothing else pays.

    Args:
        num_envs: N.
    """

    def __init__(self, num_envs: int) -> None:
        self.num_envs, self.rate_hz = num_envs, 10.0
        self.observation_spec: Mapping[str, FieldSpec] = {
            "place": FieldSpec(shape=(1,)),
            INSTRUCTION: text_field(16),
        }
        self.action_spec = ActionSpec(low=(-1.0, -1.0), high=(1.0, 1.0))
        self.place, self.right = np.zeros(num_envs), np.zeros(num_envs, bool)
        self.steps, self.ended = np.zeros(num_envs, np.int64), np.ones(num_envs, bool)

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`."""
        for row, seed in zip(
            range(self.num_envs) if env_ids is None else env_ids, seeds, strict=True
        ):
            draw = np.random.default_rng(seed)
            self.place[row], self.right[row] = draw.uniform(-0.4, 0.4), draw.random() < 0.5
            self.steps[row], self.ended[row] = 0, False
        return self._observe()

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`."""
        chunk = action[:, None] if action.ndim == 2 else action
        reward, executed = np.zeros(chunk.shape[:2]), np.zeros(self.num_envs, np.int64)
        success = np.abs(self.place) >= END
        success &= (self.place > 0) == self.right
        for number in range(chunk.shape[1]):
            run = ~self.ended
            self.place[run] += STRIDE * np.clip(chunk[run, number, 0], -1.0, 1.0)
            self.steps += run
            executed += run
            there = run & (np.abs(self.place) >= END)
            solved = there & ((self.place > 0) == self.right)
            success |= solved
            reward[:, number] = solved
            self.ended |= there | (run & (self.steps >= LIMIT))
        terminated = np.abs(self.place) >= END
        truncated = self.ended & ~terminated
        obs = self._observe()
        reward_out = reward if action.ndim == 3 else reward[:, 0]
        return Step(
            obs, reward_out, terminated, truncated, obs, {"success": success & terminated}, executed
        )

    def save(self) -> EnvState:
        """See `VecEnv.save`."""
        names = ("place", "right", "steps", "ended")
        return {name: getattr(self, name).copy() for name in names}

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
