"""Records successful rollouts of a trained policy: the small set for machines that cannot reach the
demonstrations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robots.config import config, to_plain
from robots.episodes.formats.pusht import STREAM, pusht_schema
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.seed_ranges import EVALUATION, RECORDING
from sim.evaluation.agent import AgentFor
from sim.evaluation.evaluate import make_env, run_episodes
from sim.evaluation.protocol import Protocol, ScoreRule, digest, stated
from sim.evaluation.rollout import EpisodeResult
from sim.tasks.push_t.geometry import SUCCESS_COVERAGE

FIELDS = pusht_schema(images=False).streams[STREAM].fields
"""What of the published demonstrations the set holds too."""


@config
class RecordConfig:
    """Which rollouts are run and which are kept."""

    first_seed: int = RECORDING.start
    """Attempt i starts from seed `first_seed + i`, far from the seeds of evaluation."""
    attempts: int = 600
    """Episodes run."""
    keep: int = 200
    """Successful episodes kept, the first ones in the order of seeds."""
    max_steps: int = 300
    """Time limit of an attempt [control periods of 0.1 s]."""
    batch: int = 50
    """Attempts stepped together."""
    workers: int = 1
    """Processes; the result does not depend on their number."""
    quantum: float = 1e-4
    """Grid that every stored number is rounded to [m, rad]; it makes the packed set small. 0 keeps
    full float32."""
    policy: str
    """Digest of the policy artifact that acts."""
    code_version: str
    """Version of the code that records."""
    date: str
    """Day of the recording, ISO 8601."""


def record_rollouts(
    config: RecordConfig,
    load: Callable[[], AgentFor],
    out: Path,
    progress: Progress,
    execution: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes `store.zarr` (stream `policy`, 10 Hz, `FIELDS`) and its provenance, `provenance.json`,
    to `out`.

    An episode's frames are observation and action of each control period until success, so frame t
    holds the action taken on seeing observation t. Its metadata tell `seed`, `coverage` and
    `success`.

    Args:
        config: which rollouts.
        load: loads the policy; called once in each process, picklable when `workers` > 1.
        out: existing folder; files of an earlier attempt are replaced.
        progress: counts control periods of all attempts.
        execution: how the policy acts, plain; told in the provenance.

    Returns:
        The provenance.

    Raises:
        HandoffError: seeds that belong to evaluation, or fewer successes than are to be kept.
    """
    _check_seeds(config)
    protocol = Protocol(
        name="push_t_recording",
        engine="gym",
        task="gym_pusht/PushT-v0",
        packages=("gym-pusht", "pymunk"),
        first_seed=config.first_seed,
        episodes=config.attempts,
        max_steps=config.max_steps,
        score=ScoreRule(of="reward", over="max"),
    )
    worlds = partial(make_env, protocol)
    episodes = run_episodes(
        protocol, load, worlds, config.batch, config.workers, progress, record=True
    )
    solved = [episode for episode in episodes if episode.success]
    if len(solved) < config.keep:
        raise HandoffError(
            f"record: {len(solved)} of {config.attempts} attempts succeeded, {config.keep} are to be kept. "
            "Raise `attempts`, or train the policy longer."
        )
    kept = solved[: config.keep]
    _store(kept, config.quantum, out / "store.zarr")
    provenance = _provenance(config, protocol, execution, episodes, kept)
    (out / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    return provenance


def _check_seeds(config: RecordConfig) -> None:
    last = config.first_seed + config.attempts - 1
    if config.first_seed < EVALUATION.stop and last >= EVALUATION.start:
        raise HandoffError(
            f"record: seeds {config.first_seed}..{last} meet the test seeds "
            f"{EVALUATION.start}..{EVALUATION.stop - 1}. Training data from them would spoil every evaluation."
        )


def _store(episodes: list[EpisodeResult], quantum: float, path: Path) -> None:
    from robots.episodes.store import EpisodeStore

    shutil.rmtree(path, ignore_errors=True)
    with EpisodeStore.create(path, pusht_schema(images=False)) as store, store.writer() as writer:
        for episode in episodes:
            assert episode.trajectory is not None
            frames = {name: _quantise(episode.trajectory[name], quantum) for name in FIELDS}
            metadata = {
                "seed": episode.seed,
                "coverage": episode.largest["coverage"],
                "success": episode.success,
            }
            writer.append({STREAM: frames}, metadata)


def _quantise(values: np.ndarray, quantum: float) -> np.ndarray:
    if quantum == 0.0:
        return values.astype(np.float32)
    return (np.round(values.astype(np.float64) / quantum) * quantum).astype(np.float32)


def _provenance(
    config: RecordConfig,
    protocol: Protocol,
    execution: Mapping[str, Any],
    episodes: list[EpisodeResult],
    kept: list[EpisodeResult],
) -> dict[str, Any]:
    statement = stated(protocol)
    return {
        "about": "Rollouts of a policy that Handoff trained on the published push-T demonstrations, in gym-pusht.",
        "filter": f"the first {config.keep} attempts, by seed, whose coverage exceeded {SUCCESS_COVERAGE}",
        "config": to_plain(config),
        "execution": dict(execution),
        "protocol": statement,
        "protocol_digest": digest(statement),
        "attempts": len(episodes),
        "successes": sum(episode.success for episode in episodes),
        "score_of_attempts": float(np.mean([episode.score for episode in episodes])),
        "episodes": len(kept),
        "frames": sum(episode.steps for episode in kept),
        "seeds": [episode.seed for episode in kept],
    }
