"""Saves and restores the complete state of a Gymnasium environment: MuJoCo's state and the
environment's attributes, or the actions since its reset."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import EnvState
from sim.engines.gym_spaces import flatten

HISTORY_ROOM = 300
"""Initial capacity of a history [actions], which doubles when it is full; the length of a published
push-T episode."""
NOT_DERIVED = ("bvh_active",)
"""Arrays of MuJoCo's data that are not saved: flags of bounding boxes for rendering, far larger
than the others together."""
TRIAL_STEPS = 5
"""Steps before and after the state that `tested_state` saves."""
MODEL_FIELDS = (
    "body_pos",
    "body_quat",
    "body_mass",
    "geom_size",
    "geom_rgba",
    "site_pos",
    "site_quat",
)
"""Fields of the compiled model that known environments randomise at a reset (mazes, doors,
targets)."""


class ActionHistory:
    """The actions of N environments since their reset, which together with the seed determine the
    state of any deterministic environment.

    Restoring takes as many steps as were recorded, so it is meant for environments whose physics
    cannot be copied.
    """

    def __init__(self, num_envs: int, action_size: int):
        """Starts with empty histories."""
        self.actions = np.zeros((num_envs, HISTORY_ROOM, action_size))
        self.length = np.zeros(num_envs, dtype=np.int64)

    def clear(self, env_ids: np.ndarray) -> None:
        """Deletes the actions of `env_ids` after a reset."""
        self.actions[env_ids], self.length[env_ids] = 0.0, 0

    def add(self, env_id: int, action: np.ndarray) -> None:
        """Adds an action `(A,)` of one environment."""
        if self.length[env_id] == self.actions.shape[1]:
            self.actions = np.concatenate([self.actions, np.zeros_like(self.actions)], axis=1)
        self.actions[env_id, self.length[env_id]] = action
        self.length[env_id] += 1

    def save(self) -> EnvState:
        """Returns `actions` (N, T, A), padded with zeros, and `length` (N,)."""
        return {"actions": self.actions.copy(), "length": self.length.copy()}

    def of(self, state: EnvState, row: int) -> np.ndarray:
        """(t, A) actions of one row of a saved state."""
        return state["actions"][row, : int(state["length"][row])]


class MujocoState:
    """Copies the complete state of one MuJoCo environment into flat arrays and back, bit for bit.

    In addition to MuJoCo's integration state it contains the derived quantities (environments read
    positions that are one substep old, so they cannot be recomputed), some fields of the model, the
    random generator, and every attribute of the environment that is a number or an array of
    numbers. State stored elsewhere is missed; `tested_state` tests whether that matters.
    """

    def __init__(self, environment: Any):
        """Reads the shapes from `environment`, which must have been reset once.

        Raises:
            HandoffError: the environment has no MuJoCo `model` and `data`.
        """
        model, data = getattr(environment, "model", None), getattr(environment, "data", None)
        if not _is_mujoco(model, data):
            raise HandoffError(
                f"{type(environment).__name__}: no MuJoCo `model` and `data` to copy, so its state cannot be saved. "
                "`saving='replay'` restores it by repeating the actions."
            )
        import mujoco

        self._state_size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION)
        # Arrays in MuJoCo's arena (contacts, constraints) are empty in new data, and each step
        # computes them first.
        fresh = mujoco.MjData(model)
        self._derived = [
            name
            for name in sorted(dir(fresh))
            if not name.startswith("_") and name not in NOT_DERIVED
            if isinstance(value := getattr(fresh, name), np.ndarray) and value.size
        ]
        self._attributes = [
            name for name, value in sorted(vars(environment).items()) if _is_numeric(value)
        ]

    def save(self, environment: Any) -> dict[str, np.ndarray]:
        """Named flat arrays of one environment."""
        import mujoco

        model, data = environment.model, environment.data
        physics = np.zeros(self._state_size)
        mujoco.mj_getState(model, data, physics, mujoco.mjtState.mjSTATE_INTEGRATION)
        numbers = [
            np.asarray(getattr(environment, name), dtype=np.float64).ravel()
            for name in self._attributes
        ]
        return {
            "physics": physics,
            "derived": np.concatenate(
                [getattr(data, name).ravel().astype(np.float64) for name in self._derived]
            ),
            "model": np.concatenate(
                [getattr(model, name).ravel().astype(np.float64) for name in MODEL_FIELDS]
            ),
            "attributes": np.concatenate([*numbers, np.zeros(0)]),
            "generator": _generator_words(environment.np_random),
        }

    def restore(self, environment: Any, row: dict[str, np.ndarray]) -> None:
        """Writes a saved state into `environment`."""
        import mujoco

        model, data = environment.model, environment.data
        _scatter(row["model"], [getattr(model, name) for name in MODEL_FIELDS])
        mujoco.mj_setState(model, data, row["physics"], mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(model, data)
        _scatter(row["derived"], [getattr(data, name) for name in self._derived])
        at = 0
        for name in self._attributes:
            current = getattr(environment, name)
            values = row["attributes"][at : at + np.size(current)]
            at += np.size(current)
            if isinstance(current, np.ndarray):
                # A new array, because the old one may be shared with an earlier observation.
                setattr(environment, name, values.reshape(current.shape).astype(current.dtype))
            else:
                setattr(environment, name, type(current)(values[0]))
        _set_generator(environment.np_random, row["generator"])


def _is_mujoco(model: Any, data: Any) -> bool:
    """Whether an environment has MuJoCo's model and data; without MuJoCo none has them."""
    try:
        import mujoco
    except ModuleNotFoundError:
        return False
    return isinstance(model, mujoco.MjModel) and isinstance(data, mujoco.MjData)


