"""Evaluates an agent under a protocol: one episode per seed, intervals, a table, a chart and videos
of failures."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal
from typing import Protocol as Interface

import numpy as np

from robots.config import Count, OpenShare, Whole, config, validate
from robots.errors import HandoffError
from robots.interfaces import Progress, VecEnv
from robots.specifications.parser import check_syntax
from robots.specifications.shares import outcomes, satisfied_shares
from robots.storage.durable import remove_tree, write_atomically
from sim.evaluation import intervals
from sim.evaluation.agent import MakeAgent
from sim.evaluation.episode_journal import EpisodeJournal
from sim.evaluation.failure_videos import choose_episodes, write_failure_videos
from sim.evaluation.protocol import (
    PUBLISHED_PUSH_T,
    Protocol,
    check_protocol,
    digest,
    protocol_statement,
)
from sim.evaluation.rollout import EpisodeResult, rollout
from sim.parallel import Report, map_pieces

if TYPE_CHECKING:
    from sim.device.arm import DeviceArmEnv
    from sim.device.maniskill import DeviceManiSkillEnv
    from sim.make import EnvConfig

BOOTSTRAP_SEED = 0
FRAME_SIZE = 240
"""Edge length of a video frame if the environments render it [px]."""
RESULT = "episodes.json"
ACTIONS = "actions.npz"
"""File with the executed actions of all episodes, which reproduce them: `seed` (N,), `steps` (N,)
and `action` (sum of steps, A)."""


class MakeEnv(Interface):
    """Makes environments that freeze when their episode ends. Must be picklable if several
    processes are used."""

    def __call__(self, num_envs: int, pictures: bool = False) -> VecEnv:
        """Makes `num_envs` environments; with `pictures` they can render or observe images, for
        videos."""
        ...


@config
class EvaluateConfig:
    """Execution of an evaluation. These settings do not change the protocol."""

    batch: Count = 50
    """Episodes stepped together, which is the batch size of inference: the last bits of a matrix
    product may depend on it."""
    workers: Count = 1
    """Number of processes. Each takes whole batches, so the result does not depend on it."""
    videos: Whole = 4
    """Number of episodes recorded as videos, failures first; 0 records none."""
    device: Literal["auto", "cpu", "cuda"] = "cpu"
    """Device of a torch policy; CUDA is faster only for wide networks."""
    confidence: OpenShare = 0.95
    """Two-sided confidence of every interval."""
    specifications: dict[str, str] = field(default_factory=dict)
    """Formulas of signal temporal logic by name, such as `always (goal_offset.norm < 0.3)`, whose
    robustness is measured in every episode."""

    def __post_init__(self) -> None:
        """Checks the formulas.

        Raises:
            HandoffError: one cannot be read.
        """
        check_syntax(self.specifications)


def env_config(protocol: Protocol) -> EnvConfig:
    """The environments of a protocol, other than the published push-T, which freeze when their
    episode ends.

    Raises:
        HandoffError: an unknown option.
    """
    from sim.make import EnvConfig

    prescribed = {
        "engine": protocol.engine,
        "task": protocol.task,
        "max_steps": protocol.max_steps,
        "on_end": "freeze",
    }
    return validate(
        EnvConfig, {**protocol.options, **prescribed}, f"protocol {protocol.name}: options"
    )


def check_environments(protocol: Protocol, *, on_device: bool = False) -> None:
    """Checks the options of a protocol's environments without making them.

    Args:
        protocol: the protocol.
        on_device: whether the environments may stay on their device, as in training.

    Raises:
        HandoffError: an unknown option, a value out of its range, or an option that the engine
            would ignore.
    """
    if (protocol.engine, protocol.task) == PUBLISHED_PUSH_T:
        from sim.engines.gym_push_t import PushTConfig

        validate(PushTConfig, protocol.options, f"protocol {protocol.name}: options")
        return
    from sim.make import check_device_env, check_env

    config = env_config(protocol)
    if on_device and config.resident:
        check_device_env(config)
    else:
        check_env(config)


def make_env(protocol: Protocol, num_envs: int, pictures: bool = False) -> VecEnv:
    """Makes the protocol's environments, which freeze when their episode ends; see `MakeEnv`.

    Raises:
        HandoffError: an unknown task or option, an engine that is not installed, or no OpenGL for
            images.
    """
    if (protocol.engine, protocol.task) == PUBLISHED_PUSH_T:
        from sim.engines.gym_push_t import PushTConfig, PushTVecEnv

        options = validate(PushTConfig, protocol.options, f"protocol {protocol.name}: options")
        return PushTVecEnv(num_envs, FRAME_SIZE, options)
    from sim.make import make_vec_env

    env = env_config(protocol)
    return make_vec_env(_with_pictures(env) if pictures else env, num_envs)


def _with_pictures(env: EnvConfig) -> EnvConfig:
    """The environments with images for videos, where their engine has any."""
    from sim.scene.cameras import CamerasConfig

    match env.engine:
        case "mujoco" | "warp" if env.cameras is None:
            return replace(env, cameras=CamerasConfig(height=FRAME_SIZE, width=FRAME_SIZE))
        case "maniskill" if env.maniskill.observation == "state":
            size = env.maniskill.image_size or (FRAME_SIZE, FRAME_SIZE)
            pictured = replace(env.maniskill, observation="state+rgb", image_size=size)
            return replace(env, maniskill=pictured)
        case "gym" if "render_mode" not in env.gym.options:
            drawn = {**env.gym.options, "render_mode": "rgb_array"}
            # A worker process does not send frames.
            return replace(env, gym=replace(env.gym, options=drawn), workers=1)
    return env


def training_env(protocol: Protocol, num_envs: int) -> VecEnv:
    """Makes the protocol's environments for fine-tuning: they freeze when their episode ends, which
    includes the time limit.

    Raises:
        HandoffError: for the same reasons as `make_env`.
    """
    if (protocol.engine, protocol.task) != PUBLISHED_PUSH_T:
        return make_env(protocol, num_envs)
    from sim.engines.gym_push_t import PushTConfig, PushTVecEnv

    options = validate(PushTConfig, protocol.options, f"protocol {protocol.name}: options")
    return PushTVecEnv(num_envs, config=options, max_steps=protocol.max_steps)


def stays_on_device(protocol: Protocol) -> bool:
    """Whether the protocol's environments stay on their device, so that `device_env` makes them."""
    return protocol.engine in ("warp", "maniskill") and bool(
        protocol.options.get("resident", False)
    )


