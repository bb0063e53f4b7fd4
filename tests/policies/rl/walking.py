"""Environments with one number that moves: easy to follow by hand, freezing at their end, saved and
restored."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import EnvState, Observation, Step
from robots.spec import ActionSpec, FieldSpec

LIMIT = 5
"""Steps after which time is up."""
NEAR = 0.3
"""Distance from 0 at which it is solved; every start is further away."""


class Walking:
    """A place moves by half of the action, and pays minus its distance from 0, where it is solved.

    Args:
        num_envs: N.
        saves: whether its state can be saved.
    """

    rate_hz = 10.0

    def __init__(self, num_envs: int, saves: bool = True) -> None:
        self.num_envs, self._saves, self.closed = num_envs, saves, False
        one = FieldSpec(shape=(1,), unit="m")
        self.observation_spec: Mapping[str, FieldSpec] = {
            "place": one,
            "twice": one,
            "front": FieldSpec(shape=(2, 2, 3), dtype="uint8", unit="u8"),
        }
        self.action_spec = ActionSpec(low=(-1.0,), high=(1.0,), names=("x",), interface="walk")
        self.place, self.steps = np.zeros(num_envs), np.zeros(num_envs, np.int64)
        self.seeds: list[int] = []
        """Every seed from which an episode began."""

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        rows = list(range(self.num_envs)) if env_ids is None else list(env_ids)
        self.seeds += [int(seed) for seed in seeds]
        for row, seed in zip(rows, seeds, strict=True):
            self.place[row] = np.random.default_rng(seed).uniform(0.5, 1.5) * (
                1 if seed % 2 else -1
            )
        self.steps[rows] = 0
        return self._obs()

    def step(self, action: np.ndarray) -> Step:
        running = ~self._over()
        self.place = np.where(running, self.place + 0.5 * action[:, 0], self.place)
        self.steps += running
        solved = np.abs(self.place) < NEAR
        return Step(
            observation=self._obs(),
            reward=-np.abs(self.place),
            terminated=solved,
            truncated=(self.steps >= LIMIT) & ~solved,
            final_observation=self._obs(),
            info={"success": solved},
            executed=running.astype(np.int64),
        )

    def save(self) -> EnvState:
        if not self._saves:
            raise HandoffError("walking: its state cannot be saved.")
        return {"place": self.place.copy(), "steps": self.steps.copy()}

    def restore(self, state: EnvState, env_ids: Sequence[int] | None = None) -> Observation:
        self.place, self.steps = state["place"].copy(), state["steps"].copy()
        return self._obs()

    def close(self) -> None:
        self.closed = True

    def _over(self) -> np.ndarray:
        return (np.abs(self.place) < NEAR) | (self.steps >= LIMIT)

    def _obs(self) -> Observation:
        place = self.place[:, None].copy()
        return {
            "place": place,
            "twice": 2 * place,
            "front": np.zeros((self.num_envs, 2, 2, 3), np.uint8),
        }


def solved_share(folder: Path, horizon: int = 1) -> float:
    """Share of 200 fresh starts on both sides that a saved policy solves, by the first action of
    each chunk.

    Args:
        folder: of the policy.
        horizon: actions of its chunks.
    """
    from policies.load import load_policy

    policy, env = load_policy(folder), Walking(200)
    place, solved = env.reset(range(5000, 5200))["place"], np.zeros(200, bool)
    for _ in range(LIMIT):
        made = env.step(policy(place[:, None], np.zeros((200, horizon, 1)))[:, 0])
        place, solved = made.observation["place"], solved | made.terminated
    return float(solved.mean())
