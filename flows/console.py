"""`handoff console TASK`: a simulated arm to practise on, in a browser, with a keyboard and nothing
else.

The same console as in a correction session or at an arm, and the same record: every episode goes to
an `EpisodeStore` with both actions of every step. Nothing is learned from it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from flows.session.config import HilOperator, HilWorld
from robots.franka.robot import Robot
from robots.interfaces import Label, Observation, VecEnv

if TYPE_CHECKING:
    from argparse import Namespace

    from real.console.server import ConsoleConfig


def console_command(options: Namespace) -> None:
    """`handoff console`: options `task`, `policy`, `out`, `host`, `port`, `spacemouse`, `person`
    and `episodes`."""
    from rich.console import Console

    from real.console.server import ConsoleConfig

    screen = Console()
    out = options.out or Path("runs") / "console" / options.task

    def say(text: str) -> None:
        screen.print(text, highlight=False, soft_wrap=True)

    config = ConsoleConfig(host=options.host, port=options.port, spacemouse=options.spacemouse)
    operator = HilOperator(kind="console", person=options.person or "")
    made = practise(options.task, options.policy, out, config, operator, options.episodes, say)
    say(
        f"{made} episodes in {out / 'store.zarr'}, actions at the console in {out / 'console' / 'audit.jsonl'}"
    )


def practise(
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
        task: of an FR3 in simulation.
        policy: who has the arm while nobody takes it: `still`, or what `handoff evaluate` takes as
            `--policy`.
        out: folder of the store and of the console's log; a session that is run again goes on in
            it.
        config: where the console listens.
        operator: the person.
        episodes: after which it ends by itself; None: never.
        say: shown where the console is.

    Raises:
        HandoffError: no such task or policy, the port is taken, or the store is another task's.
    """
    from flows.session.episodes import Ended, Round
    from flows.session.viewer import drawn
    from flows.session.worlds import make_operator, make_session_worlds, robot_label
    from real.console.process import open_console
    from robots.episodes.corrections import EpisodeAssembler, corrections_schema, open_corrections

    world = HilWorld(task=task, observation_fields=())
    env, engine = make_session_worlds(world, on_end="freeze")
    with closing(env), open_console(config, out / "console") as opened, drawn(world, opened):
        begin, propose = proposer(policy, task, env, engine.task.robot)
        schema = corrections_schema(
            task, env.rate_hz, env.observation_spec, env.action_spec, world.robot
        )
        with (
            open_corrections(out / "store.zarr", schema) as store,
            closing(make_operator(operator, engine, stage="practice")) as person,
        ):
            about = {"robot": robot_label(world), "source": "practice", "policy": policy}
            writer = EpisodeAssembler(store, 1, about)
            session = Round(env, person, propose, pace=operator.speed)
            say(f"console  {opened.url}")
            redo = False
            while episodes is None or store.num_episodes < episodes:
                seed = store.num_episodes - redo
                begin(seed)
                ended: Ended = session.run(seed, lambda ended: writer, {})
                if ended.stopped:
                    break
                redo = ended.label is Label.REDO
            return store.num_episodes


def proposer(
    policy: str, task: str, env: VecEnv, robot: Robot
) -> tuple[Callable[[int], None], Callable[[Observation], np.ndarray]]:
    """What is told where an episode begins, by its seed, and what proposes (1, A) for an
    observation.

    Raises:
        HandoffError: no such policy.
    """
    from flows.config.protocols import read_protocol
    from flows.evaluation.agents import make_agent
    from flows.session.worlds import standing_still

    if policy == "still":
        return lambda seed: None, standing_still(env.action_spec, robot)
    agent = make_agent(policy, read_protocol(task)).load()(env)
    running = np.ones(1, dtype=bool)
    return lambda seed: agent.reset([seed]), lambda observation: agent.act(observation, running)