def device_env(protocol: Protocol, num_envs: int) -> DeviceArmEnv | DeviceManiSkillEnv:
    """Makes the protocol's environments for training on their device; see `sim.device.arm`.

    Raises:
        HandoffError: for the same reasons as `sim.make.make_device_env`, or an unknown option.
    """
    from sim.make import make_device_env

    return make_device_env(env_config(protocol), num_envs)


def evaluate(
    protocol: Protocol,
    config: EvaluateConfig,
    load: Callable[[], MakeAgent],
    make_env: MakeEnv,
    out: Path,
    progress: Progress,
    execution: Mapping[str, Any],
    *,
    journal: Path | None = None,
) -> dict[str, Any]:
    """Scores an agent and writes `episodes.json`, `actions.npz`, `scores.svg` and videos to `out`.

    Args:
        protocol: task, seeds and rules.
        config: execution of the evaluation.
        load: loads the agent; called once in each process, so it must be picklable if `workers` > 1
            (`functools.partial` of a module-level function) and set its library's threads.
        make_env: makes the environments.
        out: existing folder; files of an earlier attempt are replaced.
        progress: counts control periods of all episodes.
        execution: settings of the agent, JSON-serialisable, stored with the result.
        journal: folder of this agent's finished episodes until the result is written; see
            `run_episodes`.

    Returns:
        `score`, `score_low`, `score_high` (bootstrap), `success` (see `intervals.success_rate`),
        `mean_steps`, `cost`, `cost_low` and `cost_high` (mean per episode, where the environments
        report a cost), `protocol`, `protocol_digest`, `execution`, `confidence`, `videos`, and
        `no_videos`, the reason, if there are none although videos were requested.

    Raises:
        HandoffError: a protocol that cannot be run, an agent with invalid actions, or a worker that
            died.
    """
    check_protocol(protocol)
    episodes = run_episodes(
        protocol,
        load,
        make_env,
        config.batch,
        config.workers,
        progress,
        specifications=config.specifications,
        journal=journal,
    )
    metrics = write_result(protocol, config, episodes, make_env, out, execution)
    if journal is not None:
        remove_tree(journal)
    return metrics


