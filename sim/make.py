"""Makes vectorised environments from a configuration."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field, replace
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from robots import outside
from robots.config import Count, Hertz, config, to_plain, validate
from robots.control.actions import ActionSpace
from robots.errors import HandoffError, suggest
from robots.franka import RobotName, find_robot
from robots.franka.robot import Robot
from robots.interfaces import VecEnv
from sim.engine import Engine
from sim.engines.gym import GymConfig
from sim.engines.isaac_lab import IsaacLabConfig
from sim.engines.maniskill_task import ManiSkillConfig
from sim.ignored_options import refuse_ignored
from sim.scene.appearance import Appearance
from sim.scene.cameras import CamerasConfig
from sim.scene.dynamics import ArmDynamics
from sim.scene.randomize import Places, Range
from sim.servers.config import ServerConfig
from sim.specified_reward import SpecifiedReward, SpecifiedRewardConfig
from sim.tasks.task import (
    Task,
    at_rate,
    with_gripper_entry,
    with_instruction,
    with_phrasing,
)
from sim.vec_env import EngineVecEnv, VecEnvConfig

if TYPE_CHECKING:
    from sim.device.arm import DeviceArmEnv
    from sim.device.maniskill import DeviceManiSkillEnv

TASKS = (
    "reach",
    "reach_by_name",
    "push_t",
    "lift_cube",
    "pick_cube",
    "pick_by_name",
    "stack_cube",
    "peg_insert",
    "open_drawer",
    "flip_switch",
    "cable_route",
)
"""Table-top tasks of an arm, one module each in `sim/tasks`."""

TaskName = Annotated[str, outside.KnownName(TASKS, outside.TASKS, "task")]
"""Name of a task of an arm in configurations."""
EngineName = Literal["mujoco", "warp", "maniskill", "isaaclab", "gym", "server"]


@config
class EnvConfig:
    """One kind of environment. Engines refuse options that they do not support."""

    engine: EngineName = "mujoco"
    """Simulation engine."""
    task: str = "reach"
    """Name in `TASKS`, or the dotted path of a task of one's own, for mujoco, warp and maniskill
    with `arm`; otherwise an environment's id in the engine's own registry."""
    robot: RobotName = "fr3"
    """The arm that does the task (mujoco, warp, maniskill with `arm`, Handoff's tasks in Isaac
    Lab)."""
    actions: ActionSpace | None = None
    """Action space (mujoco, warp, maniskill with `arm`); None takes the task's own."""
    gripper_entry: bool = False
    """Whether actions have an entry for the gripper, and observations its opening, also in a task
    that does not need it, so that one policy can learn it beside tasks that do (mujoco, warp)."""
    rate_hz: Hertz | None = None
    """Control periods per second (mujoco, warp, maniskill with `arm`; see
    `sim.tasks.task.at_rate`); None takes the task's own."""
    reward: Literal["dense", "sparse"] = "dense"
    """Reward of a step: the task's dense terms, or 1 on success."""
    specified_reward: SpecifiedRewardConfig | None = None
    """Reward of a step by how much the episode so far meets specifications (mujoco, warp,
    maniskill, gym; see `sim.specified_reward`); None takes `reward`."""
    randomized: bool = False
    """Domain randomisation from the task's ranges (mujoco, warp)."""
    ranges: tuple[Range, ...] = ()
    """Physical quantities that each episode draws, in place of those of `randomized` (mujoco,
    warp); a lower bound equal to the upper one fixes a quantity."""
    places: Places = ()
    """Family of environments that share `ranges` and the bounds of `dynamics`: one row per member
    with the place of each range, then of each value of `dynamics`, between its bounds, 0 to 1. An
    episode with seed s is that of row s modulo their number; empty lets episodes draw (mujoco)."""
    appearance: Appearance | None = None
    """What cameras see that differs from the task's own scene (mujoco, see
    `sim.scene.appearance`); None changes nothing."""
    instruction: str | None = None
    """Instruction of all episodes (mujoco, warp); None draws one per episode where the task has
    several."""
    phrasing: str | None = None
    """Name of the set of sentences from which every episode's instruction is drawn (mujoco, warp),
    such as those in `sim.phrasings`; None takes the task's own sentences."""
    dynamics: ArmDynamics | None = None
    """Tuned parameters of the arm (mujoco, warp; see `sim.identification.tune`); None keeps the
    model's own."""
    cameras: CamerasConfig | None = None
    """Cameras whose images are observed; None renders none."""
    device: Literal["cpu", "cuda"] = "cpu"
    """Device of the physics (warp)."""
    resident: bool = False
    """Whether observations, actions and rewards stay on the environments' device, for fine-tuning
    and for PPO, FastTD3 and PQL from scratch (warp, maniskill; see `sim.device.arm`)."""
    threads: Count = 1
    """Physics threads of one process (mujoco)."""
    contact_threshold: Annotated[float, Field(ge=0.0)] | None = None
    """Force of unwanted contacts above which they have a cost [N] (mujoco, see
    `sim.scene.contact_cost`); None has no cost."""
    gym: GymConfig = field(default_factory=GymConfig)
    """Options of Gymnasium environments; read only by the engine gym."""
    maniskill: ManiSkillConfig = field(default_factory=ManiSkillConfig)
    """Options of ManiSkill; read only by the engine maniskill."""
    isaaclab: IsaacLabConfig = field(default_factory=IsaacLabConfig)
    """Options of Isaac Lab; read only by the engine isaaclab."""
    server: ServerConfig = field(default_factory=ServerConfig)
    """Other virtual environment or machine, and the engine there; read only by the engine
    server."""
    workers: Count = 1
    """Processes that share the environments; 1 uses the calling process, or one server."""
    on_end: Literal["reset", "freeze"] = "reset"
    """Behaviour of an environment whose episode has ended: reset at once, or stay frozen until it
    is reset."""
    max_steps: Count | None = None
    """Time limit [control periods]; None takes the task's own."""


