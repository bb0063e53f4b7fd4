"""The published push-T protocol (Chi et al., Diffusion Policy, RSS 2023) with intervals, a table, a chart and a video.

Score is the mean over seeds of the episode's maximum of clip(coverage / 0.95, 0, 1): not a success rate. Success,
coverage above 0.95 at any step, is told beside it. Start poses are those gym-pusht draws from a seed; the 2023 release
drew others from the same seeds, so single episodes cannot be compared with it, only means.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from robots.config import config, to_plain
from robots.errors import HandoffError
from robots.types import Policy, Progress
from sim import statistics
from sim.gym import RATE_HZ, PushTVecEnv
from sim.parallel import Report, map_pieces
from sim.rollout import Chunking, Episode, rollout
from sim.tasks.push_t import SUCCESS_COVERAGE

BOOTSTRAP_SEED = 0
FRAME_SIZE = 160
"""Edge of one episode's picture in the video [px]."""
VIDEO_FPS = 2.0 * RATE_HZ


@config
class EvaluateConfig:
    """Which episodes are run, and on how many processes."""

    first_seed: int = 100_000
    """Episode i starts from seed `first_seed + i`; 100000 is the published first test seed."""
    episodes: int = 200
    """Seeds, one episode each."""
    max_steps: int = 300
    """Time limit of an episode [control periods of 0.1 s]."""
    batch: int = 50
    """Episodes stepped together, so rows per call of the policy: the last bits of a matrix product may depend on it."""
    workers: int = 1
    """Processes. They take whole batches, so the result does not depend on their number."""
    videos: int = 4
    """First episodes shown side by side in `rollouts.mp4` (at most one batch); 0 writes none."""
    confidence: float = 0.95
    """Of every interval, two-sided."""


@dataclass(frozen=True)
class Video:
    """Where the first few episodes are shown side by side."""

    path: Path
    episodes: int


@dataclass(frozen=True)
class Batch:
    """Episodes run together by one process."""

    seeds: tuple[int, ...]
    video: Video | None


def evaluate(
    config: EvaluateConfig,
    make_policy: Callable[[], Policy],
    chunking: Chunking,
    out: Path,
    progress: Progress,
) -> dict[str, Any]:
    """Scores a policy in gym-pusht and writes `episodes.json`, `coverage.png` and `rollouts.mp4` to `out`.

    Args:
        config: which episodes.
        make_policy: loads the policy; called once in each process, so it must be picklable when `workers` > 1
            (`functools.partial` of a module's function) and set the threads of its own library.
        chunking: shapes agreed with the policy.
        out: existing folder; files of an earlier attempt are replaced.
        progress: counts control periods of all episodes.

    Returns:
        `score`, `score_low`, `score_high` (bootstrap), `success` {k, n, low, high} (Wilson), `mean_steps`, `protocol`,
        `protocol_digest` and `execution`.

    Raises:
        HandoffError: no episodes asked for, a policy that answers nonsense, a worker that died.
    """
    video = Video(path=out / "rollouts.mp4", episodes=config.videos) if config.videos > 0 else None
    seeds = range(config.first_seed, config.first_seed + config.episodes)
    episodes = run_episodes(
        make_policy, chunking, seeds, config.max_steps, config.batch, config.workers, progress, video=video
    )
    rewards = [episode.reward for episode in episodes]
    low, high = statistics.bootstrap_mean(rewards, BOOTSTRAP_SEED, config.confidence)
    protocol = protocol_of(config)
    metrics = {
        "score": float(np.mean(rewards)),
        "score_low": low,
        "score_high": high,
        "success": statistics.success_rate([episode.success for episode in episodes], config.confidence),
        "mean_steps": float(np.mean([episode.steps for episode in episodes])),
        "protocol": protocol,
        "protocol_digest": digest(protocol),
        "execution": to_plain(chunking),
    }
    table = [
        {"seed": e.seed, "coverage": e.coverage, "reward": e.reward, "success": e.success, "steps": e.steps}
        for e in episodes
    ]
    (out / "episodes.json").write_text(json.dumps({**metrics, "episodes": table}, indent=1))
    _draw_coverage([episode.coverage for episode in episodes], out / "coverage.png")
    return metrics


