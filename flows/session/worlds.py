"""A session's worlds and people: where `sim` and `real` meet, since neither knows the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flows.session.config import HilOperator, HilWorld
from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.interfaces import Observation, Operator

if TYPE_CHECKING:
    from sim.engines.mujoco import MujocoEngine
    from sim.vec_env import Worlds


def robot_label(config: HilWorld) -> str:
    """The arm as it is recorded with every episode."""
    return f"{config.robot} mujoco"


def make_session_worlds(
    config: HilWorld, *, on_end: Literal["reset", "freeze"], endless: bool = False
) -> tuple[Worlds, MujocoEngine]:
    """One world of the task with a sparse reward, and the engine behind it.

    Args:
        config: which.
        on_end: see `sim.vec_env.WorldsConfig`.
        endless: success does not end an episode.

    Raises:
        HandoffError: no such task, or a field that it does not observe.
    """
    from sim.engines.mujoco import MujocoConfig, MujocoEngine
    from sim.ignore_success import Endless
    from sim.make import find_task
    from sim.vec_env import Worlds, WorldsConfig

    options = MujocoConfig(reward="sparse", randomized=config.randomized)
    engine = MujocoEngine(find_task(config.task, config.rate_hz, config.robot), 1, options)
    missing = [name for name in config.observation_fields if name not in engine.observation_spec]
    if missing:
        known = sorted(engine.observation_spec)
        engine.close()
        raise HandoffError(
            f"{config.task}: no fields {missing} in its observation, it has {known}."
        )
    worlds = Worlds(
        Endless(engine) if endless else engine,
        WorldsConfig(on_end=on_end, max_steps=config.max_steps),
    )
    return worlds, engine


def make_operator(
    config: HilOperator, engine: MujocoEngine, *, demonstrates: bool = False, stage: str = ""
) -> Operator:
    """The person of the session.

    Args:
        config: who, and with what.
        engine: of the worlds that they watch.
        demonstrates: the simulated person does everything and makes no faults.
        stage: what this is called at the console; empty: a demonstration or training.

    Raises:
        HandoffError: no such device, or actions that it cannot make.
    """
    spec, width_max = engine.action_spec, engine.task.robot.gripper.width_max
    match config.kind:
        case "simulated":
            from sim.recording.simulated_operator import OperatorConfig, SimulatedOperator

            able = OperatorConfig(
                name=config.simulated.name, policy="always", reaction_time=(0.0, 0.0)
            )
            return SimulatedOperator(engine, able if demonstrates else config.simulated)
        case "keyboard":
            from real.teleop.keyboard import KeyboardOperator

            return KeyboardOperator(spec, person_of(config), config.keyboard, width_max=width_max)
        case "spacemouse":
            from real.teleop.spacemouse import SpaceMouseOperator
            from real.teleop.terminal import Terminal

            keys = Terminal()
            return SpaceMouseOperator(
                spec, person_of(config), config.spacemouse, keys=keys, width_max=width_max
            )
        case "console":
            from flows.session.viewer import scene_of
            from real.console.client import ConsoleClient
            from real.console.console_operator import ConsoleOperator
            from real.console.process import console_address

            where, token = console_address()
            stage = stage or ("demonstration" if demonstrates else "training")
            line = ConsoleClient(
                where, token, {"task": engine.task.name, "stage": stage, "rate_hz": engine.rate_hz}
            )
            line.start()
            person, rate, scene = person_of(config), engine.rate_hz, scene_of(engine)
            return ConsoleOperator(
                spec, config.console, line, person, rate, scene, width_max=width_max
            )


def person_of(config: HilOperator) -> str:
    """The name that is recorded."""
    from getpass import getuser

    return config.person or getuser()


def standing_still(spec: Any, robot: Robot) -> Callable[[Observation], np.ndarray]:
    """A policy (1, A) that moves nothing: what a demonstrator overrules."""
    from robots.control.gripper_commands import CommandedHand

    still = np.zeros((1, spec.size))
    if not spec.names or spec.names[-1] != "gripper":
        return lambda observation: still
    hand = CommandedHand(spec.size, robot.gripper.width_max)
    return lambda observation: hand.to_world(still, observation)


def seeing(world: HilWorld, config: Any) -> Any:
    """The `PretrainConfig` with the session's fields, where its policy names none."""
    if config.policy.observation_fields:
        return config
    return replace(
        config, policy=replace(config.policy, observation_fields=world.observation_fields)
    )
