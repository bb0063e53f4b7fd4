"""Stage `rollouts`: records episodes of a trained policy, as training data of another one (RLDG,
arXiv 2412.09858), or as golden examples of its export."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from flows.artifacts import Episodes, Output, Policy
from flows.runner.artifact import read_manifest
from flows.session.config import HilEnvConfig
from flows.stages.data.config import RolloutConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from robots.episodes.schema import EpisodeSchema
    from robots.interfaces import VecEnv

BATCH = 16
"""Number of environments stepped together."""
MIN_ATTEMPTS = 3 * BATCH
"""Number of attempts before the success rate is checked."""


def run(
    config: RolloutConfig,
    out: Path,
    progress: Progress,
    *,
    policy: Policy,
) -> Output[Episodes]:
    """Writes `out/store.zarr` with episodes of `policy`, the successful ones or all; resumes an
    interrupted attempt.

    Raises:
        HandoffError: the policy succeeds too rarely.
    """
    from flows.evaluation.agents import chunking_of, load_agent
    from robots.episodes.corrections import open_corrections
    from sim.evaluation.protocol import Sampling, ScoreRule
    from sim.evaluation.rollout import rollout
    from sim.make import EnvConfig, find_task, make_vec_env

    agent_for = load_agent(policy, None, chunking_of(policy), Sampling())
    env_config = config.env
    vec_env_config = EnvConfig(
        task=env_config.task,
        robot=env_config.robot,
        rate_hz=env_config.rate_hz,
        reward="sparse",
        randomized=env_config.randomized,
        on_end="freeze",
        max_steps=env_config.max_steps,
    )
    with (
        closing(make_vec_env(vec_env_config, BATCH)) as env,
        open_corrections(out / "store.zarr", _schema(env_config, env)) as store,
    ):
        limit = (
            env_config.max_steps
            or find_task(env_config.task, env_config.rate_hz, env_config.robot).max_steps
        )
        digest = read_manifest(policy)["digest"]
        last = store.metadata(store.num_episodes - 1) if store.num_episodes else {}
        attempts, successes = last.get("attempts", 0), last.get("successes", 0)
        while store.num_episodes < config.episodes:
            rate = successes / max(1, attempts)
            if attempts >= MIN_ATTEMPTS and rate < config.least_success:
                raise HandoffError(
                    f"rollouts: the policy succeeded in {successes} of {attempts} episodes, least_success is "
                    f"{config.least_success}. Train it longer."
                )
            seeds = range(config.first_seed + attempts, config.first_seed + attempts + BATCH)
            episodes = rollout(agent_for(env), env, seeds, limit, ScoreRule(), record=True)
            attempts += BATCH
            solved = [episode for episode in episodes if episode.success]
            successes += len(solved)
            kept = solved if config.keep == "successes" else episodes
            with store.writer() as writer:
                for episode in kept[: config.episodes - store.num_episodes]:
                    metadata = {
                        "seed": episode.seed,
                        "success": episode.success,
                        "source": "rollout",
                        "policy": digest,
                        "attempts": attempts,
                        "successes": successes,
                    }
                    writer.append({"policy": episode.trajectory or {}}, metadata)
            progress(store.num_episodes, config.episodes, f"{len(solved)} of {BATCH} solved")
        frames = int(store.ends("policy")[-1])
        seconds = frames / store.num_episodes / env.rate_hz
        metrics = {
            "episodes": store.num_episodes,
            "frames": frames,
            "seconds_per_episode": round(seconds, 3),
        }
        return Output(metrics)


def _schema(config: HilEnvConfig, env: VecEnv) -> EpisodeSchema:
    from robots.episodes.schema import EpisodeSchema, StreamSpec
    from robots.spec import FieldSpec

    spec = env.action_spec
    action = FieldSpec(
        shape=(spec.size,), unit=spec.unit, about=f"{spec.interface}: {', '.join(spec.names)}"
    )
    stream = StreamSpec(rate_hz=env.rate_hz, fields={**env.observation_spec, "action": action})
    return EpisodeSchema(name=config.task, streams={"policy": stream}, robot=config.robot)