def task_module(name: str) -> str:
    """Dotted name of the module that defines the task called `name`.

    Raises:
        HandoffError: there is no such task.
    """
    if name not in TASKS:
        return outside.split_target(_outside_target(name))[0]
    # Push-T is a package: its geometry is shared with the twin.
    return "sim.tasks.push_t.task" if name == "push_t" else f"sim.tasks.{name}"


def is_task(name: str) -> bool:
    """Whether `name` is a task of Handoff, the dotted path of another one, or an entry point of the
    group `handoff.tasks`."""
    return name in TASKS or outside.outside_target(name, outside.TASKS) is not None


def check_task(name: str) -> None:
    """Checks that `is_task` knows a name.

    Raises:
        HandoffError: it does not.
    """
    if name not in TASKS:
        _outside_target(name)


def _outside_target(name: str) -> str:
    target = outside.outside_target(name, outside.TASKS)
    if target is None:
        raise HandoffError(
            f"task: '{name}' is not known, {suggest(name, TASKS)} (or the dotted path of a task of "
            "your own)"
        )
    return target


def _outside_task(name: str, robot: Robot) -> Task:
    """The task of a module outside Handoff, called by the name under which it is found again."""
    about = f"task '{name}'"
    made = outside.find_outside(_outside_target(name), "task", about, "function")(robot)
    if not isinstance(made, Task):
        raise HandoffError(f"{about}: its function makes a {type(made).__name__}, expected a Task.")
    return replace(made, name=name)


def find_task(
    name: str, rate_hz: float | None = None, robot: str = "fr3", *, gripper_entry: bool = False
) -> Task:
    """Returns the task called `name` for a robot, at the task's own control rate or at `rate_hz`
    (`sim.tasks.task.at_rate`); with `gripper_entry`, its actions and observations have the gripper
    (`sim.tasks.task.with_gripper_entry`).

    Raises:
        HandoffError: there is no such task or robot, the task does not support this rate, or the
            robot cannot reach the task's initial pose.
    """
    task = _task(name, find_robot(robot))
    task = with_gripper_entry(task) if gripper_entry else task
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
        case "lift_cube":
            from sim.tasks.lift_cube import task
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
        case _ if name in TASKS:
            raise HandoffError(
                f"task: '{name}' is in TASKS (module {task_module(name)}) but sim.make does not import it."
            )
        case _:
            return _outside_task(name, robot)
    return task(robot)


def check_env(config: EnvConfig) -> None:
    """Checks, without making environments, that the engine reads all options.

    Raises:
        HandoffError: an option that the engine does not have, environments that stay on a device,
            or fewer than one worker.
    """
    refuse_ignored(config)
    if config.resident:
        raise HandoffError(
            "environments: resident: true is for fine-tuning and for PPO, FastTD3 and PQL from scratch only; "
            "evaluation and demonstrations exchange arrays with the host. Set resident: false."
        )
    if config.workers < 1:
        raise HandoffError(f"environments: workers is {config.workers}, expected at least 1.")


def check_device_env(config: EnvConfig) -> None:
    """Checks, without making environments, that they can stay on their device.

    Raises:
        HandoffError: an option that the engine does not have, another engine, or several workers.
    """
    refuse_ignored(config)
    on_device = config.engine in ("warp", "maniskill")
    if not on_device or config.workers != 1 or config.on_end != "freeze":
        raise HandoffError(
            f"environments: resident: true with engine {config.engine}, {config.workers} workers and on_end "
            f"{config.on_end}, expected the engine warp or maniskill, 1 and freeze."
        )


def make_vec_env(config: EnvConfig, num_envs: int) -> VecEnv:
    """Makes N environments in `config.workers` processes.

    Raises:
        HandoffError: an unknown task, an engine that is not installed, an option that the engine
            does not have, or fewer than one worker.
    """
    check_env(config)
    # Servers are processes themselves.
    if config.workers > 1 and config.engine != "server":
        from sim.processes.vec_env import worker_vec_env

        return worker_vec_env(partial(_make_here, config), num_envs, config.workers)
    return _make_here(config, num_envs)


