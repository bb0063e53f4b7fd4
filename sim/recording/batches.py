"""Records episodes in batches of environments and stores them in an `EpisodeStore`.

Frame t of an episode holds observation t, the action taken after it, the reward that followed, and
whether the task was solved then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import numpy as np

from robots.control.actions import ActionSpace, StepSpace
from robots.episodes.corrections import open_corrections
from robots.episodes.episode_writer import EpisodeWriter
from robots.episodes.metadata.episode_metadata import EpisodeOrigin
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Observation, Progress
from robots.spec import ActionSpec, FieldSpec
from sim.engine import Engine
from sim.scene.view import View
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
    """(N,) bool: the episode is stored; a solved one must be."""


@runtime_checkable
class RecordedEngine(Engine, Protocol):
    """An engine of a task of an arm, whose scripted expert reads the simulator's state."""

    task: Task
    actions: ActionSpace

    @property
    def view(self) -> View:
        """The current state of all environments."""
        ...

    def to_action(self, target: ExpertTarget) -> np.ndarray:
        """The action (N, A) that brings every environment closest to its expert's target."""
        ...


RecordedT = TypeVar("RecordedT", bound=RecordedEngine)
RecorderT = TypeVar("RecorderT", bound=RecordedEngine, contravariant=True)


class BatchRecorder(Protocol[RecorderT]):
    """Records one batch of episodes."""

    source: str
    """Value of the metadata entry `source`."""

    def labels(self, action: ActionSpec) -> dict[str, FieldSpec]:
        """The recorded fields beside observation, action, reward and success.

        Args:
            action: action of the environments.
        """
        ...

    def __call__(self, engine: RecorderT, seeds: np.ndarray) -> EpisodeBatch:
        """Records one episode per environment of `engine`.

        Args:
            engine: N environments.
            seeds: (N,) seeds of the initial states.
        """
        ...


def record(
    make: Callable[[int], RecordedT],
    seeds: Sequence[int],
    out: Path,
    batch: int,
    run: BatchRecorder[RecordedT],
    progress: Progress,
) -> RecordingSummary:
    """Records one episode per seed in the store at `out`, in batches of environments.

    Every batch is committed at its end. A store that an interrupted call with the same arguments
    has left is continued, and becomes the one that an uninterrupted call would have written.

    Args:
        make: makes the given number of environments.
        seeds: seeds of the initial states.
        out: missing folder, or the store of an interrupted call.
        batch: number of environments recorded together.
        run: records one batch.
        progress: counts seeds.

    Raises:
        HandoffError: an error of the engine or the store, or the store holds other episodes.
    """
    keys = np.asarray(seeds, dtype=np.int64)
    engine = make(min(batch, len(keys)))
    try:
        with open_corrections(out, _schema(engine, run.labels(engine.action_spec))) as store:
            finished = _finished(store, keys, run.source)
            if finished:
                kept = f"{store.num_episodes} episodes kept from the interrupted attempt"
                progress(finished, len(keys), kept)
            # A batch of which only a part was committed is recorded again.
            begin = finished if finished == len(keys) else finished // batch * batch
            for first in range(begin, len(keys), batch):
                batch_seeds = keys[first : first + batch]
                if len(batch_seeds) != engine.num_envs:
                    engine.close()
                    engine = make(len(batch_seeds))
                recorded = run(engine, batch_seeds)
                origin = EpisodeOrigin(
                    robot=_robot(engine),
                    host="simulated",
                    source=run.source,
                    action_steps=_stated_steps(engine),
                )
                with store.writer() as writer:
                    _append(writer, recorded, batch_seeds, origin, max(0, finished - first))
                progress(
                    first + len(batch_seeds), len(keys), f"{store.num_episodes} episodes stored"
                )
            # A solved episode is always stored.
            solved = sum(store.metadata(i)["success"] for i in range(store.num_episodes))
            frames = int(store.ends(STREAM)[-1]) if store.num_episodes else 0
            return RecordingSummary(store.num_episodes, frames, solved / len(keys))
    finally:
        engine.close()


def _finished(store: EpisodeStore, keys: np.ndarray, source: str) -> int:
    """Number of the first seeds whose episodes are in the store, or were not kept.

    Raises:
        HandoffError: the store holds episodes of other seeds or another source.
    """
    if not store.num_episodes:
        return 0
    stored = [store.metadata(episode) for episode in range(store.num_episodes)]
    places = {int(seed): place for place, seed in enumerate(keys)}
    found = [places.get(about.get("seed", -1), -1) for about in stored]
    if found[0] < 0 or found != sorted(set(found)) or {a.get("source") for a in stored} != {source}:
        raise HandoffError(
            f"{store.path}: holds {len(stored)} other episodes than those of an interrupted recording of these seeds. "
            "Choose another folder."
        )
    return found[-1] + 1


def _schema(engine: RecordedEngine, labels: dict[str, FieldSpec]) -> EpisodeSchema:
    fields = {
        **engine.observation_spec,
        "action": engine.action_spec.field_spec(),
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


def _stated_steps(engine: RecordedEngine) -> StepSpace | None:
    """The actions of the environments, where they are not those of the task."""
    own = engine.actions == engine.task.actions
    return None if own or not isinstance(engine.actions, StepSpace) else engine.actions


def _robot(engine: RecordedEngine) -> str:
    return f"{engine.task.robot.config_name} {engine.name.partition(' ')[0]}"


def _append(
    writer: EpisodeWriter, batch: EpisodeBatch, seeds: np.ndarray, origin: EpisodeOrigin, skip: int
) -> None:
    """Stores the episodes to keep, except those of the first `skip` seeds."""
    for i in np.flatnonzero(batch.keep):
        if i < skip:
            continue
        fields = {name: array[: batch.length[i], i] for name, array in batch.fields.items()}
        outcome = {"success": bool(batch.success[i]), "labelled_by": "task"}
        metadata = {**origin.entries(), "seed": int(seeds[i]), **outcome}
        writer.append({STREAM: fields}, metadata)


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