def run_episodes(
    protocol: Protocol,
    load: Callable[[], MakeAgent],
    make_env: MakeEnv,
    batch: int,
    workers: int,
    progress: Progress,
    *,
    seeds: Sequence[int] | None = None,
    record: bool = False,
    specifications: Mapping[str, str] = MappingProxyType({}),
    journal: Path | None = None,
) -> list[EpisodeResult]:
    """Runs one episode per seed, `batch` at a time in `workers` processes; results are in the order
    of `seeds`.

    Args:
        protocol: task, rules, and seeds unless `seeds` is given.
        load: see `evaluate`.
        make_env: see `evaluate`.
        batch: episodes stepped together.
        workers: number of processes.
        progress: counts control periods of all episodes.
        seeds: replace the protocol's seeds.
        record: whether to store observations.
        specifications: formulas of signal temporal logic by name.
        journal: folder in which finished batches are kept, and from which an interrupted call with
            the same arguments takes them; it must belong to this agent alone, and the caller
            deletes it. None keeps nothing.

    Raises:
        HandoffError: no seeds, a size below 1, or a journal that cannot be written.
    """
    seeds = protocol.seeds if seeds is None else seeds
    if min(len(seeds), protocol.max_steps, batch, workers) < 1:
        raise HandoffError(
            f"episodes: {len(seeds)} of {protocol.max_steps} steps, {batch} at a time in {workers} workers; "
            "each of these four numbers must be at least 1."
        )
    batches = [tuple(seeds[i : i + batch]) for i in range(0, len(seeds), batch)]
    kept = (
        None if journal is None else EpisodeJournal.open(journal, protocol, record, specifications)
    )
    results = {} if kept is None else _finished(kept, batches)
    missing = [batch for batch in batches if batch not in results]
    finished = sum(map(len, results))
    steps = len(seeds) * protocol.max_steps
    ended = [episode for episodes in results.values() for episode in episodes]

    def report(done: int, total: int, note: str = "") -> None:
        # A batch tells of its own episodes alone, of which none is solved when it begins.
        counted = f"{sum(episode.success for episode in ended)}/{len(ended)} solved"
        progress(finished * protocol.max_steps + done, steps, counted if ended else note)

    if results:
        kept_note = f"{finished} of {len(seeds)} episodes kept from the interrupted attempt"
        progress(finished * protocol.max_steps, steps, kept_note)
    job = partial(run_batch, protocol, make_env, record, dict(specifications))

    def keep(index: int, episodes: list[EpisodeResult]) -> None:
        ended.extend(episodes)
        if kept is not None:
            kept.write(missing[index], episodes)

    if missing:
        computed = map_pieces(load, job, missing, workers, steps, report, keep)
        results |= dict(zip(missing, computed, strict=True))
        report((len(seeds) - finished) * protocol.max_steps, steps)
    return [episode for batch in batches for episode in results[batch]]


def _finished(
    journal: EpisodeJournal, batches: Sequence[tuple[int, ...]]
) -> dict[tuple[int, ...], list[EpisodeResult]]:
    """The batches that an interrupted call has finished."""
    found = {batch: journal.read(batch) for batch in batches}
    return {batch: episodes for batch, episodes in found.items() if episodes is not None}


