"""Stage `demonstrate`: records demonstrations by a person or a simulated operator."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.artifacts import Episodes, Output
from flows.stages.data.config import DemonstrateConfig
from robots.errors import HandoffError
from robots.interfaces import Label, Progress

if TYPE_CHECKING:
    from robots.episodes.store import EpisodeStore

GROWS = "episodes"
MAX_ATTEMPTS = 5
"""Maximum number of attempts per demonstration of a scripted expert."""


def run(config: DemonstrateConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Writes `out/store.zarr` (successful episodes) and `out/dropped.zarr` (all others); goes on
    from an interrupted attempt, or a finished one of fewer episodes.

    Raises:
        HandoffError: the expert rarely succeeds, or the person stopped.
    """
    from flows.deployment.arm_environment.environment import open_session_env
    from flows.session.environment import (
        inform,
        make_operator,
        session_origin,
        session_schema,
        still_policy,
        wall_clock,
    )
    from flows.session.episodes import EpisodeLoop, EpisodeOutcome
    from robots.episodes.corrections import EpisodeAssembler, open_corrections
    from robots.episodes.metadata.episode_metadata import next_start
    from robots.episodes.running_episode import recover_interrupted

    live = config.operator.kind != "simulated"
    seconds = config.operator.seconds if live else None
    env, engine = open_session_env(
        config.env, on_end="freeze", seconds=seconds, paced=live, progress=progress
    )
    with closing(env):
        schema = session_schema(config.env, env)
        with (
            open_corrections(out / "store.zarr", schema) as store,
            open_corrections(out / "dropped.zarr", schema) as dropped,
            closing(
                make_operator(config.operator, engine, demonstrates=True, max_steps=env.max_steps)
            ) as operator,
        ):
            origin = session_origin(config.env, engine, "demonstration", live=live)
            recover_interrupted(store, into=dropped)
            assembler = EpisodeAssembler(
                store,
                1,
                origin.entries(),
                memory=None if live else store,
                now=wall_clock(live=live),
            )

            def say(text: str) -> None:
                progress(store.num_episodes, config.episodes, text)

            # An arm has its own clock.
            pace = config.operator.speed if live and config.env.arm is None else 0.0
            still = still_policy(env.action_spec, engine.task.robot)
            session = EpisodeLoop(env, operator, still, pace=pace, say=say)

            def choose(outcome: EpisodeOutcome) -> EpisodeStore:
                kept = outcome.success and outcome.label in (Label.NONE, Label.SUCCESS)
                return store if kept else dropped

            if store.num_episodes:
                say(f"{store.num_episodes} demonstrations kept that were recorded before")
            while store.num_episodes < config.episodes:
                attempts = store.num_episodes + dropped.num_episodes
                shown = f"{store.num_episodes} of {config.episodes}"
                inform(operator, {"demonstrations": shown, "attempts": str(attempts)})
                if not live and attempts >= MAX_ATTEMPTS * config.episodes:
                    raise HandoffError(
                        f"{config.env.task}: the scripted expert solved {store.num_episodes} of {attempts} attempts, "
                        f"expected {config.episodes} demonstrations. Is its time limit too short?"
                    )
                outcome = session.run(
                    config.first_seed + next_start(store, dropped), assembler, {}, choose
                )
                if outcome.stopped:
                    raise HandoffError(
                        f"demonstrations: stopped by the person after {store.num_episodes} of {config.episodes}. "
                        "Run the same command to resume."
                    )
            lengths = [int(n) for n in _lengths(store)]
            metrics = {
                "episodes": store.num_episodes,
                "frames": sum(lengths),
                "dropped": dropped.num_episodes,
                "seconds_per_episode": round(sum(lengths) / len(lengths) / env.rate_hz, 3),
            }
            return Output(metrics)


def _lengths(store: Any) -> Any:
    import numpy as np

    return np.diff(store.ends("policy"), prepend=0)
