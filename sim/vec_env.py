"""Episodes over any engine: seeds, time limits, automatic resets, chunks, save and restore, and a
guard against NaN.

Everything that must mean the same on every engine is here, so that it is written and tested once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np

from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Observation, Step, WorldState
from sim.engine import Engine, EngineState

EPISODE_STATE = ("seed", "episode", "steps", "ended", "was_success", "was_truncated")
"""Fields that `Worlds.save` adds to the engine's own."""
LAST = "last "
"""Begins the names of those that hold what the worlds last told."""


@config
class WorldsConfig:
    """How episodes begin and end."""

    on_end: Literal["reset", "freeze"] = "reset"
    """An ended world starts anew, from a seed derived from its own and the count of its episodes
    (training), or stays as it is until `reset` (evaluation)."""
    max_steps: int | None = None
    """Time limit [control periods]; None takes the task's own."""
    guard_steps: int = 8
    """Last states kept for the dump of a world whose numbers are no longer finite; 0 keeps none."""
    dump_folder: str = "runs/nan"
    """Where that dump is written."""


def next_seed(seed: int, episode: int) -> int:
    """Seed of episode number `episode` (1 is the first automatic reset) of a world that was reset
    with `seed`."""
    return int(np.random.SeedSequence([seed, episode]).generate_state(1)[0] & 0x7FFFFFFF)