def write_result(
    protocol: Protocol,
    config: EvaluateConfig,
    episodes: Sequence[EpisodeResult],
    make_env: MakeEnv,
    out: Path,
    execution: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes the files of `evaluate` for episodes that were run under `protocol`, and returns the
    metrics."""
    statement = protocol_statement(protocol)
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
    costs = [episode.cost for episode in episodes if episode.cost is not None]
    if costs:
        low, high = intervals.bootstrap_mean(costs, BOOTSTRAP_SEED, config.confidence)
        metrics |= {"cost": float(np.mean(costs)), "cost_low": low, "cost_high": high}
    if config.specifications:
        metrics["specifications"] = satisfied_shares(
            [outcomes(episode.specifications) for episode in episodes],
            config.specifications,
            config.confidence,
        )
    # The table and chart are written first, so that they exist even if rendering fails.
    _write_table(metrics, episodes, out)
    _write_actions(episodes, out)
    _write_chart(protocol, scores, out)
    if config.videos > 0:
        metrics |= _videos(protocol, config.videos, episodes, make_env, out)
        _write_table(metrics, episodes, out)
    return metrics


def run_batch(
    protocol: Protocol,
    make_env: MakeEnv,
    record: bool,
    specifications: Mapping[str, str],
    make_agent: MakeAgent,
    seeds: tuple[int, ...],
    report: Report,
) -> list[EpisodeResult]:
    """Runs one batch of episodes, a piece of `run_episodes`; see there for the arguments.

    Args:
        make_agent: the loaded agent.
        report: called with the control periods that all episodes of the batch have had.
    """

    def report_steps(done: int, total: int, note: str = "") -> None:
        report(done * len(seeds), note)

    env = make_env(len(seeds))
    try:
        episodes = rollout(
            make_agent(env),
            env,
            seeds,
            protocol.max_steps,
            protocol.score,
            success=protocol.success,
            record=record,
            specifications=specifications,
            progress=report_steps,
        )
    finally:
        env.close()
    report_steps(
        protocol.max_steps,
        protocol.max_steps,
        f"{sum(e.success for e in episodes)}/{len(episodes)} solved",
    )
    return episodes


def _videos(
    protocol: Protocol, videos: int, episodes: Sequence[EpisodeResult], make_env: MakeEnv, out: Path
) -> dict[str, Any]:
    """Returns `videos`, or `no_videos` with the reason: a rendering error must not lose the
    evaluation."""
    for old in (*out.glob("failure-*.mp4"), *out.glob("success-*.mp4")):
        old.unlink()
    selected = choose_episodes(episodes, videos)
    try:
        env = make_env(len(selected), pictures=True)
        try:
            entries = write_failure_videos(env, selected, protocol, out)
        finally:
            env.close()
    except HandoffError as error:
        return {"no_videos": str(error)}
    if not entries:
        return {"no_videos": "these environments cannot render images"}
    return {"videos": entries}


def _write_table(metrics: Mapping[str, Any], episodes: Sequence[EpisodeResult], out: Path) -> None:
    table = [
        {
            **e.largest,
            "seed": e.seed,
            "score": e.score,
            "success": e.success,
            "steps": e.steps,
            **({} if e.cost is None else {"cost": e.cost}),
            **({"specifications": outcomes(e.specifications)} if e.specifications else {}),
        }
        for e in episodes
    ]
    write_atomically(out / RESULT, json.dumps({**metrics, "episodes": table}, indent=1).encode())


def _write_actions(episodes: Sequence[EpisodeResult], out: Path) -> None:
    buffer = io.BytesIO()
    np.savez(
        buffer,
        seed=np.array([episode.seed for episode in episodes]),
        steps=np.array([episode.steps for episode in episodes]),
        action=np.concatenate([episode.actions for episode in episodes]),
    )
    write_atomically(out / ACTIONS, buffer.getvalue())


def _write_chart(protocol: Protocol, scores: Sequence[float], out: Path) -> None:
    from sim.evaluation.charts import histogram

    write_atomically(out / "scores.svg", histogram({protocol.name: scores}).encode())
