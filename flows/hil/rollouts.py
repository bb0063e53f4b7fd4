"""Stage `rollouts`: successful episodes of a learned policy, to teach another one (RLDG, arXiv
2412.09858)."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.hil.config import RolloutConfig
from flows.runner.artifact import read_manifest
from flows.session.config import HilWorld
from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from robots.episodes.schema import EpisodeSchema
    from robots.interfaces import VecEnv

BATCH = 16
"""Episodes stepped together."""
ENOUGH = 3 * BATCH
"""Attempts before the success rate is judged."""


def run(
    config: RolloutConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes `out/store.zarr` with the successful episodes of `inputs["policy"]`; goes on from what
    is there.

    Raises:
        HandoffError: the policy succeeds too rarely.
    """
    from flows.evaluation.agents import chunking_of, load_agent
    from robots.episodes.corrections import open_corrections
    from sim.evaluation.protocol import Sampling, ScoreRule
    from sim.evaluation.rollout import rollout
    from sim.make import WorldConfig, find_task, make_worlds

    policy = inputs["policy"]
    agent_for = load_agent(policy, None, chunking_of(policy), Sampling())
    world = config.world
    kind = WorldConfig(
        task=world.task,
        robot=world.robot,
        rate_hz=world.rate_hz,
        reward="sparse",
        randomized=world.randomized,
        on_end="freeze",
        max_steps=world.max_steps,
    )
    with (
        closing(make_worlds(kind, BATCH)) as env,
        open_corrections(out / "store.zarr", _schema(world, env)) as store,
    ):
        limit = world.max_steps or find_task(world.task, world.rate_hz, world.robot).max_steps
        digest = read_manifest(policy)["digest"]
        attempts = store.metadata(store.num_episodes - 1)["attempts"] if store.num_episodes else 0
        while store.num_episodes < config.episodes:
            rate = store.num_episodes / max(1, attempts)
            if attempts >= ENOUGH and rate < config.least_success:
                raise HandoffError(
                    f"rollouts: the policy succeeded in {store.num_episodes} of {attempts} episodes, least_success is "
                    f"{config.least_success}. Train it longer (--steps)."
                )
            seeds = range(config.first_seed + attempts, config.first_seed + attempts + BATCH)
            episodes = rollout(agent_for(env), env, seeds, limit, ScoreRule(), record=True)
            attempts += BATCH
            solved = [episode for episode in episodes if episode.success]
            with store.writer() as writer:
                for episode in solved[: config.episodes - store.num_episodes]:
                    about = {
                        "seed": episode.seed,
                        "success": True,
                        "source": "rollout",
                        "policy": digest,
                    }
                    writer.append(
                        {"policy": episode.trajectory or {}}, {**about, "attempts": attempts}
                    )
            progress(store.num_episodes, config.episodes, f"{len(solved)} of {BATCH} solved")
        frames = int(store.ends("policy")[-1])
        seconds = frames / store.num_episodes / env.rate_hz
        return {
            "episodes": store.num_episodes,
            "frames": frames,
            "seconds_per_episode": round(seconds, 3),
        }


def _schema(world: HilWorld, env: VecEnv) -> EpisodeSchema:
    from robots.episodes.schema import EpisodeSchema, StreamSpec
    from robots.spec import FieldSpec

    spec = env.action_spec
    action = FieldSpec(
        shape=(spec.size,), unit=spec.unit, about=f"{spec.interface}: {', '.join(spec.names)}"
    )
    stream = StreamSpec(rate_hz=env.rate_hz, fields={**env.observation_spec, "action": action})
    return EpisodeSchema(name=world.task, streams={"policy": stream}, robot=world.robot)
