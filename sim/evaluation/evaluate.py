"""Evaluation under a protocol: one episode per seed, intervals, a table, a chart, and videos of
what went wrong."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from typing import Protocol as Interface

import numpy as np

from robots.config import config, validate
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv
from robots.storage.durable import write_atomically
from sim.evaluation import intervals
from sim.evaluation.agent import AgentFor
from sim.evaluation.failure_videos import choose, film
from sim.evaluation.protocol import Protocol, check_protocol, digest, stated
from sim.evaluation.rollout import EpisodeResult, rollout
from sim.parallel import Report, map_pieces

if TYPE_CHECKING:
    from sim.device.arm import ResidentWorlds
    from sim.device.maniskill import ResidentManiSkill
    from sim.make import WorldConfig

BOOTSTRAP_SEED = 0
FRAME_SIZE = 240
"""Edge of a video's picture where the worlds draw themselves [px]."""
RESULT = "episodes.json"
PUBLISHED_PUSH_T = ("gym", "gym_pusht/PushT-v0")
"""Engine and task of the published benchmark; its worlds here speak metres and the fields of the
demonstrations."""


class MakeEnv(Interface):
    """Makes worlds that freeze when they end. Picklable when several processes are used."""

    def __call__(self, num_envs: int, pictures: bool = False) -> VecEnv:
        """`num_envs` worlds; with `pictures` they draw themselves or observe images, for videos."""
        ...


@config
class EvaluateConfig:
    """How an evaluation is carried out. Nothing here changes what is asked of the agent."""

    batch: int = 50
    """Episodes stepped together, so rows per call of the policy: the last bits of a matrix product
    may depend on it."""
    workers: int = 1
    """Processes. They take whole batches, so the result does not depend on their number."""
    videos: int = 4
    """Episodes filmed, failed ones first; 0 films none."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Where a policy that torch runs computes; only networks too wide for a processor gain from
    CUDA."""
    confidence: float = 0.95
    """Two-sided confidence of every interval."""


def _world_config(protocol: Protocol) -> WorldConfig:
    from sim.make import WorldConfig

    asked = {
        "engine": protocol.engine,
        "task": protocol.task,
        "max_steps": protocol.max_steps,
        "on_end": "freeze",
    }
    return validate(
        WorldConfig, {**protocol.options, **asked}, f"protocol {protocol.name}: options"
    )


def make_env(protocol: Protocol, num_envs: int, pictures: bool = False) -> VecEnv:
    """The protocol's worlds, frozen when they end; see `MakeEnv`.

    Raises:
        HandoffError: an unknown task or option, an engine that is not installed, or no OpenGL for
            pictures.
    """
    if (protocol.engine, protocol.task) == PUBLISHED_PUSH_T:
        from sim.engines.gym_push_t import PushTConfig, PushTVecEnv

        shown = validate(PushTConfig, protocol.options, f"protocol {protocol.name}: options")
        return PushTVecEnv(num_envs, FRAME_SIZE, shown)
    from sim.make import make_worlds
    from sim.scene.cameras import CamerasConfig

    worlds = _world_config(protocol)
    if pictures and worlds.cameras is None and protocol.engine in ("mujoco", "warp"):
        worlds = replace(worlds, cameras=CamerasConfig(height=FRAME_SIZE, width=FRAME_SIZE))
    return make_worlds(worlds, num_envs)


def practice_env(protocol: Protocol, num_envs: int) -> VecEnv:
    """The protocol's worlds for practice: frozen when they end, and they end at its time limit,
    too.

    Raises:
        HandoffError: as of `make_env`.
    """
    if (protocol.engine, protocol.task) != PUBLISHED_PUSH_T:
        return make_env(protocol, num_envs)
    from sim.engines.gym_push_t import PushTConfig, PushTVecEnv

    shown = validate(PushTConfig, protocol.options, f"protocol {protocol.name}: options")
    return PushTVecEnv(num_envs, config=shown, max_steps=protocol.max_steps)


def stays_on_device(protocol: Protocol) -> bool:
    """Whether its worlds are to be met on their device, by `resident_env`."""
    return protocol.engine in ("warp", "maniskill") and bool(
        protocol.options.get("resident", False)
    )


def resident_env(protocol: Protocol, num_envs: int) -> ResidentWorlds | ResidentManiSkill:
    """The protocol's worlds for practice, on their device; see `sim.device.arm`.

    Raises:
        HandoffError: as of `sim.make.make_resident`, or an unknown option.
    """
    from sim.make import make_resident

    return make_resident(_world_config(protocol), num_envs)


