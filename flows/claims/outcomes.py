"""Keeps every episode of the evaluations behind a claim: a file of a few kilobytes per learning
seed, from which any figure can be computed again and paired with a repetition.

    {"seeds": {"0": {"commit": "47d4699a", "date": "2026-11-30", "processor": "AMD EPYC",
                     "minutes": 63.1,
                     "stages": {"scores@student": {"protocol": "85634b89", "first": 100000,
                                                   "success": "0110", "score": "0.997 1 0.83 0"}}}}}
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.claims.claim import Claim, Figure, claim_file
from flows.runner.artifact import read_manifest, write_json
from robots.errors import HandoffError, suggest

OUTCOMES = "outcomes"
"""Folder of recorded outcomes beside the claims."""
SIGNIFICANT = 6
"""Significant digits of a score that are kept."""


@dataclass(frozen=True)
class Outcome:
    """The episodes of one evaluation, in the order of their start states."""

    protocol: str
    """Digest of the protocol; empty at the twin, whose task the bundle decides."""
    first: int
    """Seed of the first start state; the others follow it."""
    success: tuple[bool, ...]
    score: tuple[float, ...] | None
    """The protocol's score of each episode; None where no figure needs it."""

    def numbers(self, of: str) -> list[float]:
        """One number per episode, see `Figure.of`."""
        if of == "success":
            return [float(solved) for solved in self.success]
        if self.score is None:
            raise HandoffError("claim: the recorded outcomes have no scores.")
        return [*self.score]

    def same_starts(self, other: Outcome) -> bool:
        """Whether both were played from the same start states under the same protocol."""
        mine = self.protocol, self.first, len(self.success)
        return mine == (other.protocol, other.first, len(other.success))


@dataclass(frozen=True)
class SeedOutcomes:
    """What a recipe gave with one learning seed, where, and at what cost."""

    commit: str
    """Commit of the checkout with `+` where it had changes; empty without a checkout."""
    date: str
    """Day of the run, UTC."""
    processor: str
    minutes: float
    """Time of all stages, one after another [min]."""
    stages: Mapping[str, Outcome]


def read_run_outcomes(summary: Path, claim: Claim) -> SeedOutcomes:
    """Reads the episodes of a finished run of a claim's recipe.

    Args:
        summary: the run's `summary.json`.
        claim: the claim, whose figures name the stages.

    Raises:
        HandoffError: the run has not such a stage, or the stage played no episodes.
    """
    rows = json.loads(summary.read_bytes())["stages"]
    record = json.loads((summary.parent / "run.json").read_bytes())
    scored = {
        stage
        for figure in claim.figures.values()
        if figure.of == "score"
        for stage in figure.stages
    }
    outcomes = {}
    for stage in claim.stages:
        if stage not in rows:
            raise HandoffError(f"claim: the run has no stage '{stage}', {suggest(stage, rows)}")
        folder = summary.parent.parent / rows[stage]["artifact"]
        outcomes[stage] = read_outcome(folder, scores=stage in scored)
    checkout = record.get("checkout") or {}
    commit = str(checkout.get("commit") or "")[:8] + ("+" if checkout.get("dirty") else "")
    return SeedOutcomes(
        commit=commit,
        date=str(record["ended"])[:10],
        processor=str(record["computer"].get("processor", "")),
        minutes=round(sum(row["computed_seconds"] for row in rows.values()) / 60.0, 1),
        stages=outcomes,
    )


def read_outcome(folder: Path, *, scores: bool) -> Outcome:
    """Reads the episodes that an artifact of `evaluate` or `deploy` records.

    Raises:
        HandoffError: the artifact has no episodes, or not those of consecutive seeds.
    """
    table = folder / "episodes.json"
    if table.is_file():
        content = json.loads(table.read_bytes())
        episodes, protocol = content["episodes"], content["protocol_digest"][:8]
    else:
        episodes, protocol = read_manifest(folder)["metrics"].get("per_start", []), ""
    seeds = [episode["seed"] for episode in episodes]
    if not seeds or seeds != [*range(seeds[0], seeds[0] + len(seeds))]:
        raise HandoffError(f"claim: {folder.name} has no episodes of consecutive start states.")
    if scores and "score" not in episodes[0]:
        raise HandoffError(f"claim: the episodes of {folder.name} have no score, only successes.")
    return Outcome(
        protocol=protocol,
        first=seeds[0],
        success=tuple(bool(episode["success"]) for episode in episodes),
        score=tuple(float(f"{each['score']:.{SIGNIFICANT}g}") for each in episodes)
        if scores
        else None,
    )


def recorded_outcomes(name: str) -> dict[int, SeedOutcomes]:
    """Reads the recorded outcomes of a claim by learning seed; empty if none are recorded.

    Args:
        name: see `claim_file`.

    Raises:
        HandoffError: the file cannot be read.
    """
    claim = claim_file(name)
    path = claim.parent / OUTCOMES / f"{claim.stem}.json"
    if not path.is_file():
        return {}
    try:
        seeds = json.loads(path.read_bytes())["seeds"]
        return {int(seed): _from_json(entry) for seed, entry in seeds.items()}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise HandoffError(f"claim: cannot read {path} ({error}). Was it edited?") from None


def write_outcomes(path: Path, outcomes: Mapping[int, SeedOutcomes]) -> None:
    """Writes outcomes in the layout that `recorded_outcomes` reads."""
    seeds = {str(seed): _to_json(entry) for seed, entry in sorted(outcomes.items())}
    write_json(path, {"seeds": seeds})


def figure_numbers(figure: Figure, stages: Mapping[str, Outcome]) -> list[float]:
    """One number per start state: that of `figure.stage`, less that of `figure.than`.

    Raises:
        HandoffError: the two stages were not played from the same start states.
    """
    first = stages[figure.stage]
    numbers = first.numbers(figure.of)
    if not figure.than:
        return numbers
    second = stages[figure.than]
    if not first.same_starts(second):
        raise HandoffError(
            f"claim: {figure.stage} and {figure.than} were not played from the same start states."
        )
    pairs = zip(numbers, second.numbers(figure.of), strict=True)
    return [one - other for one, other in pairs]


def _to_json(entry: SeedOutcomes) -> dict[str, Any]:
    stages = {}
    for name, outcome in entry.stages.items():
        solved = "".join("01"[success] for success in outcome.success)
        stages[name] = {"protocol": outcome.protocol, "first": outcome.first, "success": solved}
        if outcome.score is not None:
            digits = (f"{value:.{SIGNIFICANT}g}" for value in outcome.score)
            stages[name]["score"] = " ".join(digits)
    return {
        "commit": entry.commit,
        "date": entry.date,
        "processor": entry.processor,
        "minutes": entry.minutes,
        "stages": stages,
    }


def _from_json(entry: Mapping[str, Any]) -> SeedOutcomes:
    stages = {
        name: Outcome(
            protocol=row["protocol"],
            first=row["first"],
            success=tuple(digit == "1" for digit in row["success"]),
            score=tuple(map(float, row["score"].split())) if "score" in row else None,
        )
        for name, row in entry["stages"].items()
    }
    return SeedOutcomes(
        entry["commit"], entry["date"], entry["processor"], entry["minutes"], stages
    )
