"""Makes the environments that a client requests from an environment server."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from robots.errors import HandoffError
from robots.interfaces import VecEnv
from robots.outside import DOTTED, add_place, find_outside, outside_target
from sim.engine import Engine
from sim.servers.start import OwnPackages
from sim.vec_env import EngineVecEnv, VecEnvConfig

LIGHT = ("gym", "isaaclab", "maniskill")
"""Engines whose modules need NumPy and the simulator's own packages only."""
ARM = ("mujoco", "warp")
"""Engines of the arm's tasks, which need Handoff's other requirements as well."""
ENGINE_FUNCTION = "engine"
"""Name of the function that makes an engine of one's own, where the dotted path names a module."""


class EnvRequest(NamedTuple):
    """Environments that a client requests; plain values only."""

    engine: str
    """Name in `LIGHT` or `ARM`, or dotted path."""
    task: str
    num_envs: int
    on_end: Literal["reset", "freeze"]
    max_steps: int | None
    options: Mapping[str, Any]
    """Options of the engine, of Isaac Lab with the `robot`; of engines in `ARM` the whole
    `sim.make.EnvConfig`."""
    place: str
    """Folder of the module of an engine or task of one's own; empty if it is installed."""


def make_requested(request: EnvRequest) -> VecEnv:
    """Makes the environments.

    Raises:
        HandoffError: an unknown engine, or an error of the engine.
    """
    if request.place:
        # Another package of the same name may be installed here.
        module = request.engine if DOTTED.fullmatch(request.engine) else request.task
        names = (module.partition(":")[0].partition(".")[0],)
        sys.meta_path.insert(0, OwnPackages(request.place, names))
        add_place(Path(request.place))
    if request.engine in ARM:
        # The module needs packages that the other engines do without, and imports this package.
        return import_module("sim.make").make_from_plain(request.options, request.num_envs)
    episodes = VecEnvConfig(on_end=request.on_end, max_steps=request.max_steps)
    return EngineVecEnv(_engine(request), episodes)


def _engine(request: EnvRequest) -> Engine:
    # Plain values have lists where options have tuples; nested mappings are the simulator's own.
    options: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value
        for name, value in request.options.items()
    }
    match request.engine:
        case "gym":
            from sim.engines.gym import GymConfig, GymEngine

            return GymEngine(request.task, request.num_envs, GymConfig(**options))
        case "isaaclab":
            from sim.engines.isaac_lab import IsaacLabConfig, IsaacLabEngine

            robot = options.pop("robot")
            config = IsaacLabConfig(**options)
            return IsaacLabEngine(request.task, request.num_envs, config, robot)
        case "maniskill":
            from sim.engines.maniskill import ManiSkillEngine
            from sim.engines.maniskill_task import ManiSkillConfig

            return ManiSkillEngine(request.task, request.num_envs, ManiSkillConfig(**options))
    return _own_engine(request)


def _own_engine(request: EnvRequest) -> Engine:
    about = f"engine '{request.engine}'"
    target = outside_target(request.engine, "")
    if target is None:
        raise HandoffError(
            f"{about}: not known, expected {', '.join((*LIGHT, *ARM))}, or one of your own: my_lab.{request.engine}, "
            f"or {request.engine}:{ENGINE_FUNCTION} for a file {request.engine}.py."
        )
    function = find_outside(target, ENGINE_FUNCTION, about, "function")
    return function(request.task, request.num_envs, dict(request.options))
