"""Implements `handoff console TASK`: a simulated arm controlled from a browser with a keyboard.

The console is the same as in a HIL session or at a real arm. Every episode is recorded in an
`EpisodeStore`, with the policy's and the executed action of every step; no policy is trained.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flows.reports.dataset_text import counted
from flows.session.config import HilEnvConfig, HilOperator
from robots.errors import HandoffError
from robots.franka.robot import Robot
from robots.interfaces import Observation, VecEnv

if TYPE_CHECKING:
    from real.console.server import ConsoleConfig


def console_command(
    task: str,
    policy: str,
    out: Path,
    config: ConsoleConfig,
    person: str,
    episodes: int | None,
    seconds: float | None = None,
) -> None:
    """Runs `handoff console`; see `run_console_session`.

    Args:
        task: see there, as `policy`, `out`, `config` and `episodes`.
        policy: acts unless the person takes over.
        out: folder of the session.
        config: address of the console.
        person: name of the operator.
        episodes: number of episodes that ends the session.
        seconds: longest episode [s]; None takes the usual one.
    """
    from rich.console import Console

    screen = Console()

    def say(text: str) -> None:
        screen.print(text, highlight=False, markup=False, soft_wrap=True)

    operator = HilOperator(kind="console", person=person)
    operator = operator if seconds is None else replace(operator, seconds=seconds)
    recorded = run_console_session(task, policy, out, config, operator, episodes, say)
    number = counted(recorded, "episode")
    say(
        f"{number} in {out / 'store.zarr'}, actions at the console in {out / 'console' / 'audit.jsonl'}"
    )


def run_console_session(
    task: str,
    policy: str,
    out: Path,
    config: ConsoleConfig,
    operator: HilOperator,
    episodes: int | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> int:
    """Runs episodes until the person ends the session; returns how many the store holds.

    Args:
        task: a simulated task of the FR3.
        policy: acts unless the person takes over: `still`, or a value of
            `handoff evaluate --policy`.
        out: folder of the store and the console's log; a later session appends to it.
        config: address and port of the console.
        operator: the person.
        episodes: the session ends when the store holds this many; None runs until the person ends
            it.
        say: called with the console's address.

    Raises:
        HandoffError: no such task or policy, a task whose actions no person commands, the port is
            taken, or the store belongs to another task.
    """
    from flows.session.environment import (
        finish,
        inform,
        make_operator,
        make_session_env,
        session_origin,
        wall_clock,
    )
    from flows.session.episodes import EpisodeLoop, EpisodeOutcome
    from flows.session.viewer import scene_viewer
    from real.console.process import open_console
    from real.teleop.takeover import check_actions
    from robots.episodes.corrections import EpisodeAssembler, corrections_schema, open_corrections
    from robots.episodes.metadata.episode_metadata import next_start
    from robots.episodes.running_episode import recover_interrupted

    env_config = HilEnvConfig(task=task, observation_fields=())
    env, engine = make_session_env(env_config, on_end="freeze", seconds=operator.seconds)
    try:
        # Before a folder is made and a page opened.
        check_actions(env.action_spec, f"console {task}")
    except HandoffError:
        env.close()
        raise
    with (
        closing(env),
        open_console(config, out / "console") as console,
        scene_viewer(env_config, console),
    ):
        reset, propose, digest = proposer(policy, task, env, engine.task.robot)
        schema = corrections_schema(
            task, env.rate_hz, env.observation_spec, env.action_spec, env_config.robot
        )
        with (
            open_corrections(out / "store.zarr", schema) as store,
            closing(
                make_operator(
                    operator,
                    engine,
                    stage="console",
                    max_steps=env.max_steps,
                    still=policy == "still",
                )
            ) as person,
        ):
            origin = session_origin(
                env_config, engine, "console", live=True, policy=policy, policy_digest=digest
            )
            recover_interrupted(store)
            assembler = EpisodeAssembler(store, 1, origin.entries(), now=wall_clock(live=True))
            session = EpisodeLoop(env, person, propose, pace=operator.speed)
            say(f"console  {console.url}")
            while episodes is None or store.num_episodes < episodes:
                seed = next_start(store)
                reset(seed)
                outcome: EpisodeOutcome = session.run(seed, assembler, {})
                if outcome.stopped:
                    break
                inform(person, {"episodes": str(store.num_episodes)})
            finish(person, f"{counted(store.num_episodes, 'episode')} recorded.")
            return store.num_episodes


def proposer(
    policy: str, task: str, env: VecEnv, robot: Robot
) -> tuple[Callable[[int], None], Callable[[Observation], np.ndarray], str | None]:
    """Returns a function that resets the policy to an episode's seed, one that maps observations
    to actions (1, A), and the policy's digest if it has one.

    Raises:
        HandoffError: no such policy.
    """
    from flows.config.protocols import read_protocol
    from flows.evaluation.agents import make_agent
    from flows.session.environment import policy_digest, still_policy

    if policy == "still":
        return lambda seed: None, still_policy(env.action_spec, robot), None
    entrant = make_agent(policy, read_protocol(task))
    agent = entrant.load()(env)
    running = np.ones(1, dtype=bool)
    return (
        lambda seed: agent.reset([seed]),
        lambda observation: agent.act(observation, running),
        entrant.execution.get("file") or policy_digest(Path(policy)),
    )
