"""Records successful rollouts of a trained policy, as a small dataset for machines that cannot
download the demonstrations."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from robots.config import Count, NonNegative, Seed, config, to_plain
from robots.episodes.formats.pusht import STREAM, pusht_schema
from robots.episodes.metadata.episode_metadata import EpisodeOrigin
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.seed_ranges import EVALUATION, RECORDING
from sim.evaluation.agent import MakeAgent
from sim.evaluation.evaluate import make_env, run_episodes
from sim.evaluation.protocol import Protocol, ScoreRule, digest, protocol_statement
from sim.evaluation.rollout import EpisodeResult
from sim.tasks.push_t.geometry import SUCCESS_COVERAGE

FIELDS = pusht_schema(images=False).streams[STREAM].fields
"""Fields of the published demonstrations that the dataset contains."""


@config
class RecordConfig:
    """Number and selection of the recorded rollouts."""

    first_seed: Seed = RECORDING.start
    """Seed of the first attempt; attempt i uses `first_seed + i`, far from the evaluation seeds."""
    attempts: Count = 600
    """Number of episodes to run."""
    keep: Count = 200
    """Number of successful episodes to store, the first ones in the order of seeds."""
    max_steps: Count = 300
    """Time limit of an attempt [control periods of 0.1 s]."""
    batch: Count = 50
    """Attempts stepped together."""
    workers: Count = 1
    """Number of processes, which does not affect the result."""
    quantum: NonNegative = 1e-4
    """Grid to which every stored number is rounded [m, rad], which makes the compressed dataset
    small; 0 keeps full float32."""
    policy: str
    """Digest of the policy artifact that acts."""
    code_version: str
    """Version of the recording code."""
    date: str
    """Day of the recording, ISO 8601."""


def record_rollouts(
    config: RecordConfig,
    load: Callable[[], MakeAgent],
    out: Path,
    progress: Progress,
    execution: Mapping[str, Any],
) -> dict[str, Any]:
    """Writes `store.zarr` (stream `policy`, 10 Hz, `FIELDS`) and its provenance, `provenance.json`,
    to `out`.

    An episode's frames are observation and action of each control period until success, so frame t
    holds the action taken after observation t. Its metadata contain `seed`, `coverage`,
    `success` and its origin.

    Args:
        config: number and selection of the rollouts.
        load: loads the policy; called once in each process, picklable if `workers` > 1.
        out: existing folder; files of an earlier attempt are replaced.
        progress: counts control periods of all attempts.
        execution: settings of the policy, JSON-serialisable, stored in the provenance.

    Returns:
        The provenance.

    Raises:
        HandoffError: seeds that belong to evaluation, or fewer successes than `config.keep`.
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
    env = partial(make_env, protocol)
    episodes = run_episodes(
        protocol, load, env, config.batch, config.workers, progress, record=True
    )
    solved = [episode for episode in episodes if episode.success]
    if len(solved) < config.keep:
        raise HandoffError(
            f"record: {len(solved)} of {config.attempts} attempts succeeded, keep requires {config.keep}. "
            "Raise `attempts`, or train the policy longer."
        )
    selected = solved[: config.keep]
    origin = EpisodeOrigin(
        robot="", host="simulated", source="rollout", policy_digest=config.policy
    )
    _store(selected, origin, config.quantum, out / "store.zarr")
    provenance = _provenance(config, protocol, execution, episodes, selected)
    (out / "provenance.json").write_text(json.dumps(provenance, indent=1) + "\n")
    return provenance


def _check_seeds(config: RecordConfig) -> None:
    last = config.first_seed + config.attempts - 1
    if config.first_seed < EVALUATION.stop and last >= EVALUATION.start:
        raise HandoffError(
            f"record: seeds {config.first_seed}..{last} overlap the evaluation seeds "
            f"{EVALUATION.start}..{EVALUATION.stop - 1}. Training data must not contain them."
        )


def _store(
    episodes: list[EpisodeResult], origin: EpisodeOrigin, quantum: float, path: Path
) -> None:
    from robots.episodes.store import EpisodeStore

    shutil.rmtree(path, ignore_errors=True)
    with EpisodeStore.create(path, pusht_schema(images=False)) as store, store.writer() as writer:
        for episode in episodes:
            assert episode.trajectory is not None
            frames = {name: _quantise(episode.trajectory[name], quantum) for name in FIELDS}
            metadata = {
                **origin.entries(),
                "seed": episode.seed,
                "coverage": episode.largest["coverage"],
                "success": episode.success,
                "labelled_by": "task",
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
    selected: list[EpisodeResult],
) -> dict[str, Any]:
    statement = protocol_statement(protocol)
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
        "episodes": len(selected),
        "frames": sum(episode.steps for episode in selected),
        "seeds": [episode.seed for episode in selected],
    }
