"""Adds episodes to any engine: seeds, time limits, automatic resets, chunks, save and restore, and
a NaN guard.

Behaviour that must be identical on every engine is implemented and tested here once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from robots.config import Count, Whole, config
from robots.errors import HandoffError
from robots.interfaces import EnvState, Observation, Step
from sim.engine import Engine, EngineState

EPISODE_STATE = ("seed", "episode", "steps", "ended", "was_success", "was_truncated")
"""Episode fields that `EngineVecEnv.save` adds to the engine's own."""
COST = "cost"
"""Name of the cost in `info`, which is summed over the actions of a chunk."""
LAST = "last "
"""Prefix of the saved fields that hold the last observation, reward, flags and info."""


@config
class VecEnvConfig:
    """Start and end of episodes."""

    on_end: Literal["reset", "freeze"] = "reset"
    """Behaviour of an environment whose episode has ended: it is reset from a seed derived from
    its own and its episode count (training), or stays frozen until `reset` (evaluation)."""
    max_steps: Count | None = None
    """Time limit [control periods]; None takes the task's own."""
    guard_steps: Whole = 8
    """Number of last states that are dumped when an environment becomes non-finite; 0 keeps
    none."""
    dump_folder: str = "runs/nan"
    """Folder of these dumps."""


def next_seed(seed: int, episode: int) -> int:
    """Seed of episode number `episode` (1 is the first automatic reset) of an environment that was
    reset with `seed`."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0] & 0x7FFFFFFF)


class EngineVecEnv:
    """Implements `robots.interfaces.VecEnv` over an `Engine`."""

    def __init__(self, engine: Engine, config: VecEnvConfig | None = None) -> None:
        """Takes ownership of the engine; `close` closes it.

        Args:
            engine: an engine that has not been reset yet.
            config: start and end of episodes.

        Raises:
            HandoffError: no environments, or a time limit below 1.
        """
        self.engine = engine
        self.config = config or VecEnvConfig()
        self.num_envs = engine.num_envs
        self.observation_spec = engine.observation_spec
        self.action_spec = engine.action_spec
        self.rate_hz = engine.rate_hz
        self.max_steps = (
            engine.max_steps if self.config.max_steps is None else self.config.max_steps
        )
        if self.num_envs < 1 or self.max_steps < 1:
            raise HandoffError(
                f"{engine.name}: {self.num_envs} environments with a limit of {self.max_steps} steps, both "
                "must be >= 1."
            )
        n = self.num_envs
        self._seed = np.zeros(n, dtype=np.int64)
        self._episode = np.zeros(n, dtype=np.int64)
        self._steps = np.zeros(n, dtype=np.int64)
        self._ended = np.ones(n, dtype=bool)
        self._was_success = np.zeros(n, dtype=bool)
        self._was_truncated = np.zeros(n, dtype=bool)
        self._state: EngineState | None = None
        self._closed = False
        self._recent: deque[tuple[EnvState, np.ndarray]] = deque(maxlen=self.config.guard_steps)

    @property
    def steps(self) -> np.ndarray:
        """(N,) control periods since each environment's reset."""
        return self._steps.copy()

    @property
    def episode_seeds(self) -> np.ndarray:
        """(N,) seed of each environment's current episode."""
        return np.array([self._episode_seed(i) for i in range(self.num_envs)])

    def reset(self, seeds: Sequence[int], env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`.

        Raises:
            HandoffError: the number of seeds differs from that of the environments, a seed is
                negative, or an environment does not exist.
        """
        rows = self._rows(env_ids)
        values = np.asarray(seeds, dtype=np.int64)
        if values.shape != rows.shape or (values < 0).any():
            raise HandoffError(
                f"{self.engine.name}: seeds {values.tolist()[:8]} for {len(rows)} environments, expected "
                "one >= 0 per environment."
            )
        self._seed[rows], self._episode[rows] = values, 0
        self._begin(rows, values)
        return self._observation()

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`. After an error about non-finite values the other environments have
        stepped, too: reset or restore all of them.

        Raises:
            HandoffError: actions of a wrong shape, or an environment has diverged.
        """
        self._last()
        actions_NHA = self._checked(np.asarray(action, dtype=np.float64))
        n, horizon = actions_NHA.shape[:2]
        rewards_NH = np.zeros((n, horizon))
        executed = np.zeros(n, dtype=np.int64)
        cost_N = np.zeros(n)
        # Each action of the chunk is executed by the environments that are still running.
        for h in range(horizon):
            running = ~self._ended
            if not running.any():
                break
            self._advance(actions_NHA[:, h], running)
            rewards_NH[running, h] = self._last().reward[running]
            if COST in self._last().info:
                cost_N[running] += self._last().info[COST][running]
            executed += running
        # Flags and the final observation are read before ended environments are reset.
        state = self._last()
        terminated = self._ended & ~self._was_truncated
        truncated = self._ended & self._was_truncated
        info = {**state.info, "success": self._was_success.copy()}
        if COST in info:
            info[COST] = cost_N
        ended_ids = np.flatnonzero(self._ended)
        if self.config.on_end == "reset" and len(ended_ids):
            self._episode[ended_ids] += 1
            self._begin(ended_ids, np.array([self._episode_seed(int(i)) for i in ended_ids]))
        return Step(
            observation=self._observation(),
            reward=rewards_NH if np.ndim(action) == 3 else rewards_NH[:, 0],
            terminated=terminated,
            truncated=truncated,
            final_observation=state.observation,
            info=info,
            executed=executed,
        )

    def save(self) -> EnvState:
        """See `VecEnv.save`. Besides the engine's fields, the state holds `EPISODE_STATE` and the
        last engine state.

        Raises:
            HandoffError: the engine cannot save, or has a field of one of these names.
        """
        last = {LAST + name: array.copy() for name, array in _named_arrays(self._last()).items()}
        own = self.engine.save()
        taken = [name for name in own if name in EPISODE_STATE or name.startswith(LAST)]
        if taken:
            raise HandoffError(
                f"{self.engine.name}: the engine saves {taken}, names of the episodes' own state, so that they could "
                "not be restored. Name them otherwise."
            )
        return {
            **own,
            **{name: getattr(self, f"_{name}").copy() for name in EPISODE_STATE},
            **last,
        }

    def restore(self, state: EnvState, env_ids: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.restore`.

        Raises:
            HandoffError: the number of rows differs from that of the environments, or a field of
                `save` is missing.
        """
        rows = self._rows(env_ids)
        # The state must have every field of `save` and one row per environment.
        last = [] if self._state is None else [LAST + name for name in _named_arrays(self._state)]
        missing = [name for name in (*EPISODE_STATE, *last) if name not in state]
        lengths = {name: len(array) for name, array in state.items() if len(array) != len(rows)}
        if missing or lengths:
            raise HandoffError(
                f"{self.engine.name}: state lacks {missing}, rows {lengths} for {len(rows)} environments. "
                "Was it saved by another kind of environment?"
            )
        for name in EPISODE_STATE:
            getattr(self, f"_{name}")[rows] = state[name]
        engine_fields = {
            name: array
            for name, array in state.items()
            if name not in EPISODE_STATE and not name.startswith(LAST)
        }
        self.engine.restore(rows, engine_fields)
        restored = self.engine.read()
        # The engine may have stepped a frozen environment before it was saved, but such an
        # environment must report the end of its episode.
        ended = np.flatnonzero(state["ended"])
        for name, array in _named_arrays(restored).items():
            array[rows[ended]] = state[LAST + name][ended]
        self._state = _replace_rows(self._state, restored, rows)
        self._recent.clear()
        return self._observation()

    def close(self) -> None:
        """Closes the engine; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.engine.close()

    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> None:
        self.engine.reset(rows, seeds)
        self._steps[rows], self._ended[rows] = 0, False
        self._was_success[rows] = self._was_truncated[rows] = False
        self._state = _replace_rows(self._state, self.engine.read(), rows)

    def _advance(self, action_NA: np.ndarray, running: np.ndarray) -> None:
        """Steps the running environments by one control period; the state of the others stays
        unchanged."""
        if self.config.guard_steps:
            self._remember(action_NA)
        self.engine.step(action_NA, running)
        state = self.engine.read()
        self._guard(state, running)
        rows = np.flatnonzero(running)
        self._state = state if running.all() else _replace_rows(self._state, state, rows)
        self._steps += running
        self._was_success[rows] = state.success[rows]
        timed_out = running & ~state.terminated & (self._steps >= self.max_steps)
        self._was_truncated[rows] = timed_out[rows]
        self._ended |= running & (state.terminated | timed_out)

    def _remember(self, action_NA: np.ndarray) -> None:
        try:
            self._recent.append((self.engine.save(), action_NA.copy()))
        except HandoffError:
            # This engine cannot save: the dump then holds only the actions and its current state.
            self._recent.append(({}, action_NA.copy()))

    def _guard(self, state: EngineState, running: np.ndarray) -> None:
        """Raises if the reward or an observation of a running environment is not finite."""
        finite: np.ndarray = np.isfinite(state.reward)
        bad = ["reward"] if not finite[running].all() else []
        for name, array in state.observation.items():
            if array.dtype.kind != "f":
                continue
            rows = np.all(np.isfinite(array).reshape(len(array), -1), axis=1)
            if not rows[running].all():
                bad.append(name)
                finite &= rows
        if bad:
            env_id = int(np.flatnonzero(running & ~finite)[0])
            path = self._dump(env_id)
            raise HandoffError(
                f"{self.engine.name}: environment {env_id} (seed {self._episode_seed(env_id)}, step "
                f"{self._steps[env_id]}) has "
                f"non-finite {bad}; its last {len(self._recent)} states and actions are in {path}. "
                "Did an action or a gain make the physics unstable? (The reward alone is NaN where speeds are "
                "implausibly high.)"
            )

    def _dump(self, env_id: int) -> Path:
        folder = Path(self.config.dump_folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = (
            folder
            / f"{self.engine.name.replace(' ', '_').replace('/', '_')}-{time.strftime('%Y%m%dT%H%M%S')}-{env_id}.npz"
        )
        arrays = {f"now_{name}": array for name, array in self.engine.dump(env_id).items()}
        for age, (state, action) in enumerate(reversed(self._recent), 1):
            arrays[f"before_{age}_action"] = action[env_id]
            arrays |= {f"before_{age}_{name}": array[env_id] for name, array in state.items()}
        np.savez(path, seed=self._episode_seed(env_id), step=self._steps[env_id], **arrays)  # type: ignore[arg-type]
        return path

    def _episode_seed(self, env_id: int) -> int:
        seed, episode = int(self._seed[env_id]), int(self._episode[env_id])
        return next_seed(seed, episode) if episode else seed

    def _observation(self) -> Observation:
        return dict(self._last().observation)

    def _last(self) -> EngineState:
        self._check_open()
        if self._state is None:
            raise HandoffError(
                f"{self.engine.name}: used before the first reset. Call reset(seeds) first."
            )
        return self._state

    def _check_open(self) -> None:
        if self._closed:
            raise HandoffError(f"{self.engine.name}: these environments are closed. Make new ones.")

    def _rows(self, env_ids: Sequence[int] | None) -> np.ndarray:
        self._check_open()
        rows = np.arange(self.num_envs) if env_ids is None else np.asarray(env_ids, dtype=np.int64)
        if self._state is None and len(rows) != self.num_envs:
            raise HandoffError(
                f"{self.engine.name}: the first reset must start all {self.num_envs} environments."
            )
        if len(np.unique(rows)) != len(rows) or (rows < 0).any() or (rows >= self.num_envs).any():
            raise HandoffError(
                f"{self.engine.name}: environments {rows.tolist()[:8]}, expected different numbers in "
                f"0..{self.num_envs - 1}."
            )
        return rows

    def _checked(self, action: np.ndarray) -> np.ndarray:
        """Checks an action (N, A) or chunk (N, H, A) and returns it as (N, H, A)."""
        size = self.action_spec.size
        chunk = action[:, None] if action.ndim == 2 else action
        if (
            chunk.ndim != 3
            or chunk.shape[0] != self.num_envs
            or chunk.shape[1] < 1
            or chunk.shape[2] != size
        ):
            raise HandoffError(
                f"{self.engine.name}: action of shape {action.shape}, expected ({self.num_envs}, {size}) or "
                f"({self.num_envs}, H, {size}). Was the policy made for another task?"
            )
        finite = np.all(np.isfinite(chunk).reshape(len(chunk), -1), axis=1)
        if not finite[~self._ended].all():
            env_id = int(np.flatnonzero(~self._ended & ~finite)[0])
            raise HandoffError(
                f"{self.engine.name}: action of environment {env_id} is {chunk[env_id].tolist()}, expected "
                "finite numbers. Did training diverge?"
            )
        return chunk


def _named_arrays(state: EngineState) -> dict[str, np.ndarray]:
    """The arrays of an engine state (not copies), each under a unique name."""
    return {
        "reward": state.reward,
        "terminated": state.terminated,
        "success": state.success,
        **{f"observation {name}": array for name, array in state.observation.items()},
        **{f"info {name}": array for name, array in state.info.items()},
    }


def _replace_rows(old: EngineState | None, new: EngineState, rows: np.ndarray) -> EngineState:
    """Takes `rows` from `new` and all others from `old`; the arrays of `old` are not changed,
    because a `Step` may still refer to them."""
    if old is None or len(rows) == len(new.reward):
        return new

    def merge(old_array: np.ndarray, new_array: np.ndarray) -> np.ndarray:
        merged = old_array.copy()
        merged[rows] = new_array[rows]
        return merged

    return EngineState(
        observation={
            name: merge(old.observation[name], array) for name, array in new.observation.items()
        },
        reward=merge(old.reward, new.reward),
        terminated=merge(old.terminated, new.terminated),
        success=merge(old.success, new.success),
        info={name: merge(old.info[name], array) for name, array in new.info.items()},
    )
