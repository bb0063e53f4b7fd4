"""Outcome and metadata of an episode that a person supervised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.interfaces import Label

if TYPE_CHECKING:
    from flows.deployment.push_t_table import PushTScene
    from real.deploy.episode_recorder import LoopRecord
    from real.deploy.supervision import Supervision
    from robots.episodes.metadata.episode_metadata import EpisodeEnd

DEVICE = "console"
"""Device of the people who supervise."""


@dataclass(frozen=True)
class DeployedEpisode:
    """Outcome of one episode."""

    seed: int
    success: bool
    label: Label
    seconds: float
    """Duration in robot time [s]."""
    held: float
    """Time on hold [s], part of `seconds`."""
    coverage: float
    """Largest coverage of the goal, 0..1."""
    corrected: float
    """Share of the steps that the person controlled."""
    recorded: bool
    """False if the person ended the session during the episode, or the episode before its first
    step."""

    @property
    def summary(self) -> str:
        """The outcome in a phrase."""
        outcome = "solved" if self.success else "not solved"
        label = "" if self.label is Label.NONE else f", {self.label.name.lower()}"
        return (
            f"{outcome}{label}, coverage {self.coverage:.2f}, {self.seconds:.1f} s ({self.held:.1f} s held), "
            f"{100 * self.corrected:.0f} % corrected"
        )


def episode_outcome(
    seed: int, record: LoopRecord, scene: PushTScene, supervision: Supervision
) -> DeployedEpisode:
    """Returns the outcome of an episode, as far as it has come."""
    labelled = {Label.SUCCESS: True, Label.FAILURE: False}
    interventions = record.policy.get("intervention", [])
    return DeployedEpisode(
        seed=seed,
        success=labelled.get(record.label, scene.was_solved),
        label=record.label,
        seconds=record.end - record.begin,
        held=record.held,
        coverage=scene.best,
        corrected=float(np.mean(interventions)) if interventions else 0.0,
        recorded=not supervision.stopped and bool(record.policy),
    )


def episode_metadata(
    record: LoopRecord, episode: DeployedEpisode, person: str, fault: str | None
) -> dict[str, Any]:
    """Returns the entries that are known when an episode has ended.

    Args:
        record: record of the loop.
        episode: outcome of the episode.
        person: name that is recorded if nobody had the arm.
        fault: message of the error that ended the episode.
    """
    people = sorted(record.people) or [person]
    operator = ", ".join(people)
    end = _end(record, episode.label, operator, fault)
    return {
        "success": episode.success,
        "coverage": episode.coverage,
        "label": episode.label.name.lower(),
        "ended_by": end.ended_by,
        "labelled_by": end.labelled_by,
        "discard_reason": end.discard_reason,
        "operator": operator,
        "people": [{"name": name, "device": DEVICE} for name in people],
        "interventions": episode.corrected,
        "takeovers": int(np.max(record.policy["segment"])) + 1,
        "held_seconds": episode.held,
        "inference_ms": [round(value, 3) for value in record.inference_ms],
    }


def _end(record: LoopRecord, label: Label, operator: str, fault: str | None) -> EpisodeEnd:
    """What ended an episode; a person's label counts even if a fault came with it."""
    from robots.episodes.metadata.episode_metadata import EpisodeEnd, episode_end

    end = episode_end(label, operator, terminated=record.stopped, judge="task")
    if fault is None:
        return end
    return EpisodeEnd(
        ended_by="fault",
        labelled_by=end.labelled_by,
        discard_reason=end.discard_reason,
        fault=fault,
    )