def tested_state(env: Any, name: str) -> MujocoState:
    """Returns a `MujocoState` for environments like `env` after a test: step, save, step, restore
    and step again.

    Raises:
        HandoffError: the environment does not use MuJoCo, or the restored state did not reproduce
            the same steps bit for bit.
    """
    env.reset(seed=0)
    snapshot = MujocoState(env.unwrapped)
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(2 * TRIAL_STEPS)]
    _take(env, actions[:TRIAL_STEPS])
    saved = snapshot.save(env.unwrapped)
    expected = _take(env, actions[TRIAL_STEPS:])
    snapshot.restore(env.unwrapped, saved)
    if _take(env, actions[TRIAL_STEPS:]) != expected:
        raise HandoffError(
            f"{name}: a restored state does not reproduce the same steps, so it cannot be saved. "
            "`saving='replay'` restores it by repeating the actions."
        )
    return snapshot


def _take(env: Any, actions: list[np.ndarray]) -> list[bytes]:
    """Observations and rewards of an environment for `actions` (T, A), as bytes for comparison."""
    results = []
    for action in actions:
        observation, reward, *_ = env.step(action)
        results += [
            np.asarray(value).tobytes() for value in (*flatten(observation).values(), reward)
        ]
    return results


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiub"
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _scatter(flatten: np.ndarray, targets: list[np.ndarray]) -> None:
    at = 0
    for target in targets:
        target[:] = flatten[at : at + target.size].reshape(target.shape)
        at += target.size


def _generator_words(generator: np.random.Generator) -> np.ndarray:
    """(6,) uint64: the two halves of PCG64's state and of its increment, and its buffered 32
    bits."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise HandoffError(
            f"random generator {state['bit_generator']}, only PCG64, Gymnasium's own, can be saved."
        )
    value = state["state"]["state"]
    increment = state["state"]["inc"]
    mask = (1 << 64) - 1
    words = [
        value >> 64,
        value & mask,
        increment >> 64,
        increment & mask,
        state["has_uint32"],
        state["uinteger"],
    ]
    return np.array(words, dtype=np.uint64)


def _set_generator(generator: np.random.Generator, words: np.ndarray) -> None:
    w = [int(word) for word in words]
    generator.bit_generator.state = {
        "bit_generator": "PCG64",
        "state": {"state": (w[0] << 64) | w[1], "inc": (w[2] << 64) | w[3]},
        "has_uint32": w[4],
        "uinteger": w[5],
    }
