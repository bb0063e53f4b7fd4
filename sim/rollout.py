"""Receding-horizon execution: a chunk policy acts in N worlds, a few actions of each chunk at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.noise import chunk_noise
from robots.types import Observation, Policy, Progress, Step, VecEnv, no_progress


@config
class Chunking:
    """How a chunk policy reads history and how much of each chunk is executed."""

    fields: tuple[str, ...] = ("keypoints", "agent")
    """Observation fields of one step, flattened and concatenated in this order."""
    action_size: int = 2
    """A, entries of one action."""
    n_obs_steps: int = 2
    """Observations per inference, newest last; at the start the first one is repeated."""
    horizon: int = 16
    """Actions predicted per inference."""
    n_action_steps: int = 8
    """Actions executed per inference, starting at index `n_obs_steps - 1`, which belongs to the newest observation."""


@dataclass(frozen=True)
class Episode:
    """What one world came to."""

    seed: int
    coverage: float
    """Largest coverage of the goal at any step, 0..1."""
    reward: float
    """Largest reward at any step, 0..1."""
    success: bool
    """Whether the task was solved at any step."""
    steps: int
    """Control periods until success or the time limit."""
    trajectory: dict[str, np.ndarray] | None = None
    """Per field `(steps, ...)`: the observation before each action, and `action`; None unless recorded."""


def rollout(
    policy: Policy,
    env: VecEnv,
    seeds: Sequence[int],
    chunking: Chunking,
    max_steps: int,
    *,
    record: bool = False,
    watch: Callable[[], None] = lambda: None,
    progress: Progress = no_progress,
) -> list[Episode]:
    """Runs one episode per seed; the policy is asked for the worlds that still run only.

    Args:
        policy: chunk policy in the units of `env`.
        env: `len(seeds)` worlds whose steps tell `coverage` and `success` in `info`.
        seeds: start pose and noise of each episode.
        chunking: shapes agreed with the policy.
        max_steps: time limit [control periods].
        record: keep observations and actions.
        watch: called after the reset and after every control period, to take pictures.
        progress: counts control periods of `max_steps`.

    Raises:
        HandoffError: the policy answered a wrong shape or a non-finite value.
    """
    most = chunking.horizon - chunking.n_obs_steps + 1
    if not 1 <= chunking.n_action_steps <= most:
        raise HandoffError(
            f"rollout: n_action_steps is {chunking.n_action_steps}, expected 1..{most} for a horizon of "
            f"{chunking.horizon} with {chunking.n_obs_steps} observations."
        )
    observation = env.reset(seeds)
    tally = _Tally(seeds, record)
    newest_NO = _flatten(observation, chunking.fields)
    history_NTO = np.repeat(newest_NO[:, None], chunking.n_obs_steps, axis=1)
    watch()
    chunk_NHA = np.zeros((len(seeds), chunking.horizon, chunking.action_size), dtype=np.float32)
    for step in range(max_steps):
        index, offset = divmod(step, chunking.n_action_steps)
        if offset == 0:
            rows = np.flatnonzero(tally.running)
            chunk_NHA[rows] = _predict(policy, history_NTO[rows], [seeds[int(i)] for i in rows], index, chunking)
        action_NA = chunk_NHA[:, chunking.n_obs_steps - 1 + offset].copy()
        result = env.step(action_NA)
        tally.add(observation, action_NA, result)
        observation = result.observation
        newest_NO = _flatten(observation, chunking.fields)
        history_NTO = np.concatenate([history_NTO[:, 1:], newest_NO[:, None]], axis=1)
        watch()
        progress(step + 1, max_steps, f"{int(tally.success.sum())}/{len(seeds)} solved")
        if not tally.running.any():
            break
    return tally.episodes()


class _Tally:
    """Best coverage and reward, success and length of N episodes, and on request their frames."""

    def __init__(self, seeds: Sequence[int], record: bool):
        n = len(seeds)
        self.running = np.ones(n, dtype=bool)
        self.success = np.zeros(n, dtype=bool)
        self._seeds = seeds
        self._coverage, self._reward = np.zeros(n), np.zeros(n)
        self._steps = np.zeros(n, dtype=int)
        self._frames: list[dict[str, np.ndarray]] | None = [] if record else None

    def add(self, before: Observation, action: np.ndarray, result: Step) -> None:
        """One control period: the observation `before` it, the `action` taken, and what came of it."""
        run = self.running
        self._steps[run] += 1
        self._coverage[run] = np.maximum(self._coverage, result.info["coverage"])[run]
        self._reward[run] = np.maximum(self._reward, result.reward)[run]
        self.success |= run & result.info["success"]
        self.running = run & ~(result.terminated | result.truncated)
        if self._frames is not None:
            self._frames.append({**before, "action": action})

    def episodes(self) -> list[Episode]:
        return [
            Episode(
                seed=int(seed),
                coverage=float(self._coverage[i]),
                reward=float(self._reward[i]),
                success=bool(self.success[i]),
                steps=int(self._steps[i]),
                trajectory=self._trajectory(i),
            )
            for i, seed in enumerate(self._seeds)
        ]

    def _trajectory(self, i: int) -> dict[str, np.ndarray] | None:
        if self._frames is None:
            return None
        frames = self._frames[: self._steps[i]]
        return {name: np.stack([frame[name][i] for frame in frames]) for name in frames[0]}


def _flatten(observation: Observation, fields: Sequence[str]) -> np.ndarray:
    missing = [name for name in fields if name not in observation]
    if missing:
        raise HandoffError(f"observation: no field {missing}; the world has {sorted(observation)}. Another task?")
    parts = [observation[name].reshape(len(observation[name]), -1) for name in fields]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _predict(policy: Policy, history: np.ndarray, seeds: Sequence[int], index: int, chunking: Chunking) -> np.ndarray:
    """Chunk number `index` of the episodes `seeds`, checked: (len(seeds), horizon, A)."""
    shape = (chunking.horizon, chunking.action_size)
    noise = np.stack([chunk_noise(seed, index, *shape) for seed in seeds])
    chunk = np.asarray(policy(history, noise))
    if chunk.shape != noise.shape:
        raise HandoffError(
            f"policy output: shape {chunk.shape}, expected {noise.shape} (worlds, horizon, action). "
            "Was the policy trained with another horizon or action?"
        )
    if not np.isfinite(chunk).all():
        row, step, entry = (int(i) for i in np.argwhere(~np.isfinite(chunk))[0])
        raise HandoffError(
            f"policy output: value at index ({row}, {step}, {entry}) is {chunk[row, step, entry]} in chunk {index} of "
            f"the episode with seed {seeds[row]}, expected finite m. Did training diverge?"
        )
    return chunk