def make_from_plain(options: Mapping[str, Any], num_envs: int) -> VecEnv:
    """Makes N environments from the plain form of an `EnvConfig`; see `make_vec_env`."""
    return make_vec_env(validate(EnvConfig, options, "environments"), num_envs)


def _make_server(config: EnvConfig, num_envs: int) -> VecEnv:
    from sim.servers.engines import ARM, LIGHT
    from sim.servers.vec_env import make_server_env

    engine = config.server.engine
    options: Mapping[str, Any] = config.server.options
    if config.maniskill.arm is not None:
        raise HandoffError(
            "environments: maniskill.arm needs Handoff's own environment, not a server. Set engine to maniskill."
        )
    if engine in ARM:
        there = {**to_plain(config), "engine": engine, "workers": 1}
        options = {name: value for name, value in there.items() if name != "server"}
    elif engine in LIGHT:
        options = to_plain(getattr(config, engine))
        if engine == "isaaclab":
            options = {**options, "robot": config.robot}
    episodes = VecEnvConfig(on_end=config.on_end, max_steps=config.max_steps)
    return make_server_env(config.server, config.task, episodes, options, num_envs, config.workers)


def make_device_env(config: EnvConfig, num_envs: int) -> DeviceArmEnv | DeviceManiSkillEnv:
    """Makes N environments whose observations, actions and rewards stay on their device.

    Raises:
        HandoffError: for the same reasons as `make_vec_env`, or for another engine or several
            workers.
    """
    from sim.device.arm import DeviceArmEnv
    from sim.engines.warp import WarpConfig

    check_device_env(config)
    if config.engine == "maniskill":
        from sim.device.maniskill import DeviceManiSkillEnv

        return DeviceManiSkillEnv(config.task, num_envs, config.maniskill, config.max_steps)
    options = WarpConfig(
        actions=config.actions,
        reward=config.reward,
        randomized=config.randomized,
        ranges=config.ranges,
        dynamics=config.dynamics,
        cameras=config.cameras,
        device=config.device,
    )
    return DeviceArmEnv(_configured_task(config), num_envs, options, config.max_steps)


def _configured_task(config: EnvConfig) -> Task:
    task = find_task(config.task, config.rate_hz, config.robot, gripper_entry=config.gripper_entry)
    if config.instruction is not None:
        task = with_instruction(task, config.instruction)
    return task if config.phrasing is None else with_phrasing(task, config.phrasing)


def _make_here(config: EnvConfig, num_envs: int) -> VecEnv:
    if config.engine == "server":
        return _make_server(config, num_envs)
    episodes = VecEnvConfig(on_end=config.on_end, max_steps=config.max_steps)
    engine = rewarded = _make_engine(config, num_envs)
    if config.specified_reward is not None:
        rewarded = SpecifiedReward(engine, config.specified_reward, config.max_steps)
    if config.engine == "gym" and config.gym.options.get("render_mode") == "rgb_array":
        from sim.engines.gym import GymEngine, RenderedVecEnv

        assert isinstance(engine, GymEngine)
        return RenderedVecEnv(rewarded, episodes, engine.render)
    return EngineVecEnv(rewarded, episodes)


def _make_engine(config: EnvConfig, num_envs: int) -> Engine:
    match config.engine:
        case "mujoco":
            from sim.engines.mujoco import MujocoConfig, MujocoEngine

            options = MujocoConfig(
                actions=config.actions,
                reward=config.reward,
                randomized=config.randomized,
                ranges=config.ranges,
                places=config.places,
                appearance=config.appearance,
                dynamics=config.dynamics,
                cameras=config.cameras,
                threads=config.threads,
            )
            task = _configured_task(config)
            return MujocoEngine(task, num_envs, options, config.contact_threshold)
        case "warp":
            from sim.engines.warp import WarpConfig, WarpEngine

            options = WarpConfig(
                actions=config.actions,
                reward=config.reward,
                randomized=config.randomized,
                ranges=config.ranges,
                dynamics=config.dynamics,
                cameras=config.cameras,
                device=config.device,
            )
            return WarpEngine(_configured_task(config), num_envs, options)
        case "gym":
            from sim.engines.gym import GymEngine

            return GymEngine(config.task, num_envs, config.gym)
        case "maniskill" if config.maniskill.arm is not None:
            from sim.engines.maniskill_arm import ManiSkillArmEngine

            task = _configured_task(config)
            return ManiSkillArmEngine(task, num_envs, config.maniskill, config.actions)
        case "maniskill":
            from sim.engines.maniskill import ManiSkillEngine

            return ManiSkillEngine(config.task, num_envs, config.maniskill)
        case "isaaclab":
            from sim.engines.isaac_lab import IsaacLabEngine

            return IsaacLabEngine(config.task, num_envs, config.isaaclab, config.robot)
        case "server":
            raise HandoffError("environments: a server has no engine in this process.")
