"""Reads results of evaluations and compares them episode by episode; both must have been run under
the same protocol."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from robots.errors import HandoffError
from sim.evaluation import intervals
from sim.evaluation.evaluate import ACTIONS, BOOTSTRAP_SEED, RESULT
from sim.evaluation.protocol import differences, digest


@dataclass(frozen=True)
class Result:
    """One evaluation, as `sim.evaluation.evaluate` wrote it to a folder."""

    name: str
    """Name of the agent in tables and charts."""
    folder: Path
    table: dict[str, Any]
    """The metrics and `episodes`, one row each."""

    def actions(self, seed: int) -> np.ndarray | None:
        """(steps, A) the executed actions of one episode; None for an evaluation without it, or of
        an older version, which kept no actions."""
        path = self.folder / ACTIONS
        if not path.is_file():
            return None
        with np.load(path) as archive:
            ends = np.cumsum(archive["steps"])
            found = np.flatnonzero(archive["seed"] == seed)
            if not len(found):
                return None
            end = ends[found[0]]
            return archive["action"][end - archive["steps"][found[0]] : end]

    def column(self, name: str) -> list[Any]:
        """One entry of every episode, in the order of seeds."""
        return [episode[name] for episode in self.table["episodes"]]


@dataclass(frozen=True)
class Comparison:
    """Paired comparison of two agents on the same episodes."""

    reference: str
    agent: str
    score: dict[str, float]
    """`mean`, `low`, `high` of the agent's score minus the reference's (bootstrap over
    episodes)."""
    success: dict[str, int | float]
    """Number of episodes solved only by the reference, `only_first`, and only by the agent,
    `only_second`, and McNemar's `p_value`."""


def read_result(folder: Path, name: str | None = None) -> Result:
    """Reads one evaluation.

    Args:
        folder: output folder of `sim.evaluation.evaluate`.
        name: name of the agent; the folder's name by default.

    Raises:
        HandoffError: the folder holds no result, or the protocol does not match its digest.
    """
    path = folder / RESULT
    try:
        table = json.loads(path.read_text())
        statement = table["protocol"]
        recorded_digest = table["protocol_digest"]
        episodes = table["episodes"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise HandoffError(
            f"compare: cannot read {path} ({error}). Is it an output of evaluate?"
        ) from None
    if digest(statement) != recorded_digest:
        raise HandoffError(
            f"compare: {path} records protocol digest {recorded_digest[:12]}, but its protocol has "
            f"{digest(statement)[:12]}. Was it edited, or written by an older version?"
        )
    if len(episodes) != statement["episodes"]:
        raise HandoffError(
            f"compare: {path} has {len(episodes)} episodes, but its protocol has {statement['episodes']}. "
            "Was it edited?"
        )
    return Result(name or folder.resolve().name, folder, table)


def compare(first: Result, second: Result, confidence: float = 0.95) -> Comparison:
    """Pairs two evaluations by seed.

    Args:
        first: the reference.
        second: the agent that is compared with it.
        confidence: two-sided confidence of the score's interval.

    Raises:
        HandoffError: they were run under different protocols; the message names the differences.
    """
    names = differences(first.table["protocol"], second.table["protocol"])
    if names:
        raise HandoffError(
            f"compare: the protocols of {first.name} and {second.name} differ in {names}. Evaluate both under one "
            "protocol."
        )
    return Comparison(
        reference=first.name,
        agent=second.name,
        score=intervals.paired_difference(
            first.column("score"), second.column("score"), BOOTSTRAP_SEED, confidence
        ),
        success=intervals.mcnemar(first.column("success"), second.column("success")),
    )


def compare_all(results: Sequence[Result], confidence: float = 0.95) -> list[Comparison]:
    """Compares every result with the first one; raises the errors of `compare`."""
    return [compare(results[0], other, confidence) for other in results[1:]]
