"""Records episodes in batches of environments and stores them in an `EpisodeStore`.

Frame t of an episode holds observation t, the action taken after it, the reward that followed, and
whether the task was solved then.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore, EpisodeWriter
from robots.errors import HandoffError
from robots.interfaces import Observation, Progress
from robots.spec import FieldSpec
from sim.engines.mujoco import MujocoConfig, MujocoEngine
from sim.tasks.task import ExpertTarget, Task

STREAM = "policy"
"""Name of the stream of the recorded episodes."""


class RecordingSummary(NamedTuple):
    """Summary of a recording."""

    episodes: int
    """Number of stored episodes."""
    steps: int
    """Control periods of all stored episodes."""
    success_rate: float
    """Success rate of all episodes, stored or not; play is successful if it solved the task at any
    time."""


class EpisodeBatch(NamedTuple):
    """N episodes of at most T steps."""

    fields: dict[str, np.ndarray]
    """(T, N, ...) per field."""
    length: np.ndarray
    """(N,) number of valid steps."""
    success: np.ndarray
    """(N,) bool: the task was solved."""
    keep: np.ndarray
    """(N,) bool: the episode is stored."""


class BatchRecorder(Protocol):
    """Records one batch of episodes."""

    source: str
    """Value of the metadata entry `source`."""

    def __call__(self, engine: MujocoEngine, seeds: np.ndarray) -> EpisodeBatch:
        """Records one episode per environment of `engine`.

        Args:
            engine: N environments.
            seeds: (N,) seeds of the initial states.
        """
        ...


def record(
    task: Task,
    seeds: Sequence[int],
    out: Path,
    batch: int,
    mujoco: MujocoConfig,
    labels: dict[str, FieldSpec],
    run: BatchRecorder,
    progress: Progress,
) -> RecordingSummary:
    """Records one episode per seed in a new store at `out`, in batches of environments.

    Args:
        task: the recorded task.
        seeds: seeds of the initial states.
        out: missing or empty folder.
        batch: number of environments recorded together.
        mujoco: options of the engine.
        labels: fields beside observation, action, reward and success.
        run: records one batch.
        progress: counts seeds.

    Raises:
        HandoffError: an error of the engine or the store.
    """
    keys = np.asarray(seeds, dtype=np.int64)
    engine = MujocoEngine(task, min(batch, len(keys)), mujoco)
    episodes = steps = solved = 0
    try:
        with EpisodeStore.create(out, _schema(engine, labels)) as store, store.writer() as writer:
            for first in range(0, len(keys), batch):
                batch_seeds = keys[first : first + batch]
                if len(batch_seeds) != engine.num_envs:
                    engine.close()
                    engine = MujocoEngine(task, len(batch_seeds), mujoco)
                recorded = run(engine, batch_seeds)
                steps += _append(writer, recorded, batch_seeds, run.source)
                episodes += int(recorded.keep.sum())
                solved += int(recorded.success.sum())
                progress(first + len(batch_seeds), len(keys), f"{episodes} episodes stored")
    finally:
        engine.close()
    return RecordingSummary(episodes, steps, solved / len(keys))


def _schema(engine: MujocoEngine, labels: dict[str, FieldSpec]) -> EpisodeSchema:
    spec = engine.action_spec
    about = ", ".join(spec.names)
    fields = {
        **engine.observation_spec,
        "action": FieldSpec(shape=(spec.size,), unit=spec.unit, about=f"{spec.interface}: {about}"),
        "reward": FieldSpec(shape=(), about="reward that followed the action"),
        "success": FieldSpec(
            shape=(), dtype="uint8", about="1 where the task is solved after the action"
        ),
        **labels,
    }
    return EpisodeSchema(
        name=engine.task.name,
        streams={STREAM: StreamSpec(rate_hz=engine.rate_hz, fields=fields)},
        robot=engine.task.robot.config_name,
    )


def _append(writer: EpisodeWriter, batch: EpisodeBatch, seeds: np.ndarray, source: str) -> int:
    """Stores the episodes to keep and returns the number of their steps."""
    for i in np.flatnonzero(batch.keep):
        fields = {name: array[: batch.length[i], i] for name, array in batch.fields.items()}
        metadata = {"seed": int(seeds[i]), "success": bool(batch.success[i]), "source": source}
        writer.append({STREAM: fields}, metadata)
    return int(batch.length[batch.keep].sum())


def with_noise(
    target: ExpertTarget, noise: float | np.ndarray, rngs: Sequence[np.random.Generator]
) -> ExpertTarget:
    """Adds Gaussian noise of standard deviation `noise` [m], one or (N,), to the position, from
    each environment's own stream."""
    pose = np.array(target.pose, dtype=np.float64)
    pose[:, :3] += np.broadcast_to(noise, len(rngs))[:, None] * np.stack(
        [rng.standard_normal(3) for rng in rngs]
    )
    return target._replace(pose=pose)


def stack_frames(frames: Sequence[Observation]) -> dict[str, np.ndarray]:
    """Stacks T frames to (T, N, ...) per field."""
    return {name: np.stack([frame[name] for frame in frames]) for name in frames[0]}


def check_seeds(seeds: Sequence[int], batch: int) -> None:
    """Refuses an empty list of seeds, equal or negative seeds, and batches below 1."""
    if not len(seeds) or min(seeds) < 0 or len(set(seeds)) != len(seeds) or batch < 1:
        raise HandoffError(
            f"recording: seeds {list(seeds)[:8]} in batches of {batch}, expected distinct seeds >= 0, at least one, "
            "and batches of at least 1."
        )
