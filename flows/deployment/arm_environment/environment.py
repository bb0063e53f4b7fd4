"""Creates the environment of a session, in simulation or at a simulated arm."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from flows.session.config import HilEnvConfig
from flows.session.environment import make_session_env, session_env, session_task
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress

if TYPE_CHECKING:
    from sim.engines.mujoco import MujocoEngine
    from sim.vec_env import EngineVecEnv


def open_session_env(
    config: HilEnvConfig,
    *,
    on_end: Literal["reset", "freeze"],
    ignore_success: bool = False,
    seconds: float | None = None,
    paced: bool = False,
    progress: Progress = no_progress,
) -> tuple[EngineVecEnv, MujocoEngine]:
    """Creates one environment of the task with a sparse reward, and its engine; to close the
    environment brings the arm to rest and ends it.

    Args:
        config: task and options.
        on_end: see `sim.vec_env.VecEnvConfig`.
        ignore_success: success does not end an episode.
        seconds: time limit of an episode [s]; None takes that of `config`.
        paced: whether time passes no faster than real time at an arm.
        progress: called with a note while another session has the arm.

    Raises:
        HandoffError: no such task or instruction, a field that is not in its observation, or an
            option that an arm does not support.
    """
    if config.arm is None:
        return make_session_env(
            config, on_end=on_end, ignore_success=ignore_success, seconds=seconds
        )
    from flows.deployment.arm_environment.engine import TwinEngine

    if config.instruction is not None:
        raise HandoffError(
            f"{config.task}: instruction '{config.instruction}', but a simulated arm draws one per episode. Leave out "
            "one of env.instruction and env.arm."
        )

    task, options = session_task(config)
    engine = TwinEngine(task, options, config.arm, paced=paced, progress=progress)
    env = session_env(config, engine, on_end=on_end, ignore_success=ignore_success, seconds=seconds)
    return env, engine
