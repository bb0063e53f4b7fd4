"""Stage `demonstrations`: a person, or the scripted one, solves the task a number of times."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

from flows.hil.config import DemonstrateConfig
from robots.errors import HandoffError
from robots.interfaces import Label, Progress

MOST_ATTEMPTS = 5
"""Attempts per demonstration that is asked for, after which a scripted expert is given up."""


def run(
    config: DemonstrateConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes `out/store.zarr` (successful episodes) and `out/dropped.zarr` (all others); goes on
    from what is there.

    Raises:
        HandoffError: the expert hardly ever succeeds, or the person wants to stop.
    """
    from flows.session.episodes import Ended, Round
    from flows.session.worlds import (
        make_operator,
        make_session_worlds,
        robot_label,
        standing_still,
    )
    from robots.episodes.corrections import EpisodeAssembler, corrections_schema, open_corrections

    env, engine = make_session_worlds(config.world, on_end="freeze")
    with closing(env):
        schema = corrections_schema(
            config.world.task,
            env.rate_hz,
            env.observation_spec,
            env.action_spec,
            config.world.robot,
        )
        with (
            open_corrections(out / "store.zarr", schema) as kept,
            open_corrections(out / "dropped.zarr", schema) as dropped,
            closing(make_operator(config.operator, engine, demonstrates=True)) as operator,
        ):
            about = {"robot": robot_label(config.world), "source": "demonstration"}
            writers = {
                True: EpisodeAssembler(kept, 1, about),
                False: EpisodeAssembler(dropped, 1, about),
            }

            def say(text: str) -> None:
                progress(kept.num_episodes, config.episodes, text)

            live = config.operator.kind != "simulated"
            pace = config.operator.speed if live else 0.0
            still = standing_still(env.action_spec, engine.task.robot)
            session = Round(env, operator, still, pace=pace, say=say)

            def choose(ended: Ended) -> EpisodeAssembler:
                return writers[ended.success and ended.label in (Label.NONE, Label.SUCCESS)]

            redo = False
            while kept.num_episodes < config.episodes:
                attempts = kept.num_episodes + dropped.num_episodes
                if not live and attempts >= MOST_ATTEMPTS * config.episodes:
                    raise HandoffError(
                        f"{config.world.task}: the scripted expert solved {kept.num_episodes} of {attempts} attempts, "
                        f"{config.episodes} demonstrations wanted. Is its time limit too short?"
                    )
                ended = session.run(config.first_seed + attempts - redo, choose, {})
                if ended.stopped:
                    raise HandoffError(
                        f"demonstrations: stopped by the person after {kept.num_episodes} of {config.episodes}. "
                        "Run the same command to go on."
                    )
                redo = ended.label is Label.REDO
            lengths = [int(n) for n in _lengths(kept)]
            return {
                "episodes": kept.num_episodes,
                "frames": sum(lengths),
                "dropped": dropped.num_episodes,
                "seconds_per_episode": round(sum(lengths) / len(lengths) / env.rate_hz, 3),
            }


def _lengths(store: Any) -> Any:
    import numpy as np

    return np.diff(store.ends("policy"), prepend=0)