def evaluate(
    protocol: Protocol,
    config: EvaluateConfig,
    load: Callable[[], AgentFor],
    make_env: MakeEnv,
    out: Path,
    progress: Progress,
    execution: Mapping[str, Any],
) -> dict[str, Any]:
    """Scores an agent and writes `episodes.json`, `scores.svg` and videos to `out`.

    Args:
        protocol: what is asked.
        config: how it is carried out.
        load: loads the agent; called once in each process, so it must be picklable when `workers` >
            1 (`functools.partial` of a module's function) and set the threads of its own library.
        make_env: makes the worlds.
        out: existing folder; files of an earlier attempt are replaced.
        progress: counts control periods of all episodes.
        execution: how the agent answers, plain and JSON-ready; told beside the result.

    Returns:
        `score`, `score_low`, `score_high` (bootstrap), `success` (see `statistics.success_rate`),
        `mean_steps`, `protocol`, `protocol_digest`, `execution`, `confidence`, `videos`, and
        `no_videos`, the reason, if that is empty though videos were asked for.

    Raises:
        HandoffError: a protocol that cannot be run, an agent that answers nonsense, a worker that
            died.
    """
    check_protocol(protocol)
    episodes = run_episodes(protocol, load, make_env, config.batch, config.workers, progress)
    return write_result(protocol, config, episodes, make_env, out, execution)


def run_episodes(
    protocol: Protocol,
    load: Callable[[], AgentFor],
    make_env: MakeEnv,
    batch: int,
    workers: int,
    progress: Progress,
    *,
    seeds: Sequence[int] | None = None,
    record: bool = False,
) -> list[EpisodeResult]:
    """Runs one episode per seed, `batch` at a time over `workers` processes; the answer is in the
    order of `seeds`.

    Args:
        protocol: its seeds are run unless `seeds` says otherwise.
        load: see `evaluate`.
        make_env: see `evaluate`.
        batch: episodes stepped together.
        workers: processes.
        progress: counts control periods of all episodes.
        seeds: run these instead.
        record: keep observations.
    """
    seeds = protocol.seeds if seeds is None else seeds
    if min(len(seeds), protocol.max_steps, batch, workers) < 1:
        raise HandoffError(
            f"episodes: {len(seeds)} of {protocol.max_steps} steps, {batch} at a time over {workers} workers; "
            "each of the four must be at least 1."
        )
    batches = [tuple(seeds[i : i + batch]) for i in range(0, len(seeds), batch)]
    job = partial(_run_batch, protocol, make_env, record)
    results = map_pieces(load, job, batches, workers, len(seeds) * protocol.max_steps, progress)
    return [episode for result in results for episode in result]


def write_result(
    protocol: Protocol,
    config: EvaluateConfig,
    episodes: Sequence[EpisodeResult],
    make_env: MakeEnv,
    out: Path,
    execution: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes what `evaluate` promises of episodes that were run under `protocol`; returns the
    metrics."""
    statement = stated(protocol)
    scores = [episode.score for episode in episodes]
    low, high = intervals.bootstrap_mean(scores, BOOTSTRAP_SEED, config.confidence)
    metrics: dict[str, Any] = {
        "score": float(np.mean(scores)),
        "score_low": low,
        "score_high": high,
        "success": intervals.success_rate(
            [episode.success for episode in episodes], config.confidence
        ),
        "mean_steps": float(np.mean([episode.steps for episode in episodes])),
        "protocol": statement,
        "protocol_digest": digest(statement),
        "execution": dict(execution),
        "confidence": config.confidence,
        "videos": [],
    }
    # Before the videos: should those fail, the figures are there.
    _write_table(metrics, episodes, out)
    _write_chart(protocol, scores, out)
    if config.videos > 0:
        metrics |= _videos(protocol, config.videos, episodes, make_env, out)
        _write_table(metrics, episodes, out)
    return metrics


def _run_batch(
    protocol: Protocol,
    make_env: MakeEnv,
    record: bool,
    agent_for: AgentFor,
    seeds: tuple[int, ...],
    report: Report,
) -> list[EpisodeResult]:
    def tell(done: int, total: int, note: str = "") -> None:
        report(done * len(seeds), note)

    env = make_env(len(seeds))
    try:
        episodes = rollout(
            agent_for(env),
            env,
            seeds,
            protocol.max_steps,
            protocol.score,
            success=protocol.success,
            record=record,
            progress=tell,
        )
    finally:
        env.close()
    tell(
        protocol.max_steps,
        protocol.max_steps,
        f"{sum(e.success for e in episodes)}/{len(episodes)} solved",
    )
    return episodes


def _videos(
    protocol: Protocol, videos: int, episodes: Sequence[EpisodeResult], make_env: MakeEnv, out: Path
) -> dict[str, Any]:
    """`videos`, or the reason why there are none: figures are worth having without pictures."""
    for old in (*out.glob("failure-*.mp4"), *out.glob("success-*.mp4")):
        old.unlink()
    chosen = choose(episodes, videos)
    try:
        env = make_env(len(chosen), pictures=True)
        try:
            shown = film(env, chosen, protocol, out)
        finally:
            env.close()
    except HandoffError as error:
        return {"no_videos": str(error)}
    return {"videos": shown} if shown else {"no_videos": "these worlds have nothing to show"}


def _write_table(metrics: Mapping[str, Any], episodes: Sequence[EpisodeResult], out: Path) -> None:
    table = [
        {**e.largest, "seed": e.seed, "score": e.score, "success": e.success, "steps": e.steps}
        for e in episodes
    ]
    write_atomically(out / RESULT, json.dumps({**metrics, "episodes": table}, indent=1).encode())


def _write_chart(protocol: Protocol, scores: Sequence[float], out: Path) -> None:
    from sim.evaluation.charts import histogram

    write_atomically(out / "scores.svg", histogram({protocol.name: scores}).encode())
