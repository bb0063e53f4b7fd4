"""Records episodes in which a person may take over from a policy, with proposed and executed
actions.

Both actions and the person are stored, so that one can analyse later when a policy needed help. A
frame contains observation t, the actions for it, and their outcome. The observation after the last
action is in no frame; it is the single sample of a second stream, as it is often the only one of
success.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.episode_writer import EpisodeWriter
from robots.episodes.metadata.capture_times import capture_times
from robots.episodes.metadata.episode_metadata import WallClock
from robots.episodes.running_episode import EpisodeSink, MemoryRecording, RunningEpisode
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Intervention, Observation, Reason
from robots.spec import ActionSpec, FieldSpec

STREAM, FINAL = "policy", "final"
"""Streams of the steps, and of the observation after the last step."""
RESERVED_FIELDS = (
    "action",
    "action_policy",
    "intervention",
    "person",
    "segment",
    "reason",
    "reward",
    "success",
    "policy_version",
)
"""Names of the fields that are not part of the observation."""


class StepOutcome(NamedTuple):
    """Outcome of one step of N environments."""

    reward: np.ndarray
    """(N,) rewards."""
    success: np.ndarray
    """(N,) int: 1 if the task succeeded at this step, -1 if it failed finally, else 0."""
    final_observation: Observation
    """Observation after the step, before any automatic reset."""
    last: np.ndarray
    """(N,) bool: the episode ended with this step."""
    policy_version: np.ndarray
    """(N,) int: version of the policy that proposed the action; -1 without one, -2 if a guide
    did."""


def corrections_schema(
    task: str,
    rate_hz: float,
    observation: Mapping[str, FieldSpec],
    action: ActionSpec,
    robot: str = "",
    further: Mapping[str, FieldSpec] | None = None,
) -> EpisodeSchema:
    """The schema of episodes with corrections.

    Args:
        task: name of the task.
        rate_hz: steps per second of robot time.
        observation: observation fields of the environments.
        action: action of the environments.
        robot: name of the simulated robot; empty if there is none.
        further: further fields of a step that are not observed, such as those of a hint to the
            person (`real.hints.signals`); None has none.

    Raises:
        HandoffError: an observation has the name of a field of the schema.
    """
    further = further or {}
    taken = sorted(observation.keys() & {*RESERVED_FIELDS, *further})
    if taken:
        raise HandoffError(
            f"corrections: the environment observes {taken}, which are reserved names of the schema."
        )
    reasons = ", ".join(f"{reason.value} {reason.name.lower()}" for reason in Reason)
    fields = {
        **observation,
        "action": action.field_spec("executed"),
        "action_policy": action.field_spec("proposed by the policy"),
        "intervention": FieldSpec(shape=(), dtype="uint8", about="1 where a person acted"),
        "person": FieldSpec(
            shape=(),
            dtype="int16",
            about="place in the metadata entry people of who acted, -1 where the policy did",
        ),
        "segment": FieldSpec(
            shape=(), dtype="int32", about="number of the takeover in the episode, -1 without one"
        ),
        "reason": FieldSpec(shape=(), dtype="uint8", about=f"of the takeover: {reasons}"),
        "reward": FieldSpec(shape=(), about="that followed the action"),
        "success": FieldSpec(
            shape=(), dtype="int8", about="1 solved at this step, -1 given up at it, else 0"
        ),
        "policy_version": FieldSpec(
            shape=(),
            dtype="int64",
            about="the published policy that proposed, -1 without, -2 if a guide proposed",
        ),
        **further,
    }
    return EpisodeSchema(
        name=task,
        streams={
            STREAM: StreamSpec(rate_hz=rate_hz, fields=fields),
            FINAL: StreamSpec(rate_hz=rate_hz, fields=dict(observation)),
        },
        robot=robot,
    )


def open_corrections(path: Path, schema: EpisodeSchema) -> EpisodeStore:
    """Opens the store at `path` for writing; creates it if it does not exist.

    Raises:
        HandoffError: the store has another robot or schema, or another process is writing to it.
    """
    if not path.exists():
        return EpisodeStore.create(path, schema)
    store = EpisodeStore.open(path, "a")
    if store.schema.robot and store.schema.robot != schema.robot:
        store.close()
        raise HandoffError(
            f"{path}: holds episodes of the robot '{store.schema.robot}', the session has '{schema.robot}'. "
            "Choose another --out."
        )
    # A store that was written before robots, people per step and capture times were recorded is
    # continued unchanged.
    if replace(store.schema, robot=schema.robot) != _as_stored(schema, store.schema):
        store.close()
        raise HandoffError(
            f"{path}: holds episodes of '{store.schema.name}' with other fields than this session's. Was the "
            "task changed? Choose another --out."
        )
    return store


def _as_stored(schema: EpisodeSchema, stored: EpisodeSchema) -> EpisodeSchema:
    """The schema without the fields that an older store lacks."""
    streams = {}
    for name, stream in schema.streams.items():
        newer = {"person", *capture_times(stream.fields).values()}
        known = stored.streams[name].fields if name in stored.streams else {}
        fields = {
            field: spec
            for field, spec in stream.fields.items()
            if field in known or field not in newer
        }
        streams[name] = replace(stream, fields=fields)
    return replace(schema, streams=streams)


class EpisodeAssembler:
    """Records episodes from the steps of N environments, and commits each one at its end.

    Args:
        store: store with a schema by `corrections_schema`, open for writing.
        num_envs: number of environments N.
        metadata: metadata of every episode, such as the entries of
            `robots.episodes.metadata.episode_metadata.EpisodeOrigin`.
        memory: store or writer that gets whole episodes from memory, for simulated episodes without
            a person, of which a kill loses the running ones; None writes while they run, and
            `robots.episodes.running_episode.recover_interrupted` finds what a kill leaves.
        now: returns the wall time, for the entries `began` and `ended`; None leaves them out.
    """

    def __init__(
        self,
        store: EpisodeStore,
        num_envs: int,
        metadata: Mapping[str, Any],
        memory: EpisodeStore | EpisodeWriter | None = None,
        now: WallClock | None = None,
    ) -> None:
        self.store = store
        self._metadata = dict(metadata)
        self._memory = memory
        self._now = now
        self._running: list[_Running | None] = [None] * num_envs

    def add(
        self,
        observation: Observation,
        intervention: Intervention,
        outcome: StepOutcome,
        moved: np.ndarray,
        about: Sequence[Mapping[str, Any]],
        into: EpisodeStore | None = None,
        further: Mapping[str, np.ndarray] | None = None,
    ) -> int:
        """Adds one step of all environments.

        Args:
            observation: observation before the step.
            intervention: proposed and executed actions of the environments.
            outcome: outcome of the step.
            moved: (N,) bool: environments that executed a step.
            about: N mappings of metadata, which are used if an episode ends, such as its seed and
                the entries of `robots.episodes.metadata.episode_metadata.EpisodeEnd`.
            into: store of the episodes that end with this step, with the same schema and on the
                same disk; None is `store`.
            further: (N,) the schema's further fields; None for a schema without.

        Returns:
            Number of episodes that ended.
        """
        columns = {
            **observation,
            "action": intervention.executed,
            "action_policy": intervention.proposed,
            "intervention": intervention.intervening,
            "person": np.full(len(moved), -1, np.int16),
            "segment": intervention.segment,
            "reason": intervention.reason,
            "reward": outcome.reward,
            "success": outcome.success,
            "policy_version": outcome.policy_version,
            **(further or {}),
        }
        fields = self.store.schema.stream(STREAM).fields
        ended = 0
        for env_id in np.flatnonzero(moved).tolist():
            running = self._running[env_id]
            if running is None:
                running = self._running[env_id] = self._begin(intervention)
            columns["person"][env_id] = running.person(intervention, env_id)
            running.add(
                {
                    name: np.asarray(columns[name][env_id]).astype(spec.dtype, copy=False)
                    for name, spec in fields.items()
                }
            )
            if outcome.last[env_id]:
                final = {name: array[env_id] for name, array in outcome.final_observation.items()}
                person = {"operator": intervention.operator, "device": intervention.device}
                self._commit(env_id, final, {**person, **about[env_id]}, into)
                ended += 1
        return ended

    def cut_off(self, env_id: int, final: Observation, about: Mapping[str, Any]) -> None:
        """Commits the running episode of an environment that ended before its outcome was known.

        Args:
            env_id: environment, of which at least one step was added.
            final: (N, ...) observation after its last step.
            about: metadata, with the entries of an `EpisodeEnd` that has a `discard_reason`, as the
                episode has no outcome.
        """
        last = {name: array[env_id] for name, array in final.items()}
        self._commit(env_id, last, dict(about))

    def drop(self, env_ids: Sequence[int] | None = None) -> None:
        """Drops the running episodes of `env_ids` (all by default)."""
        for env_id in range(len(self._running)) if env_ids is None else env_ids:
            running, self._running[env_id] = self._running[env_id], None
            if running is not None:
                running.recording.discard()

    def _begin(self, intervention: Intervention) -> _Running:
        """A new episode, with the metadata that are known at its first step."""
        began = {} if self._now is None else {"began": self._now()}
        people = [{"name": intervention.operator, "device": intervention.device}]
        metadata = {**self._metadata, **began, "people": people}
        if self._memory is None:
            return _Running(RunningEpisode(self.store, metadata), metadata)
        return _Running(MemoryRecording(self._memory, self.store.schema), metadata)

    def _commit(
        self,
        env_id: int,
        final: dict[str, np.ndarray],
        metadata: dict[str, Any],
        into: EpisodeStore | None = None,
    ) -> None:
        running, self._running[env_id] = self._running[env_id], None
        if running is None:
            raise HandoffError(
                f"environment {env_id}: no step was recorded, nothing can be stored."
            )
        running.recording.append(
            FINAL, {name: final[name] for name in self.store.schema.stream(FINAL).fields}
        )
        ended = {} if self._now is None else {"ended": self._now()}
        metadata = {**running.entries(), **ended, "discard_reason": None, **metadata}
        running.recording.commit(metadata, into)


class _Running:
    """A running episode, and its metadata.

    Args:
        recording: its samples.
        metadata: entries that are known at the beginning, with `people`.
    """

    def __init__(self, recording: EpisodeSink, metadata: dict[str, Any]) -> None:
        self.recording = recording
        self._metadata = metadata
        self._people: list[dict[str, str]] = metadata["people"]
        self._steps = 0
        self._interventions = 0
        self._takeovers = 0
        self._success = False
        self._versions: list[int] = []
        """Smallest and largest version of the policy that proposed actions; empty without one."""

    def person(self, intervention: Intervention, env_id: int) -> int:
        """Place in `people` of the person who acts at this step, -1 if the policy does."""
        if not intervention.intervening[env_id]:
            return -1
        person = {"name": intervention.operator, "device": intervention.device}
        if person not in self._people:
            self._people.append(person)
        return self._people.index(person)

    def add(self, step: Mapping[str, np.ndarray]) -> None:
        """Adds one step."""
        self.recording.append(STREAM, step)
        self._steps += 1
        self._interventions += int(step["intervention"])
        self._takeovers = max(self._takeovers, int(step["segment"]) + 1)
        self._success = bool(step["success"] > 0)
        version = int(step["policy_version"])
        if version >= 0:
            self._versions = [min([*self._versions, version]), max([*self._versions, version])]

    def entries(self) -> dict[str, Any]:
        """Metadata: those of the beginning, success, share of the steps at which a person acted,
        number of takeovers, and versions of the policy."""
        versions = {"policy_versions": self._versions} if self._versions else {}
        return {
            **self._metadata,
            "success": self._success,
            "interventions": self._interventions / self._steps,
            "takeovers": self._takeovers,
            **versions,
        }
