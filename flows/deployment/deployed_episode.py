"""Outcome and metadata of an episode that a person supervised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.interfaces import Label

if TYPE_CHECKING:
    from flows.deployment.session_tables.session_table import SessionTable
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
    about: Mapping[str, Any]
    """Outcome as the table describes it."""
    note: str
    """The same in a phrase; empty if there is nothing to say."""
    corrected: float
    """Share of the steps that the person controlled."""
    disagreement: float | None
    """Mean absolute difference between the policy's actions and the person's, over the steps that
    the person controlled and all entries of an action; None without such a step."""
    recorded: bool
    """False if the person ended the session during the episode, or the episode before its first
    step."""

    @property
    def summary(self) -> str:
        """The outcome in a phrase."""
        outcome = "solved" if self.success else "not solved"
        label = "" if self.label is Label.NONE else f", {self.label.name.lower()}"
        note = f", {self.note}" if self.note else ""
        differs = (
            ""
            if self.disagreement is None
            else f", whose actions the policy misses by {self.disagreement:.2g} on average"
        )
        return (
            f"{outcome}{label}{note}, {self.seconds:.1f} s ({self.held:.1f} s held), "
            f"{100 * self.corrected:.0f} % of the steps by the person{differs}"
        )


def episode_outcome(
    seed: int, record: LoopRecord, table: SessionTable, supervision: Supervision
) -> DeployedEpisode:
    """Returns the outcome of an episode, as far as it has come."""
    labelled = {Label.SUCCESS: True, Label.FAILURE: False}
    interventions = record.policy.get("intervention", [])
    return DeployedEpisode(
        seed=seed,
        success=labelled.get(record.label, table.success),
        label=record.label,
        seconds=record.end - record.begin,
        held=record.held,
        about=table.describe(),
        note=table.note(),
        corrected=float(np.mean(interventions)) if interventions else 0.0,
        disagreement=_disagreement(record),
        recorded=not supervision.stopped and bool(record.policy),
    )


def episode_metadata(
    record: LoopRecord, episode: DeployedEpisode, person: str, fault: str | None
) -> dict[str, Any]:
    """Returns the entries that are known when an episode has ended.

    Args:
        record: record of the loop.
        episode: outcome of the episode.
        person: name that is recorded if nobody had the arm, nor control.
        fault: message of the error that ended the episode.
    """
    people = sorted(record.people or record.beside) or [person]
    operator = ", ".join(people)
    end = _end(record, episode.label, record.labelled_by or operator, fault)
    return {
        "success": episode.success,
        **episode.about,
        "label": episode.label.name.lower(),
        "ended_by": end.ended_by,
        "labelled_by": end.labelled_by,
        "discard_reason": end.discard_reason,
        "operator": operator,
        "people": [{"name": name, "device": DEVICE} for name in people],
        "interventions": episode.corrected,
        "disagreement": episode.disagreement,
        "takeovers": int(np.max(record.policy["segment"])) + 1,
        "held_seconds": episode.held,
        "inference_ms": [round(value, 3) for value in record.inference_ms],
    }


def _disagreement(record: LoopRecord) -> float | None:
    """See `DeployedEpisode.disagreement`."""
    rows = record.policy
    if not rows:
        return None
    steps = zip(rows["intervention"], rows["action"], rows["action_proposed"], strict=False)
    off = [float(np.abs(done - meant).mean()) for acted, done, meant in steps if acted]
    return float(np.mean(off)) if off else None


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