class Worlds:
    """Implements `robots.interfaces.VecEnv` over an `Engine`."""

    def __init__(self, engine: Engine, config: WorldsConfig | None = None) -> None:
        """Takes the engine over; `close` closes it.

        Args:
            engine: not yet reset.
            config: how episodes begin and end.

        Raises:
            HandoffError: no worlds, or a time limit below 1.
        """
        self.engine, self.config = engine, config or WorldsConfig()
        self.num_envs = engine.num_envs
        self.observation_spec, self.action_spec = engine.observation_spec, engine.action_spec
        self.rate_hz = engine.rate_hz
        self.max_steps = (
            engine.max_steps if self.config.max_steps is None else self.config.max_steps
        )
        if self.num_envs < 1 or self.max_steps < 1:
            raise HandoffError(
                f"{engine.name}: {self.num_envs} worlds with a limit of {self.max_steps} steps, both must be >= 1."
            )
        n = self.num_envs
        self._seed = np.zeros(n, dtype=np.int64)
        self._episode = np.zeros(n, dtype=np.int64)
        self._steps = np.zeros(n, dtype=np.int64)
        self._ended = np.ones(n, dtype=bool)
        self._was_success = np.zeros(n, dtype=bool)
        self._was_truncated = np.zeros(n, dtype=bool)
        self._reading: EngineState | None = None
        self._closed = False
        self._recent: deque[tuple[WorldState, np.ndarray]] = deque(maxlen=self.config.guard_steps)

    @property
    def steps(self) -> np.ndarray:
        """(N,) control periods since each world's start."""
        return self._steps.copy()

    @property
    def episode_seeds(self) -> np.ndarray:
        """(N,) the seed from which each world's running episode began."""
        return np.array([self._episode_seed(i) for i in range(self.num_envs)])

    def reset(self, seeds: Sequence[int], worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.reset`.

        Raises:
            HandoffError: not one seed per world, a negative seed, or a world that does not exist.
        """
        rows = self._rows(worlds)
        values = np.asarray(seeds, dtype=np.int64)
        if values.shape != rows.shape or (values < 0).any():
            raise HandoffError(
                f"{self.engine.name}: seeds {values.tolist()[:8]} for {len(rows)} worlds, expected one >= 0 per world."
            )
        self._seed[rows], self._episode[rows] = values, 0
        self._begin(rows, values)
        return self._observation()

    def step(self, action: np.ndarray) -> Step:
        """See `VecEnv.step`. After a world broke down the others have moved unseen: reset or
        restore all of them.

        Raises:
            HandoffError: wrong actions, or a world's numbers are no longer finite or sensible.
        """
        self._last()
        actions_NHA = self._checked(np.asarray(action, dtype=np.float64))
        n, horizon = actions_NHA.shape[:2]
        rewards_NH = np.zeros((n, horizon))
        executed = np.zeros(n, dtype=np.int64)
        terminated, truncated = np.zeros(n, dtype=bool), np.zeros(n, dtype=bool)
        for h in range(horizon):
            running = ~self._ended
            if not running.any():
                break
            self._advance(actions_NHA[:, h], running)
            reading = self._last()
            rewards_NH[running, h] = reading.reward[running]
            executed += running
        reading = self._last()
        terminated = self._ended & ~self._was_truncated
        truncated = self._ended & self._was_truncated
        info = {**reading.info, "success": self._was_success.copy()}
        final = reading.observation
        over = np.flatnonzero(self._ended)
        if self.config.on_end == "reset" and len(over):
            self._episode[over] += 1
            self._begin(over, np.array([self._episode_seed(int(i)) for i in over]))
        return Step(
            observation=self._observation(),
            reward=rewards_NH if np.ndim(action) == 3 else rewards_NH[:, 0],
            terminated=terminated,
            truncated=truncated,
            final_observation=final,
            info=info,
            executed=executed,
        )

    def save(self) -> WorldState:
        """See `VecEnv.save`. Beside the engine's fields these are `EPISODE_STATE` and what was last
        told."""
        told = {LAST + name: array.copy() for name, array in _told(self._last()).items()}
        return {
            **self.engine.save(),
            **{name: getattr(self, f"_{name}").copy() for name in EPISODE_STATE},
            **told,
        }

    def restore(self, state: WorldState, worlds: Sequence[int] | None = None) -> Observation:
        """See `VecEnv.restore`.

        Raises:
            HandoffError: not one row per world, or fields that are not those of `save`.
        """
        rows = self._rows(worlds)
        told = [] if self._reading is None else [LAST + name for name in _told(self._reading)]
        missing = [name for name in (*EPISODE_STATE, *told) if name not in state]
        lengths = {name: len(array) for name, array in state.items() if len(array) != len(rows)}
        if missing or lengths:
            raise HandoffError(
                f"{self.engine.name}: state lacks {missing}, rows {lengths} for {len(rows)} worlds. "
                "Was it saved by another kind of world?"
            )
        for name in EPISODE_STATE:
            getattr(self, f"_{name}")[rows] = state[name]
        own = {
            name: array
            for name, array in state.items()
            if name not in EPISODE_STATE and not name.startswith(LAST)
        }
        self.engine.restore(rows, own)
        reading = self.engine.read()
        # An engine may have stepped a frozen world on before it was saved; what such a world shows
        # is its end.
        over = np.flatnonzero(state["ended"])
        for name, array in _told(reading).items():
            array[rows[over]] = state[LAST + name][over]
        self._reading = _kept(self._reading, reading, rows)
        self._recent.clear()
        return self._observation()

    def close(self) -> None:
        """Frees what the engine has taken; a second call does nothing."""
        if not self._closed:
            self._closed = True
            self.engine.close()

    def _begin(self, rows: np.ndarray, seeds: np.ndarray) -> None:
        self.engine.reset(rows, seeds)
        self._steps[rows], self._ended[rows] = 0, False
        self._was_success[rows] = self._was_truncated[rows] = False
        self._reading = _kept(self._reading, self.engine.read(), rows)

    def _advance(self, action_NA: np.ndarray, running: np.ndarray) -> None:
        """One control period of the worlds that run; readings of the others stay as they were."""
        if self.config.guard_steps:
            self._remember(action_NA)
        self.engine.step(action_NA, running)
        reading = self.engine.read()
        self._guard(reading, running)
        rows = np.flatnonzero(running)
        self._reading = reading if running.all() else _kept(self._reading, reading, rows)
        self._steps += running
        self._was_success[rows] = reading.success[rows]
        late = running & ~reading.terminated & (self._steps >= self.max_steps)
        self._was_truncated[rows] = late[rows]
        self._ended |= running & (reading.terminated | late)

    def _remember(self, action_NA: np.ndarray) -> None:
        try:
            self._recent.append((self.engine.save(), action_NA.copy()))
        except HandoffError:
            # The engine cannot save; its dump of the present has to do.
            self._recent.append(({}, action_NA.copy()))

    def _guard(self, reading: EngineState, running: np.ndarray) -> None:
        finite: np.ndarray = np.isfinite(reading.reward)
        bad = ["reward"] if not finite[running].all() else []
        for name, array in reading.observation.items():
            if array.dtype.kind != "f":
                continue
            rows = np.all(np.isfinite(array).reshape(len(array), -1), axis=1)
            if not rows[running].all():
                bad.append(name)
                finite &= rows
        if bad:
            world = int(np.flatnonzero(running & ~finite)[0])
            path = self._dump(world)
            raise HandoffError(
                f"{self.engine.name}: world {world} (seed {self._episode_seed(world)}, step {self._steps[world]}) has "
                f"non-finite {bad}; its last {len(self._recent)} states and actions are in {path}. "
                "Did an action or a gain make the physics unstable? (A reward alone: speeds beyond all sense.)"
            )

    def _dump(self, world: int) -> Path:
        folder = Path(self.config.dump_folder)
        folder.mkdir(parents=True, exist_ok=True)
        path = (
            folder
            / f"{self.engine.name.replace(' ', '_').replace('/', '_')}-{time.strftime('%Y%m%dT%H%M%S')}-{world}.npz"
        )
        arrays = {f"now_{name}": array for name, array in self.engine.dump(world).items()}
        for age, (state, action) in enumerate(reversed(self._recent), 1):
            arrays[f"before_{age}_action"] = action[world]
            arrays |= {f"before_{age}_{name}": array[world] for name, array in state.items()}
        np.savez(path, seed=self._episode_seed(world), step=self._steps[world], **arrays)  # type: ignore[arg-type]
        return path

    def _episode_seed(self, world: int) -> int:
        seed, episode = int(self._seed[world]), int(self._episode[world])
        return next_seed(seed, episode) if episode else seed

    def _observation(self) -> Observation:
        return dict(self._last().observation)

    def _last(self) -> EngineState:
        self._check_open()
        if self._reading is None:
            raise HandoffError(
                f"{self.engine.name}: stepped before the first reset. Call reset(seeds) first."
            )
        return self._reading

    def _check_open(self) -> None:
        if self._closed:
            raise HandoffError(f"{self.engine.name}: these worlds are closed. Make new ones.")

    def _rows(self, worlds: Sequence[int] | None) -> np.ndarray:
        self._check_open()
        rows = np.arange(self.num_envs) if worlds is None else np.asarray(worlds, dtype=np.int64)
        if self._reading is None and len(rows) != self.num_envs:
            raise HandoffError(
                f"{self.engine.name}: the first reset must start all {self.num_envs} worlds."
            )
        if len(np.unique(rows)) != len(rows) or (rows < 0).any() or (rows >= self.num_envs).any():
            raise HandoffError(
                f"{self.engine.name}: worlds {rows.tolist()[:8]}, expected different numbers in 0..{self.num_envs - 1}."
            )
        return rows

    def _checked(self, action: np.ndarray) -> np.ndarray:
        """(N, H, A) of an action or a chunk."""
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
            world = int(np.flatnonzero(~self._ended & ~finite)[0])
            raise HandoffError(
                f"{self.engine.name}: action of world {world} is {chunk[world].tolist()}, expected finite numbers. "
                "Is the policy broken?"
            )
        return chunk


def _told(reading: EngineState) -> dict[str, np.ndarray]:
    """The arrays of a reading (not copies) by one name each."""
    return {
        "reward": reading.reward,
        "terminated": reading.terminated,
        "success": reading.success,
        **{f"observation {name}": array for name, array in reading.observation.items()},
        **{f"info {name}": array for name, array in reading.info.items()},
    }


def _kept(old: EngineState | None, new: EngineState, rows: np.ndarray) -> EngineState:
    """`new` in `rows`, `old` elsewhere; the arrays of `old` stay as they are, for a `Step` may
    still hold them."""
    if old is None or len(rows) == len(new.reward):
        return new

    def merge(before: np.ndarray, now: np.ndarray) -> np.ndarray:
        merged = before.copy()
        merged[rows] = now[rows]
        return merged

    return EngineState(
        observation={
            name: merge(old.observation[name], now) for name, now in new.observation.items()
        },
        reward=merge(old.reward, new.reward),
        terminated=merge(old.terminated, new.terminated),
        success=merge(old.success, new.success),
        info={name: merge(old.info[name], now) for name, now in new.info.items()},
    )
