"""Creates the environment (from `sim`) and the operator (from `real`) of a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flows.session.config import HilEnvConfig, HilOperator
from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.interfaces import Observation, Operator, VecEnv

if TYPE_CHECKING:
    from real.console.console_operator import ConsoleOperator
    from robots.episodes.metadata.episode_metadata import EpisodeOrigin, WallClock
    from robots.episodes.schema import EpisodeSchema
    from robots.spec import FieldSpec
    from sim.engines.mujoco import MujocoConfig, MujocoEngine
    from sim.tasks.task import Task
    from sim.vec_env import EngineVecEnv


SIMULATED = {
    "home": "The simulation lays arm and scene at every start; Redo lays the same start again.",
    "limp": "A simulation has no arm to guide by hand: `handoff record TASK --arm twin` has one.",
}
"""Why a session in simulation offers no drive home and no hand guiding, for the pages."""


def robot_label(config: HilEnvConfig) -> str:
    """Returns the name of the arm that is recorded with every episode."""
    return f"{config.robot} mujoco" if config.arm is None else f"{config.robot} twin"


def session_origin(
    config: HilEnvConfig,
    engine: MujocoEngine,
    source: str,
    *,
    live: bool,
    policy: str | None = None,
    policy_digest: str | None = None,
) -> EpisodeOrigin:
    """Returns what a session that begins now states about each of its episodes.

    Args:
        config: task and options of the environment.
        engine: engine of the environment.
        source: stage of the session.
        live: whether a person takes part.
        policy: policy that acts, as it was named; None for none, or one that is trained meanwhile.
        policy_digest: digest of the policy that acts.
    """
    from robots.episodes.metadata.episode_metadata import EpisodeOrigin, new_session
    from sim.scene.cameras import camera_calibrations

    # Randomised cameras have another pose in every episode.
    cameras = None if config.randomized else config.cameras
    return EpisodeOrigin(
        robot=robot_label(config),
        host="simulated" if config.arm is None else "twin",
        source=source,
        session=new_session() if live else None,
        policy=policy,
        policy_digest=policy_digest,
        calibration={} if cameras is None else camera_calibrations(engine.model, cameras),
    )


def policy_digest(folder: Path) -> str | None:
    """Returns the digest of a saved policy: that of its artifact, or of its weights outside one;
    None if the folder has no policy."""
    from flows.runner.artifact import MANIFEST, read_manifest
    from policies.checkpoint import WEIGHTS, digest_file

    if (folder / MANIFEST).is_file():
        return read_manifest(folder)["digest"]
    weights = folder / WEIGHTS
    return digest_file(weights) if weights.is_file() else None


def wall_clock(*, live: bool) -> WallClock | None:
    """Returns the wall clock of a session's recordings; None without a person, so that the same
    session made again records the same."""
    from robots.episodes.metadata.episode_metadata import utc_now

    return utc_now if live else None


def make_session_env(
    config: HilEnvConfig,
    *,
    on_end: Literal["reset", "freeze"],
    ignore_success: bool = False,
    seconds: float | None = None,
) -> tuple[EngineVecEnv, MujocoEngine]:
    """Creates one environment of the task with a sparse reward, and its engine.

    Args:
        config: task and options.
        on_end: see `sim.vec_env.VecEnvConfig`.
        ignore_success: success does not end an episode.
        seconds: time limit of an episode [s]; None takes that of `config`.

    Raises:
        HandoffError: no such task or instruction, or a field that is not in its observation.
    """
    from sim.engines.mujoco import MujocoEngine

    task, options = session_task(config)
    engine = MujocoEngine(task, 1, options)
    env = session_env(config, engine, on_end=on_end, ignore_success=ignore_success, seconds=seconds)
    return env, engine


def session_task(config: HilEnvConfig) -> tuple[Task, MujocoConfig]:
    """Returns the task of a session, and the options of its engine.

    Raises:
        HandoffError: no such task or instruction.
    """
    from sim.engines.mujoco import MujocoConfig
    from sim.make import find_task
    from sim.tasks.task import with_instruction

    options = MujocoConfig(reward="sparse", randomized=config.randomized, cameras=config.cameras)
    task = find_task(config.task, config.rate_hz, config.robot)
    if config.instruction is not None:
        task = with_instruction(task, config.instruction)
    return task, options


def session_env(
    config: HilEnvConfig,
    engine: MujocoEngine,
    *,
    on_end: Literal["reset", "freeze"],
    ignore_success: bool = False,
    seconds: float | None = None,
) -> EngineVecEnv:
    """Returns the environment of a session over its engine, which it owns; arguments of
    `make_session_env`.

    Raises:
        HandoffError: a field that is not in the task's observation; the engine is then closed.
    """
    from flows.session.capture import CapturingVecEnv
    from sim.ignore_success import IgnoreSuccess
    from sim.vec_env import VecEnvConfig

    missing = [name for name in config.observation_fields if name not in engine.observation_spec]
    if missing:
        known = sorted(engine.observation_spec)
        engine.close()
        raise HandoffError(
            f"{config.task}: no fields {missing} in its observation, it has {known}."
        )
    limit = config.max_steps if seconds is None else max(1, round(seconds * engine.rate_hz))
    return CapturingVecEnv(
        IgnoreSuccess(engine) if ignore_success else engine,
        VecEnvConfig(on_end=on_end, max_steps=limit),
        latency=engine.picture_age,
    )


def session_schema(
    config: HilEnvConfig, env: VecEnv, further: Mapping[str, FieldSpec] | None = None
) -> EpisodeSchema:
    """Returns the streams and fields of episodes that are recorded in the session's environment;
    `further` are those of `robots.episodes.corrections.corrections_schema`."""
    from robots.episodes.corrections import corrections_schema
    from robots.episodes.schema import with_videos

    schema = corrections_schema(
        config.task, env.rate_hz, env.observation_spec, env.action_spec, config.robot, further
    )
    return with_videos(schema, config.video)


def make_operator(
    config: HilOperator,
    engine: MujocoEngine,
    *,
    demonstrates: bool = False,
    stage: str = "",
    max_steps: int | None = None,
    still: bool = False,
) -> Operator:
    """Creates the operator of the session.

    Args:
        config: kind, device and options of the operator.
        engine: engine of the environment.
        demonstrates: a simulated operator controls every step, without errors.
        stage: stage name shown at the console; empty takes "demonstration" or "training".
        max_steps: time limit of an episode, shown there too [control periods].
        still: whether nobody but the person moves the arm, as in demonstrations.

    Raises:
        HandoffError: no such device, or an action interface that it does not support.
    """
    spec, width_max = engine.action_spec, engine.task.robot.gripper.width_max
    match config.kind:
        case "simulated":
            from sim.recording.simulated_operator import OperatorConfig, SimulatedOperator

            demonstrator = OperatorConfig(
                name=config.simulated.name, policy="always", reaction_time=(0.0, 0.0)
            )
            return SimulatedOperator(engine, demonstrator if demonstrates else config.simulated)
        case "keyboard":
            from real.teleop.keyboard import KeyboardOperator

            return KeyboardOperator(spec, person_name(config), config.keyboard, width_max=width_max)
        case "spacemouse":
            from real.teleop.spacemouse import SpaceMouseOperator
            from real.teleop.terminal import Terminal

            keys = Terminal()
            return SpaceMouseOperator(
                spec, person_name(config), config.spacemouse, keys=keys, width_max=width_max
            )
        case "console":
            stage = stage or ("demonstration" if demonstrates else "training")
            return _console_operator(config, engine, stage, max_steps, still=demonstrates or still)


def _console_operator(
    config: HilOperator, engine: MujocoEngine, stage: str, max_steps: int | None, *, still: bool
) -> ConsoleOperator:
    """A person at the console, to whom task and episodes are described."""
    from flows.session.viewer import described_cameras, scene_reader
    from real.console.client import ConsoleClient
    from real.console.console_operator import ConsoleOperator
    from real.console.process import console_address
    from robots.language.text import INSTRUCTION, decode

    task = engine.task
    spec, rate = engine.action_spec, engine.rate_hz

    def about_episode() -> dict[str, Any]:
        about: dict[str, Any] = {} if max_steps is None else {"seconds": max_steps / rate}
        if INSTRUCTION in task.observations:
            text = task.observations[INSTRUCTION].read(engine.view)
            about["instruction"] = decode(text)[0]
        return about

    address, token = console_address()
    about = {
        "task": task.name,
        "brief": task.brief,
        "stage": stage,
        "rate_hz": rate,
        "actions": spec.names,
        "still": still,
        "reset": SIMULATED,
        "joint_limits": [task.robot.limits.q_min.tolist(), task.robot.limits.q_max.tolist()],
        **described_cameras(),
    }
    client = ConsoleClient(address, token, about)
    client.start()
    return ConsoleOperator(
        spec,
        config.console,
        client,
        person_name(config),
        rate,
        scene_reader(engine),
        width_max=task.robot.gripper.width_max,
        about_episode=about_episode,
    )


def inform(operator: Operator, facts: Mapping[str, str]) -> None:
    """Shows what the session counts to a person at the console, by name and in words."""
    from real.console.console_operator import ConsoleOperator

    if isinstance(operator, ConsoleOperator):
        operator.inform(facts)


def hold(operator: Operator, why: str) -> None:
    """Holds the arm of a person at the console, and tells them why."""
    from real.console.console_operator import ConsoleOperator

    if isinstance(operator, ConsoleOperator):
        operator.hold(why)


def finish(operator: Operator, why: str) -> None:
    """Tells a person at the console that the session is over, and why."""
    from real.console.console_operator import ConsoleOperator

    if isinstance(operator, ConsoleOperator):
        operator.finish(why)


def person_name(config: HilOperator) -> str:
    """Returns the operator name that is recorded."""
    from getpass import getuser

    return config.person or getuser()


def still_policy(spec: Any, robot: Robot) -> Callable[[Observation], np.ndarray]:
    """Returns a policy that keeps the arm still, with actions (1, A); the baseline of
    demonstrations."""
    from real.teleop.takeover import AGENT
    from robots.control.actions import PD_TARGET
    from robots.control.gripper_commands import CommandedGripper

    if spec.interface == PD_TARGET:
        return lambda observation: np.clip(
            np.asarray(observation[AGENT], dtype=np.float64), spec.low, spec.high
        )
    still = np.zeros((1, spec.size))
    if not spec.names or spec.names[-1] != "gripper":
        return lambda observation: still
    gripper = CommandedGripper(spec.size, robot.gripper.width_max)
    return lambda observation: gripper.to_env(still, observation)
