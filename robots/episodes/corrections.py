"""Records episodes in which a person may overrule a policy: per step the proposed and the executed
action, the person and the reason.

No system before stored both actions and the person by default; without them nothing can be said
later of when a policy needed help. A frame holds observation t, the actions on seeing it, and what
followed. The observation after the last action, which no frame holds, is the one sample of a second
stream: a state of success is otherwise never recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore, EpisodeWriter
from robots.errors import HandoffError
from robots.interfaces import Intervention, Observation, Reason
from robots.spec import ActionSpec, FieldSpec

STREAM, FINAL = "policy", "final"
"""Streams: the steps, and the one observation after the last of them."""
OWN = (
    "action",
    "action_policy",
    "intervention",
    "segment",
    "reason",
    "reward",
    "success",
    "policy_version",
)
"""Fields beside those of the observation."""


class StepOutcome(NamedTuple):
    """How one step of N worlds ended."""

    reward: np.ndarray
    """(N,)."""
    success: np.ndarray
    """(N,) int: 1 where the task was solved at this step, -1 where it was given up as failed, else
    0."""
    final_observation: Observation
    """After the step, before any automatic reset."""
    last: np.ndarray
    """(N,) bool: the episode ended with this step."""
    policy_version: np.ndarray
    """(N,) int: the published policy that proposed; -1 without one."""


def corrections_schema(
    task: str,
    rate_hz: float,
    observation: Mapping[str, FieldSpec],
    action: ActionSpec,
    robot: str = "",
) -> EpisodeSchema:
    """The schema of such episodes.

    Args:
        task: its name.
        rate_hz: steps per second of robot time.
        observation: fields of the worlds.
        action: of the worlds.
        robot: name of the robot that the worlds simulate; empty where there is none.

    Raises:
        HandoffError: an observation is called like a field of the schema.
    """
    taken = sorted(observation.keys() & set(OWN))
    if taken:
        raise HandoffError(
            f"corrections: the world observes {taken}, names that the schema needs for itself."
        )
    names = f"{action.interface}: {', '.join(action.names)}"
    reasons = ", ".join(f"{reason.value} {reason.name.lower()}" for reason in Reason)
    fields = {
        **observation,
        "action": FieldSpec(shape=(action.size,), unit=action.unit, about=f"executed; {names}"),
        "action_policy": FieldSpec(
            shape=(action.size,), unit=action.unit, about=f"proposed by the policy; {names}"
        ),
        "intervention": FieldSpec(shape=(), dtype="uint8", about="1 where a person acted"),
        "segment": FieldSpec(
            shape=(), dtype="int32", about="number of the takeover in the episode, -1 without one"
        ),
        "reason": FieldSpec(shape=(), dtype="uint8", about=f"of the takeover: {reasons}"),
        "reward": FieldSpec(shape=(), about="that followed the action"),
        "success": FieldSpec(
            shape=(), dtype="int8", about="1 solved at this step, -1 given up at it, else 0"
        ),
        "policy_version": FieldSpec(
            shape=(), dtype="int64", about="the published policy that proposed, -1 without"
        ),
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
    """The store at `path`, open for writing: a new one, or the one that is there.

    Raises:
        HandoffError: the one there is of another robot, has another schema, or another writer.
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
    # A store from before robots were stated is continued as it is.
    if replace(store.schema, robot=schema.robot) != schema:
        store.close()
        raise HandoffError(
            f"{path}: holds episodes of '{store.schema.name}' with other fields than the session records now. Was the "
            "task changed? Choose another --out."
        )
    return store


class EpisodeAssembler:
    """Puts the steps of N worlds together and commits every episode when it ends; a crash loses the
    running ones.

    Args:
        store: open for writing, of `corrections_schema`.
        worlds: N.
        metadata: of every episode: robot, device, policy digest, ...
        writer: of the store, where many episodes are to be committed together; a crash loses those,
            too.
    """

    def __init__(
        self,
        store: EpisodeStore,
        worlds: int,
        metadata: Mapping[str, Any],
        writer: EpisodeWriter | None = None,
    ) -> None:
        self.store, self._metadata, self._append = store, dict(metadata), (writer or store).append
        self._frames: list[list[dict[str, np.ndarray]]] = [[] for _ in range(worlds)]

    def add(
        self,
        observation: Observation,
        intervention: Intervention,
        outcome: StepOutcome,
        moved: np.ndarray,
        about: Sequence[Mapping[str, Any]],
    ) -> int:
        """Takes one step of all worlds in.

        Args:
            observation: before the step.
            intervention: in the world's actions.
            outcome: what followed.
            moved: (N,) bool: worlds that made a step at all.
            about: N mappings of metadata, read where an episode ends, such as its seed or why it is
                to be dropped (`discard_reason`).

        Returns:
            How many episodes ended.
        """
        columns = {
            **observation,
            "action": intervention.executed,
            "action_policy": intervention.proposed,
            "intervention": intervention.intervening,
            "segment": intervention.segment,
            "reason": intervention.reason,
            "reward": outcome.reward,
            "success": outcome.success,
            "policy_version": outcome.policy_version,
        }
        ended = 0
        for world in np.flatnonzero(moved).tolist():
            # Worlds may write the next step into the same arrays.
            self._frames[world].append(
                {name: np.array(column[world]) for name, column in columns.items()}
            )
            if outcome.last[world]:
                final = {
                    name: array[world][None] for name, array in outcome.final_observation.items()
                }
                person = {"operator": intervention.operator, "device": intervention.device}
                self._commit(world, final, {**person, **about[world]})
                ended += 1
        return ended

    def cut_off(self, world: int, final: Observation, about: Mapping[str, Any]) -> None:
        """Commits the running episode of a world as far as it went, where something ended it before
        its time.

        Args:
            world: of which at least one step was taken in.
            final: (N, ...) after its last step.
            about: metadata, with the `fault` and a `discard_reason`: the episode has no outcome.
        """
        self._commit(
            world, {name: array[world][None] for name, array in final.items()}, dict(about)
        )

    def drop(self, worlds: Sequence[int] | None = None) -> None:
        """Forgets the running episodes of `worlds` (all by default)."""
        for world in range(len(self._frames)) if worlds is None else worlds:
            self._frames[world] = []

    def _commit(self, world: int, final: dict[str, np.ndarray], metadata: dict[str, Any]) -> None:
        frames, self._frames[world] = self._frames[world], []
        fields = self.store.schema.stream(STREAM).fields
        stacked = {
            name: np.stack([frame[name] for frame in frames]).astype(spec.dtype, copy=False)
            for name, spec in fields.items()
        }
        final = {name: final[name] for name in self.store.schema.stream(FINAL).fields}
        share = float(stacked["intervention"].mean())
        metadata = {
            **self._metadata,
            "success": bool(stacked["success"][-1] > 0),
            "interventions": share,
            "takeovers": int(stacked["segment"].max()) + 1,
            "discard_reason": None,
            **metadata,
        }
        self._append({STREAM: stacked, FINAL: final}, metadata)
