"""Describes a Gymnasium environment in this project's terms: fields, actions, rate and time
limit."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from robots.errors import HandoffError
from robots.spec import ActionSpec, FieldSpec


def flat(observation: Any, path: str = "") -> dict[str, Any]:
    """Leaves of a nested observation (or of its space) by their paths, `outer/inner`; a bare one is
    `observation`."""
    if not isinstance(observation, Mapping):
        return {path or "observation": observation}
    return {
        name: value
        for key, inner in observation.items()
        for name, value in flat(inner, f"{path}/{key}" if path else str(key)).items()
    }


def field_specs(name: str, space: Any) -> dict[str, FieldSpec]:
    """A spec per leaf of an observation space.

    Raises:
        HandoffError: a leaf that is not a Box.
    """
    from gymnasium import spaces

    specs = {}
    leaves = flat(space)
    for key, leaf in leaves.items():
        if not isinstance(leaf, spaces.Box):
            raise HandoffError(
                f"{name}: observation '{key}' is a {type(leaf).__name__}, only Box and Dict are known."
            )
        image = leaf.dtype == np.uint8 and len(leaf.shape) == 3
        specs[key] = FieldSpec(
            shape=tuple(leaf.shape), dtype=str(leaf.dtype), unit="u8" if image else "1"
        )
    return specs


def action_spec(name: str, space: Any) -> ActionSpec:
    """Bounds of a Box of actions, flattened.

    Raises:
        HandoffError: another kind of space.
    """
    from gymnasium import spaces

    if not isinstance(space, spaces.Box):
        raise HandoffError(f"{name}: actions are a {type(space).__name__}, only Box is known.")
    return ActionSpec(
        low=tuple(map(float, space.low.ravel())), high=tuple(map(float, space.high.ravel()))
    )


def control_rate(name: str, env: Any) -> float:
    """Actions per second of simulated time.

    Raises:
        HandoffError: the environment does not tell.
    """
    dt = getattr(env.unwrapped, "dt", None)
    # gym-pusht's `dt` is that of one of its ten physics steps; its metadata tells the control rate,
    # as the API asks.
    told = env.metadata.get("render_fps") or (1.0 / dt if dt else None)
    if told is None:
        raise HandoffError(f"{name}: tells no control rate. Set rate_hz.")
    return float(told)


def time_limit(name: str, env_id: str) -> int:
    """Registered time limit [control periods].

    Raises:
        HandoffError: there is none.
    """
    import gymnasium

    limit = gymnasium.spec(env_id.rpartition(":")[2]).max_episode_steps
    if limit is None:
        raise HandoffError(f"{name}: registered without a time limit. Set max_steps.")
    return int(limit)


def mend_joint_types() -> None:
    """Lets gymnasium-robotics 1.4.2 tell joint types under MuJoCo 3.12 and later.

    It asks whether a NumPy integer is in a tuple of MuJoCo's enum members, which is no longer true
    of equal numbers (pybind11 3.1). Its module of joint access gets a view of `mujoco` whose joint
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
