"""Saves and restores all that the future of a Gymnasium environment depends on: MuJoCo's state and
its own attributes, or else its past."""

# The compiled mujoco module has no type stubs.
# pyright: reportAttributeAccessIssue=false

from __future__ import annotations

from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.interfaces import WorldState
from sim.engines.gym_spaces import flat

HISTORY_ROOM = 300
"""Actions for which a history has room at first; it doubles when full. The published push-T episode
has as many."""
NOT_DERIVED = ("bvh_active",)
"""Arrays of MuJoCo's data left out: marks of bounding boxes for drawing, far larger than all the
rest."""
TRIAL_STEPS = 5
"""Steps before and after the state that `tried_state` saves."""
MODEL_FIELDS = (
    "body_pos",
    "body_quat",
    "body_mass",
    "geom_size",
    "geom_rgba",
    "site_pos",
    "site_quat",
)
"""Numbers of the compiled model that environments are known to draw anew at a reset (mazes, doors,
targets)."""


class ActionHistory:
    """The actions of N worlds since their starts: with the start, the exact state of any repeatable
    environment.

    Going back costs as many steps as were taken, so it is for worlds whose physics cannot be
    copied.
    """

    def __init__(self, num_envs: int, action_size: int):
        """No actions yet."""
        self.actions = np.zeros((num_envs, HISTORY_ROOM, action_size))
        self.length = np.zeros(num_envs, dtype=np.int64)

    def clear(self, worlds: np.ndarray) -> None:
        """Forgets the actions of `worlds`, which start anew."""
        self.actions[worlds], self.length[worlds] = 0.0, 0

    def add(self, world: int, action: np.ndarray) -> None:
        """One more action `(A,)` of one world."""
        if self.length[world] == self.actions.shape[1]:
            self.actions = np.concatenate([self.actions, np.zeros_like(self.actions)], axis=1)
        self.actions[world, self.length[world]] = action
        self.length[world] += 1

    def save(self) -> WorldState:
        """`actions` (N, T, A), filled up with zeros, and `length` (N,)."""
        return {"actions": self.actions.copy(), "length": self.length.copy()}

    def of(self, state: WorldState, row: int) -> np.ndarray:
        """(t, A) actions of one row of what `save` returned."""
        return state["actions"][row, : int(state["length"][row])]


class MujocoState:
    """Copies all that one MuJoCo environment's future depends on into flat arrays, and back, bit
    for bit.

    Besides MuJoCo's own integration state these are the derived quantities (environments read
    positions that are one substep old, so they cannot be computed anew), a few numbers of the
    model, the random generator, and every attribute of the environment that is a number or an array
    of numbers. State kept elsewhere is not seen; `tried_state` looks whether that matters.
    """

    def __init__(self, environment: Any):
        """Takes the shapes from `environment`, which must have been reset once.

        Raises:
            HandoffError: it has no MuJoCo `model` and `data`.
        """
        import mujoco

        model, data = getattr(environment, "model", None), getattr(environment, "data", None)
        if not isinstance(model, mujoco.MjModel) or not isinstance(data, mujoco.MjData):
            raise HandoffError(
                f"{type(environment).__name__}: no MuJoCo `model` and `data` to copy, so its state cannot be saved. "
                "`saving='replay'` goes back by repeating the actions."
            )
        self._state_size = mujoco.mj_stateSize(model, mujoco.mjtState.mjSTATE_INTEGRATION)
        # Arrays in MuJoCo's arena (contacts, constraints) are empty in fresh data; each step
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
        """Puts what `save` returned into `environment`."""
        import mujoco

        model, data = environment.model, environment.data
        _scatter(row["model"], [getattr(model, name) for name in MODEL_FIELDS])
        mujoco.mj_setState(model, data, row["physics"], mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_forward(model, data)
        _scatter(row["derived"], [getattr(data, name) for name in self._derived])
        at = 0
        for name in self._attributes:
            before = getattr(environment, name)
            values = row["attributes"][at : at + np.size(before)]
            at += np.size(before)
            if isinstance(before, np.ndarray):
                # A new array: the old one may be shared with an observation that somebody still
                # holds.
                setattr(environment, name, values.reshape(before.shape).astype(before.dtype))
            else:
                setattr(environment, name, type(before)(values[0]))
        _set_generator(environment.np_random, row["generator"])


def tried_state(env: Any, name: str) -> MujocoState:
    """A `MujocoState` for environments like `env`, which is stepped, saved, stepped on, restored
    and stepped again.

    Raises:
        HandoffError: MuJoCo does not run it, or the restored state did not repeat its future bit by
            bit.
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
            f"{name}: a restored state does not repeat its future, so it cannot be saved. "
            "`saving='replay'` goes back by repeating the actions."
        )
    return snapshot


def _take(env: Any, actions: list[np.ndarray]) -> list[bytes]:
    """All that an environment answers to `actions` (T, A), for comparison bit by bit."""
    answers = []
    for action in actions:
        observation, reward, *_ = env.step(action)
        answers += [np.asarray(value).tobytes() for value in (*flat(observation).values(), reward)]
    return answers


def _is_numeric(value: Any) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype.kind in "fiub"
    return isinstance(value, bool | int | float | np.number | np.bool_)


def _scatter(flat: np.ndarray, targets: list[np.ndarray]) -> None:
    at = 0
    for target in targets:
        target[:] = flat[at : at + target.size].reshape(target.shape)
        at += target.size


def _generator_words(generator: np.random.Generator) -> np.ndarray:
    """(6,) uint64: the two halves of PCG64's state and increment, and its spare 32 bits."""
    state = generator.bit_generator.state
    if state["bit_generator"] != "PCG64":
        raise HandoffError(
            f"random generator {state['bit_generator']}, only PCG64, Gymnasium's own, can be saved."
        )
    value, increment, mask = state["state"]["state"], state["state"]["inc"], (1 << 64) - 1
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