def run_episodes(
    make_policy: Callable[[], Policy],
    chunking: Chunking,
    seeds: Sequence[int],
    max_steps: int,
    batch: int,
    workers: int,
    progress: Progress,
    *,
    record: bool = False,
    video: Video | None = None,
) -> list[Episode]:
    """Runs one episode per seed, `batch` at a time over `workers` processes; the answer is in the order of `seeds`."""
    if min(len(seeds), max_steps, batch, workers) < 1:
        raise HandoffError(
            f"episodes: {len(seeds)} of {max_steps} steps, {batch} at a time over {workers} workers; "
            "each of the four must be at least 1."
        )
    groups = [tuple(seeds[i : i + batch]) for i in range(0, len(seeds), batch)]
    batches = [Batch(seeds=group, video=video if i == 0 else None) for i, group in enumerate(groups)]
    job = partial(_run_batch, chunking, max_steps, record)
    results = map_pieces(make_policy, job, batches, workers, len(seeds) * max_steps, progress)
    return [episode for result in results for episode in result]


def protocol_of(config: EvaluateConfig) -> dict[str, Any]:
    """All that must be equal for two evaluations to be paired; the policy and its execution are not in it."""
    return {
        "benchmark": "gym_pusht/PushT-v0",
        "gym-pusht": version("gym-pusht"),
        "pymunk": version("pymunk"),
        "first_seed": config.first_seed,
        "episodes": config.episodes,
        "max_steps": config.max_steps,
        "rate_hz": RATE_HZ,
        "score": f"mean over seeds of max over steps of clip(coverage / {SUCCESS_COVERAGE}, 0, 1)",
        "success": f"coverage > {SUCCESS_COVERAGE} at any step",
    }


def digest(protocol: dict[str, Any]) -> str:
    """sha256 of the protocol's canonical JSON."""
    return hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()


def compare(first: Path, second: Path, confidence: float = 0.95) -> dict[str, Any]:
    """Pairs two evaluations by seed.

    Args:
        first: output folder of `evaluate`, the reference.
        second: likewise, the agent judged against it.
        confidence: of the score's interval.

    Returns:
        `score` {mean, low, high} of second - first (bootstrap), `success` {only_first, only_second, p_value} (McNemar).

    Raises:
        HandoffError: no evaluation there, or evaluations under different protocols.
    """
    one, two = _read_table(first), _read_table(second)
    if one["protocol"] != two["protocol"]:
        names = [name for name in one["protocol"] if one["protocol"][name] != two["protocol"].get(name)]
        raise HandoffError(f"compare: {first.name} and {second.name} differ in {names}. Evaluate both the same way.")
    rewards = [[episode["reward"] for episode in table["episodes"]] for table in (one, two)]
    successes = [[episode["success"] for episode in table["episodes"]] for table in (one, two)]
    return {
        "score": statistics.paired_difference(*rewards, seed=BOOTSTRAP_SEED, confidence=confidence),
        "success": statistics.mcnemar(*successes),
    }


def _read_table(folder: Path) -> dict[str, Any]:
    path = folder / "episodes.json"
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError) as error:
        raise HandoffError(f"compare: cannot read {path} ({error}). Is it an output of evaluate?") from None


def _run_batch(
    chunking: Chunking, max_steps: int, record: bool, policy: Policy, batch: Batch, report: Report
) -> list[Episode]:
    env = PushTVecEnv(len(batch.seeds), FRAME_SIZE)
    shown = range(min(batch.video.episodes, len(batch.seeds)) if batch.video else 0)
    frames: list[np.ndarray] = []

    def watch() -> None:
        if shown:
            frames.append(np.concatenate([env.render(world) for world in shown], axis=1))

    def tell(done: int, total: int, note: str = "") -> None:
        report(done * len(batch.seeds), note)

    try:
        episodes = rollout(policy, env, batch.seeds, chunking, max_steps, record=record, watch=watch, progress=tell)
    finally:
        env.close()
    if batch.video is not None:
        from sim.video import write_video

        write_video(batch.video.path, frames, VIDEO_FPS)
    tell(max_steps, max_steps, f"{sum(episode.success for episode in episodes)}/{len(episodes)} solved")
    return episodes


def _draw_coverage(coverage: Sequence[float], path: Path) -> None:
    # The object interface: pyplot would choose a window system and keep global state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    axes.hist(coverage, bins=np.linspace(0.0, 1.0, 41).tolist(), color="#4878a8")
    axes.axvline(SUCCESS_COVERAGE, color="#c44e52", label=f"success above {SUCCESS_COVERAGE}")
    axes.set_xlabel("largest coverage of the goal in an episode")
    axes.set_ylabel("episodes")
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=120)
