"""Converts a Gymnasium environment's spaces and metadata to field and action specifications,
control rate and time limit."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.spec import ActionSpec, FieldSpec


def flatten(observation: Any, path: str = "") -> dict[str, Any]:
    """Leaves of a nested observation (or of its space) by their paths, `outer/inner`; an
    observation that is not nested is called `observation`."""
    if not isinstance(observation, Mapping):
        return {path or "observation": observation}
    return {
        name: value
        for key, inner in observation.items()
        for name, value in flatten(inner, f"{path}/{key}" if path else str(key)).items()
    }


def field_specs(name: str, space: Any) -> dict[str, FieldSpec]:
    """A field specification per leaf of an observation space.

    Raises:
        HandoffError: a leaf that is not a Box.
    """
    from gymnasium import spaces

    specs = {}
    leaves = flatten(space)
    for key, leaf in leaves.items():
        if not isinstance(leaf, spaces.Box):
            raise HandoffError(
                f"{name}: observation '{key}' is a {type(leaf).__name__}, only Box and Dict are supported."
            )
        image = leaf.dtype == np.uint8 and len(leaf.shape) == 3
        specs[key] = FieldSpec(
            shape=tuple(leaf.shape), dtype=str(leaf.dtype), unit="u8" if image else "1"
        )
    return specs


def action_spec(name: str, space: Any) -> ActionSpec:
    """Flattened bounds of a Box of actions.

    Raises:
        HandoffError: another kind of space.
    """
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        raise HandoffError(f"{name}: actions are a {type(space).__name__}, only Box is supported.")
    return ActionSpec(
        low=tuple(map(float, space.low.ravel())), high=tuple(map(float, space.high.ravel()))
    )


def control_rate(name: str, env: Any) -> float:
    """Actions per second of simulated time.

    Raises:
        HandoffError: the environment does not specify it.
    """
    dt = getattr(env.unwrapped, "dt", None)
    # gym-pusht's `dt` is one of its ten physics steps; its metadata has the control rate, as the
    # API requires.
    rate = env.metadata.get("render_fps") or (1.0 / dt if dt else None)
    if rate is None:
        raise HandoffError(f"{name}: the environment specifies no control rate. Set rate_hz.")
    return float(rate)


def time_limit(name: str, env_id: str) -> int:
    """Registered time limit [control periods].

    Raises:
        HandoffError: no time limit is registered.
    """
    import gymnasium

    limit = gymnasium.spec(env_id.rpartition(":")[2]).max_episode_steps
    if limit is None:
        raise HandoffError(f"{name}: registered without a time limit. Set max_steps.")
    return int(limit)


def patch_joint_types() -> None:
    """Makes gymnasium-robotics 1.4.2 recognise joint types with MuJoCo 3.12 and later.

    It tests whether a NumPy integer is in a tuple of MuJoCo's enum members, which is no longer true
    for equal values (pybind11 3.1). Its module for joint access gets a copy of `mujoco` whose joint
    types are plain integers.
    """
    import types

    import mujoco
    from gymnasium_robotics.utils import mujoco_utils  # pyright: ignore[reportMissingImports]

    kinds = mujoco.mjtJoint  # pyright: ignore[reportAttributeAccessIssue]
    if np.int32(int(kinds.mjJNT_HINGE)) in (kinds.mjJNT_HINGE,):
        return
    view = types.ModuleType("mujoco")
    view.__dict__.update(vars(mujoco))
    view.__dict__["mjtJoint"] = types.SimpleNamespace(
        **{name: int(kind) for name, kind in kinds.__members__.items()}
    )
    mujoco_utils.mujoco = view


@contextmanager
def seeded_numpy(seed: int) -> Iterator[None]:
    """Context in which NumPy's global generator draws from `seed`; it then continues as before."""
    state = np.random.get_state()
    np.random.seed(seed % 2**32)
    try:
        yield
    finally:
        np.random.set_state(state)
