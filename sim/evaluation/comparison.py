"""Results of evaluations, read back and set side by side, episode by episode; never across
protocols."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robots.errors import HandoffError
from sim.evaluation import intervals
from sim.evaluation.evaluate import BOOTSTRAP_SEED, RESULT
from sim.evaluation.protocol import differences, digest


@dataclass(frozen=True)
class Result:
    """What `sim.evaluation.evaluate` wrote to one folder."""

    name: str
    """Of the agent, for tables and charts."""
    folder: Path
    table: dict[str, Any]
    """The metrics and `episodes`, one row each."""

    def column(self, name: str) -> list[Any]:
        """One entry of every episode, in the order of seeds."""
        return [episode[name] for episode in self.table["episodes"]]


@dataclass(frozen=True)
class Comparison:
    """Two agents on the same episodes."""

    reference: str
    agent: str
    score: dict[str, float]
    """`mean`, `low`, `high` of the agent's score minus the reference's (bootstrap over
    episodes)."""
    success: dict[str, int | float]
    """Episodes solved by the reference alone, `only_first`, by the agent alone, `only_second`;
    McNemar's `p_value`."""


def read_result(folder: Path, name: str | None = None) -> Result:
    """Reads one evaluation.

    Args:
        folder: output folder of `sim.evaluation.evaluate`.
        name: of the agent; the folder's by default.

    Raises:
        HandoffError: no result there, or its protocol is not the one that its digest was taken of.
    """
    path = folder / RESULT
    try:
        table = json.loads(path.read_text())
        statement, told = table["protocol"], table["protocol_digest"]
        episodes = table["episodes"]
    except (OSError, UnicodeDecodeError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise HandoffError(
            f"compare: cannot read {path} ({error}). Is it an output of evaluate?"
        ) from None
    if digest(statement) != told:
        raise HandoffError(
            f"compare: {path} has protocol digest {told[:12]}, its protocol {digest(statement)[:12]}. "
            "Was it edited, or made by an older build?"
        )
    if len(episodes) != statement["episodes"]:
        raise HandoffError(
            f"compare: {path} has {len(episodes)} episodes, its protocol {statement['episodes']}. Was it edited?"
        )
    return Result(name or folder.resolve().name, folder, table)


def compare(first: Result, second: Result, confidence: float = 0.95) -> Comparison:
    """Pairs two evaluations by seed.

    Args:
        first: the reference.
        second: the agent judged against it.
        confidence: of the score's interval.

    Raises:
        HandoffError: they were run under different protocols; names what differs.
    """
    names = differences(first.table["protocol"], second.table["protocol"])
    if names:
        raise HandoffError(
            f"compare: {first.name} and {second.name} differ in {names}. Evaluate both the same way."
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
    """Every result against the first one; errors as of `compare`."""
    return [compare(results[0], other, confidence) for other in results[1:]]
