"""Worlds from a configuration: which engine, which task, how many."""

from __future__ import annotations

from dataclasses import field
from functools import cache, partial
from typing import TYPE_CHECKING, Literal

from robots.config import config
from robots.control.actions import ActionSpace
from robots.errors import HandoffError, suggest
from robots.franka import RobotName, find_robot
from robots.franka.robot import Robot
from robots.interfaces import VecEnv
from sim.engines.gym import GymConfig
from sim.engines.isaac_lab import IsaacLabConfig
from sim.engines.maniskill_task import ManiSkillConfig
from sim.scene.cameras import CamerasConfig
from sim.tasks.task import Task, at_rate
from sim.vec_env import Worlds, WorldsConfig

if TYPE_CHECKING:
    from sim.device.arm import ResidentWorlds
    from sim.device.maniskill import ResidentManiSkill

TASKS = (
    "reach",
    "reach_by_name",
    "push_t",
    "pick_cube",
    "pick_by_name",
    "stack_cube",
    "peg_insert",
    "open_drawer",
    "flip_switch",
    "cable_route",
)
"""Tasks of an arm at a table, each a file in `sim/tasks`."""

EngineName = Literal["mujoco", "warp", "maniskill", "isaaclab", "gym"]


@config
class WorldConfig:
    """One kind of world. Engines refuse what they cannot do."""

    engine: EngineName = "mujoco"
    """Simulation engine."""
    task: str = "reach"
    """One of `TASKS` for mujoco and warp, else an environment's id in the engine's own registry."""
    robot: RobotName = "fr3"
    """The arm that does the task (mujoco, warp)."""
    actions: ActionSpace | None = None
    """Action space (mujoco, warp); None takes the task's own."""
    rate_hz: float | None = None
    """Control periods per second (mujoco, warp; see `sim.tasks.task.at_rate`); None takes the
    task's own."""
    reward: Literal["dense", "sparse"] = "dense"
    """Reward of a step: the task's dense terms, or 1 on success."""
    randomized: bool = False
    """Domain randomisation from the task's ranges (mujoco, warp)."""
    cameras: CamerasConfig | None = None
    """Pictures as observations; None makes none."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Where physics runs (warp)."""
    resident: bool = False
    """Worlds stay on their device, for practice, which meets them there (warp, maniskill; see
    `sim.device.arm`)."""
    threads: int = 1
    """Physics threads of one process (mujoco)."""
    gym: GymConfig = field(default_factory=GymConfig)
    """Options of Gymnasium environments; read for the engine gym alone."""
    maniskill: ManiSkillConfig = field(default_factory=ManiSkillConfig)
    """Options of ManiSkill; read for the engine maniskill alone."""
    isaaclab: IsaacLabConfig = field(default_factory=IsaacLabConfig)
    """Options of Isaac Lab; read for the engine isaaclab alone."""
    workers: int = 1
    """Processes that share the worlds; 1 is this one."""
    on_end: Literal["reset", "freeze"] = "reset"
    """Behaviour of an environment whose episode has ended: reset at once, or stay frozen until it
    is reset."""
    max_steps: int | None = None
    """Time limit [control periods]; None takes the task's own."""


def task_module(name: str) -> str:
    """Dotted name of the module that states the task called `name`.

    Raises:
        HandoffError: there is none.
    """
    if name not in TASKS:
        raise HandoffError(f"task: '{name}' is not known, {suggest(name, TASKS)}")
    # `sim.tasks.push_t.geometry` is the geometry that the twin shares.
    return "sim.tasks.push_t.task" if name == "push_t" else f"sim.tasks.{name}"


def find_task(name: str, rate_hz: float | None = None, robot: str = "fr3") -> Task:
    """The task called `name`, stated for a robot, at its own control rate or another
    (`sim.tasks.task.at_rate`).

    Raises:
        HandoffError: there is no such task or robot, not at this rate, or the robot cannot reach
            where it begins.
    """
    task = _task(name, find_robot(robot))
    return task if rate_hz is None else at_rate(task, rate_hz)


@cache
def _task(name: str, robot: Robot) -> Task:
    match name:
        case "reach":
            from sim.tasks.reach import task
        case "reach_by_name":
            from sim.tasks.reach_by_name import task
        case "push_t":
            from sim.tasks.push_t.task import task
        case "pick_cube":
            from sim.tasks.pick_cube import task
        case "pick_by_name":
            from sim.tasks.pick_by_name import task
        case "stack_cube":
            from sim.tasks.stack_cube import task
        case "open_drawer":
            from sim.tasks.open_drawer import task
        case "flip_switch":
            from sim.tasks.flip_switch import task
        case "peg_insert":
            from sim.tasks.peg_insert import task
        case "cable_route":
            from sim.tasks.cable_route import task
        case _:
            raise HandoffError(f"task: '{name}' is listed in {task_module(name)} but not here.")
    return task(robot)


