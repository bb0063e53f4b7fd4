"""Stage `rollouts`: records episodes of a trained policy, as training data of another one (RLDG,
arXiv 2412.09858), or as golden examples of its export."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.artifacts import Dynamics, Episodes, Output, Policy
from flows.evaluation.dynamics import check_dynamics_source, with_dynamics
from flows.runner.artifact import read_manifest
from flows.stages.data.config import RolloutConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from robots.episodes.metadata.episode_metadata import EpisodeOrigin
    from robots.episodes.schema import EpisodeSchema
    from robots.episodes.store import EpisodeStore
    from robots.interfaces import VecEnv
    from sim.evaluation.rollout import EpisodeResult

ONE_COMMIT = 2**62
"""Size that no batch reaches [bytes]."""
MIN_ATTEMPTS = 48
"""Number of attempts before the success rate is checked."""


def check(config: RolloutConfig, sources: Mapping[str, Any]) -> None:
    """Refuses dynamics that the protocol's environments cannot have."""
    check_dynamics_source(config.protocol, sources)


def run(
    config: RolloutConfig,
    out: Path,
    progress: Progress,
    *,
    policy: Policy,
    dynamics: Dynamics | None = None,
) -> Output[Episodes]:
    """Writes `out/store.zarr` with episodes of `policy`, the successful ones or all; resumes an
    interrupted attempt. With `dynamics`, the simulated arm has the tuned parameters.

    Raises:
        HandoffError: the policy succeeds too rarely, or does not fit the protocol.
    """
    from flows.evaluation.agents import checkpoint_agent
    from policies.checkpoint import read_card
    from robots.episodes.corrections import open_corrections
    from robots.episodes.metadata.episode_metadata import EpisodeOrigin
    from sim.evaluation.evaluate import training_env
    from sim.evaluation.rollout import rollout

    protocol = with_dynamics(config.protocol, dynamics)
    load, _ = checkpoint_agent(policy, protocol)
    make_agent = load()
    origin = EpisodeOrigin(
        robot=f"{protocol.robot} {protocol.engine}" if protocol.robot else "",
        host="simulated",
        source="rollout",
        policy_digest=read_manifest(policy)["digest"],
    )
    with (
        closing(training_env(protocol, config.num_envs)) as env,
        open_corrections(
            out / "store.zarr", _schema(read_card(policy).task, protocol.robot, env)
        ) as store,
    ):
        last = store.metadata(store.num_episodes - 1) if store.num_episodes else {}
        attempts, successes = last.get("attempts", 0), last.get("successes", 0)
        if store.num_episodes:
            kept = f"{store.num_episodes} episodes kept from the interrupted attempt"
            progress(store.num_episodes, config.episodes, kept)
        while store.num_episodes < config.episodes:
            rate = successes / max(1, attempts)
            if attempts >= MIN_ATTEMPTS and rate < config.least_success:
                raise HandoffError(
                    f"rollouts: the policy succeeded in {successes} of {attempts} episodes, least_success is "
                    f"{config.least_success}. Train it longer, or keep failed episodes too: keep: all."
                )
            first = config.first_seed + attempts
            episodes = rollout(
                make_agent(env),
                env,
                range(first, first + config.num_envs),
                protocol.max_steps,
                protocol.score,
                success=protocol.success,
                record=True,
            )
            attempts += config.num_envs
            solved = [episode for episode in episodes if episode.success]
            successes += len(solved)
            kept = solved if config.keep == "successes" else episodes
            chosen = kept[: config.episodes - store.num_episodes]
            _append(store, chosen, origin, attempts=attempts, successes=successes)
            progress(
                store.num_episodes, config.episodes, f"{len(solved)} of {config.num_envs} solved"
            )
        frames = int(store.ends("policy")[-1])
        metrics = {
            "episodes": store.num_episodes,
            "frames": frames,
            "attempts": attempts,
            "seconds_per_episode": round(frames / store.num_episodes / env.rate_hz, 3),
        }
        return Output(metrics)


def _append(
    store: EpisodeStore,
    episodes: list[EpisodeResult],
    origin: EpisodeOrigin,
    *,
    attempts: int,
    successes: int,
) -> None:
    # One commit, because `attempts` counts whole batches.
    with store.writer(ONE_COMMIT) as writer:
        for episode in episodes:
            metadata = {
                **origin.entries(),
                "seed": episode.seed,
                "success": episode.success,
                "labelled_by": "task",
                "attempts": attempts,
                "successes": successes,
            }
            writer.append({"policy": episode.trajectory or {}}, metadata)


def _schema(task: str, robot: str, env: VecEnv) -> EpisodeSchema:
    from robots.episodes.schema import EpisodeSchema, StreamSpec

    fields = {**env.observation_spec, "action": env.action_spec.field_spec()}
    stream = StreamSpec(rate_hz=env.rate_hz, fields=fields)
    return EpisodeSchema(name=task, streams={"policy": stream}, robot=robot)
