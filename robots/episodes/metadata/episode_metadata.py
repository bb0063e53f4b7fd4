"""Defines the entries of an episode's metadata that all recorders share.

`EpisodeOrigin` is known when a recording begins, `EpisodeEnd` when it ends. The recorder adds
`began` and `ended`, the wall time of both in ISO 8601 (UTC), and `people`, everybody who acted.
Recordings of a simulation without a person state neither wall times nor a session, because the
same recording made again has to be the same, byte for byte; the manifest of their artifact has the
time.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from robots.config import config, to_plain, validate
from robots.control.actions import CartesianDelta, JointDelta, JointTarget, StepSpace
from robots.episodes.metadata.camera_calibration import CameraCalibration
from robots.errors import HandoffError, suggest
from robots.interfaces import Label

if TYPE_CHECKING:
    from robots.episodes.segments.indexed_episodes import IndexedEpisodes

Host = Literal["simulated", "twin", "real"]
"""Where an episode was recorded: in a simulated environment, at the simulated arm with its
controller (the twin), or at a real arm."""
EndedBy = Literal[
    "task",
    "classifier",
    "label",
    "time_limit",
    "discarded",
    "fault",
    "session_end",
    "interrupted",
]
"""What ended an episode: the task (solved, or failed for good), the success classifier, a person's
label, the time limit, a person who discards it, an error, the end of the session, or a kill."""
Judge = Literal["task", "classifier"]
"""Who judges an episode that no person labels: the environment, or a success classifier."""
CLASSIFIER_VERSION, CLASSIFIER_DIGEST = "classifier_version", "classifier_digest"
"""Entries of an episode that a success classifier judged: the number of its version within the
session, 0 for the one that the session began with, and the digest (hex sha256) of its ONNX
file."""
WallClock = Callable[[], str]
"""Returns the wall time, in ISO 8601."""


@config
class EpisodeOrigin:
    """Entries that are known when a recording begins."""

    robot: str
    """Name of the robot; empty in environments without a robot that Handoff knows."""
    host: Host
    """Kind of the place where the episode was recorded."""
    source: str
    """Stage of the session, such as `demonstration`, `training` or `practice`."""
    session: str | None = None
    """Name of the session: the wall time at which it began. A session that goes on after a stop has
    a new name."""
    policy: str | None = None
    """Policy that acted, as it was named on the command line; None for one that is trained
    meanwhile."""
    policy_digest: str | None = None
    """Digest of the policy that acted."""
    action_steps: StepSpace | None = None
    """Step sizes and limits of the actions; None takes those of the simulated task of the same
    name."""
    calibration: dict[str, CameraCalibration] = field(default_factory=dict)
    """Calibration by the name of the field with the pictures; empty for cameras whose pose is drawn
    anew for every episode."""

    def entries(self) -> dict[str, Any]:
        """JSON values; what is not known has no entry."""
        return {
            name: value for name, value in to_plain(self).items() if value not in (None, "", {})
        }


@config
class EpisodeEnd:
    """Entries that are known when an episode has ended."""

    ended_by: EndedBy
    """Event that ended the episode."""
    labelled_by: str | None = None
    """Name of the person who labelled the outcome, or `task` or `classifier`; None if nobody
    judged."""
    discard_reason: str | None = None
    """Reason for which the episode does not count: `redo`, `discard`, `failure`, `unlabelled`,
    `fault`, `unfinished` or `interrupted`; None if it counts."""
    fault: str | None = None
    """Message of the error that ended the episode."""

    def entries(self) -> dict[str, Any]:
        """JSON values; `fault` only if there was one."""
        entries = to_plain(self)
        if self.fault is None:
            del entries["fault"]
        return entries


def episode_end(label: Label, person: str, *, terminated: bool, judge: Judge) -> EpisodeEnd:
    """The end of an episode that was not cut off.

    Args:
        label: label of the person, `NONE` without one.
        person: name of the person.
        terminated: whether the task or the classifier ended it; otherwise the time limit did.
        judge: who judges the outcome without a label.
    """
    match label:
        case Label.NONE:
            return EpisodeEnd(ended_by=judge if terminated else "time_limit", labelled_by=judge)
        case Label.REDO | Label.DISCARD:
            return EpisodeEnd(
                ended_by="discarded", labelled_by=person, discard_reason=label.name.lower()
            )
        case _:
            return EpisodeEnd(ended_by="label", labelled_by=person)


def next_start(*stores: IndexedEpisodes) -> int:
    """Number of the start of a session's next attempt: it grows by one with every attempt, and
    stays the same after an attempt that is to be repeated.

    Args:
        stores: stores that together hold all attempts of the session.
    """
    reasons = [
        store.metadata(episode).get("discard_reason")
        for store in stores
        for episode in range(store.num_episodes)
    ]
    return len(reasons) - reasons.count(Label.REDO.name.lower())


def action_steps_of(episodes: Iterable[Mapping[str, Any]]) -> StepSpace | None:
    """The step sizes that episodes state by `EpisodeOrigin.action_steps`; None if none does.

    Args:
        episodes: metadata of the episodes.

    Raises:
        HandoffError: episodes that differ, whose actions have more than one meaning.
    """
    stated = {json.dumps(about.get("action_steps"), sort_keys=True) for about in episodes}
    if len(stated) > 1:
        raise HandoffError(
            f"demonstrations: {len(stated)} different action_steps in the metadata of the episodes, so equal actions "
            "are not equal motions. Were recordings of several sessions merged? Filter those that belong together."
        )
    values = json.loads(stated.pop()) if stated else None
    if values is None:
        return None
    spaces = {space().kind: space for space in (CartesianDelta, JointDelta, JointTarget)}
    kind = values.get("kind", CartesianDelta().kind)
    if kind not in spaces:
        raise HandoffError(
            f"demonstrations: action_steps of the kind '{kind}', {suggest(kind, spaces)}"
        )
    return validate(spaces[kind], values, "action_steps")


def utc_now() -> str:
    """The wall time, in ISO 8601 (UTC) with milliseconds."""
    return utc_time(time.time())


def utc_time(seconds: float) -> str:
    """A wall time since the epoch [s], in ISO 8601 (UTC) with milliseconds."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def new_session() -> str:
    """Name of a session that begins now."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