def make_worlds(config: WorldConfig, num_envs: int) -> VecEnv:
    """N worlds, over as many processes as the configuration says.

    Raises:
        HandoffError: an unknown task, an engine that is not installed, an option that it does not
            have, or no workers.
    """
    _refuse_ignored(config)
    if config.resident:
        raise HandoffError(
            "worlds: resident: true is for practice alone; evaluation and demonstrations pass the host."
        )
    if config.workers < 1:
        raise HandoffError(f"worlds: {config.workers} workers asked for, at least 1 is needed.")
    if config.workers > 1:
        from sim.processes.vec_env import worker_vec_env

        return worker_vec_env(partial(_make_here, config), num_envs, config.workers)
    return _make_here(config, num_envs)


def make_resident(config: WorldConfig, num_envs: int) -> ResidentWorlds | ResidentManiSkill:
    """N worlds that stay on their device.

    Raises:
        HandoffError: as of `make_worlds`; another engine, pictures, or several workers.
    """
    from sim.device.arm import ResidentWorlds
    from sim.engines.warp import WarpConfig

    _refuse_ignored(config)
    known = config.engine in ("warp", "maniskill")
    if not known or config.cameras is not None or config.workers != 1 or config.on_end != "freeze":
        raise HandoffError(
            f"worlds: resident: true with engine {config.engine}, {config.workers} workers, on_end {config.on_end} and "
            f"cameras {config.cameras}, expected the engine warp or maniskill, 1, freeze and none."
        )
    if config.engine == "maniskill":
        from sim.device.maniskill import ResidentManiSkill

        return ResidentManiSkill(config.task, num_envs, config.maniskill, config.max_steps)
    options = WarpConfig(
        actions=config.actions,
        reward=config.reward,
        randomized=config.randomized,
        device=config.device,
    )
    return ResidentWorlds(
        find_task(config.task, config.rate_hz, config.robot), num_envs, options, config.max_steps
    )


def _refuse_ignored(config: WorldConfig) -> None:
    """Refuses what the engine would not look at: a setting without effect is taken for one that has
    it."""
    match config.engine:
        case "mujoco":
            read = {"robot", "actions", "rate_hz", "reward", "randomized", "cameras", "threads"}
        case "warp":
            # Pictures are asked for in words of its own below.
            read = {"robot", "actions", "rate_hz", "reward", "randomized", "cameras", "device"}
            read |= {"resident"}
        case "maniskill":
            read = {"maniskill", "resident"}
        case _:
            read = {config.engine}
    default = WorldConfig()
    own = (
        "robot",
        "actions",
        "rate_hz",
        "reward",
        "randomized",
        "cameras",
        "device",
        "resident",
        "threads",
    )
    every = (*own, "gym", "maniskill", "isaaclab")
    ignored = [
        name
        for name in every
        if name not in read and getattr(config, name) != getattr(default, name)
    ]
    if ignored:
        raise HandoffError(
            f"worlds: the engine {config.engine} does not know {ignored}, it reads {sorted(read)}. "
            "Is the setting meant for another engine?"
        )


def _make_here(config: WorldConfig, num_envs: int) -> VecEnv:
    episodes = WorldsConfig(on_end=config.on_end, max_steps=config.max_steps)
    match config.engine:
        case "mujoco":
            from sim.engines.mujoco import MujocoConfig, MujocoEngine

            options = MujocoConfig(
                actions=config.actions,
                reward=config.reward,
                randomized=config.randomized,
                cameras=config.cameras,
                threads=config.threads,
            )
            return Worlds(
                MujocoEngine(
                    find_task(config.task, config.rate_hz, config.robot), num_envs, options
                ),
                episodes,
            )
        case "warp":
            from sim.engines.warp import WarpConfig, WarpEngine

            if config.cameras is not None:
                raise HandoffError(
                    "warp: it makes no pictures. Leave `cameras` out, or use the engine mujoco."
                )
            options = WarpConfig(
                actions=config.actions,
                reward=config.reward,
                randomized=config.randomized,
                device=config.device,
            )
            return Worlds(
                WarpEngine(find_task(config.task, config.rate_hz, config.robot), num_envs, options),
                episodes,
            )
        case "gym":
            from sim.engines.gym import GymEngine

            return Worlds(GymEngine(config.task, num_envs, config.gym), episodes)
        case "maniskill":
            from sim.engines.maniskill import ManiSkillEngine

            return Worlds(ManiSkillEngine(config.task, num_envs, config.maniskill), episodes)
        case "isaaclab":
            from sim.engines.isaac_lab import IsaacLabEngine

            return Worlds(IsaacLabEngine(config.task, num_envs, config.isaaclab), episodes)
