"""Puts the figures of a repeated claim beside the recorded ones: means with intervals, the bar, and
the change over the same start states."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.claims.claim import Claim, Figure
from flows.claims.outcomes import SeedOutcomes, figure_numbers
from flows.runner.artifact import write_json
from robots.html_page import FOOT, head, table
from robots.storage.durable import write_atomically

CONFIDENCE = 0.95
"""Confidence of the intervals."""
BOOTSTRAP_SEED = 0
"""Seed of their resampling."""
RESULT = "claim.json"
PAGE = "claim.html"
HEADINGS = ("figure", "seed", "recorded", "now", "interval", "change", "bar", "result")


@dataclass(frozen=True)
class RepeatedFigure:
    """One figure of one learning seed."""

    name: str
    seed: int
    """Learning seed."""
    mean: float
    """Mean over the start states."""
    low: float
    high: float
    """Interval of the mean: Wilson's for successes, a bootstrap over start states otherwise."""
    episodes: int
    """Number of start states."""
    recorded: float | None
    """The recorded mean; None if none is recorded."""
    change: Mapping[str, float] | None
    """`mean`, `low` and `high` of the change over the same start states; None if none are recorded,
    or were played under another protocol."""
    bar: str
    passes: bool | None
    """Whether the bar is met; None without a bar."""
    passed_before: bool | None
    """Whether the recorded mean meets it; None without a bar or a record."""

    @property
    def lost(self) -> bool:
        """Whether the record meets the bar, or there is no record, and this does not."""
        return self.passes is False and self.passed_before is not False

    @property
    def result(self) -> str:
        """The outcome in a few words."""
        if self.passes is None:
            bar = "no bar"
        elif self.passed_before is None or self.passes == self.passed_before:
            bar = "met" if self.passes else "missed"
        else:
            bar = "met now, missed before" if self.passes else "MISSED, met before"
        return f"{bar}, {self.agreement}"

    @property
    def agreement(self) -> str:
        """How the repetition lies to the record."""
        if self.recorded is None:
            return "not recorded"
        if self.change is None:
            return "recorded under another protocol"
        if self.change["low"] <= 0.0 <= self.change["high"]:
            same = self.change["low"] == self.change["high"] == 0.0
            return "every start as recorded" if same else "within chance"
        return "changed"


@dataclass(frozen=True)
class RepeatedClaim:
    """A claim and its repetition."""

    name: str
    statement: str
    """What is claimed."""
    figures: Sequence[RepeatedFigure]
    outcomes: Mapping[int, SeedOutcomes]
    """The repetition by learning seed."""
    recorded: Mapping[int, SeedOutcomes]
    """The record by learning seed."""

    @property
    def lost(self) -> list[str]:
        """Figures that miss a bar that the record meets."""
        return [f"{figure.name} (seed {figure.seed})" for figure in self.figures if figure.lost]

    @property
    def verdict(self) -> str:
        """The outcome in one sentence."""
        bars = sum(figure.passes is not None for figure in self.figures)
        if self.lost:
            return f"not reproduced: {', '.join(self.lost)} missed the bar."
        if not bars:
            return "repeated: the claim has no bar."
        missed = sum(figure.passes is False for figure in self.figures)
        known = f", {missed} missed as in the record" if missed else ""
        return f"reproduced: {bars - missed} of {bars} bars met{known}."

    @property
    def rows(self) -> list[tuple[str, ...]]:
        """Cells of a table under `HEADINGS`."""
        return [_row(figure) for figure in self.figures]


def compare_claim(
    name: str,
    statement: str,
    claim: Claim,
    outcomes: Mapping[int, SeedOutcomes],
    recorded: Mapping[int, SeedOutcomes],
) -> RepeatedClaim:
    """Computes the figures of a repetition and of the record.

    Args:
        name: name of the claim.
        statement: what it says.
        claim: its figures.
        outcomes: the repetition by learning seed.
        recorded: the record by learning seed.

    Raises:
        HandoffError: stages of a difference were not played from the same start states.
    """
    figures = [
        _compare(label, figure, seed, outcome, recorded.get(seed))
        for seed, outcome in sorted(outcomes.items())
        for label, figure in claim.figures.items()
        if figure.seeds is None or seed in figure.seeds
    ]
    return RepeatedClaim(name, statement, figures, outcomes, recorded)


def write_claim(result: RepeatedClaim, folder: Path) -> None:
    """Writes `claim.json` and `claim.html` to a folder."""
    figures = [
        {**asdict(figure), "result": figure.result, "lost": figure.lost}
        for figure in result.figures
    ]
    content: dict[str, Any] = {"claim": result.name, "statement": result.statement}
    write_json(folder / RESULT, {**content, "verdict": result.verdict, "figures": figures})
    write_atomically(folder / PAGE, "\n".join(_page(result)).encode())


def _compare(
    label: str, figure: Figure, seed: int, outcome: SeedOutcomes, record: SeedOutcomes | None
) -> RepeatedFigure:
    from sim.evaluation.intervals import bootstrap_mean, paired_difference, success_rate

    numbers = figure_numbers(figure, outcome.stages)
    mean = sum(numbers) / len(numbers)
    if figure.of == "success" and not figure.than:
        rate = success_rate([number > 0.0 for number in numbers], CONFIDENCE)
        low, high = float(rate["low"]), float(rate["high"])
    else:
        low, high = bootstrap_mean(numbers, BOOTSTRAP_SEED, CONFIDENCE)
    before = None if record is None else _recorded_numbers(figure, record)
    change = None
    if before is not None and record is not None and _paired(figure, outcome, record):
        change = paired_difference(before, numbers, BOOTSTRAP_SEED, CONFIDENCE)
    recorded = None if before is None else sum(before) / len(before)
    return RepeatedFigure(
        name=label,
        seed=seed,
        mean=mean,
        low=low,
        high=high,
        episodes=len(numbers),
        recorded=recorded,
        change=change,
        bar=figure.bar,
        passes=figure.meets(mean),
        passed_before=None if recorded is None else figure.meets(recorded),
    )


def _recorded_numbers(figure: Figure, record: SeedOutcomes) -> list[float] | None:
    """The figure's numbers in a record; None if the record has not all of its stages."""
    known = record.stages.keys() >= {*figure.stages}
    return figure_numbers(figure, record.stages) if known else None


def _paired(figure: Figure, outcome: SeedOutcomes, record: SeedOutcomes) -> bool:
    return all(outcome.stages[name].same_starts(record.stages[name]) for name in figure.stages)


def _row(figure: RepeatedFigure) -> tuple[str, ...]:
    change = figure.change
    return (
        figure.name,
        str(figure.seed),
        "—" if figure.recorded is None else f"{figure.recorded:.3f}",
        f"{figure.mean:.3f}",
        f"{figure.low:.3f} to {figure.high:.3f} (n = {figure.episodes})",
        "—"
        if change is None
        else f"{change['mean']:+.3f} ({change['low']:+.3f} to {change['high']:+.3f})",
        figure.bar or "—",
        figure.result,
    )


def _page(result: RepeatedClaim) -> Iterator[str]:
    yield head(f"Claim {result.name}")
    yield f"<h1>{html.escape(result.statement)}</h1>"
    kind = "bad" if result.lost else "good"
    yield f'<p class="banner {kind}">{html.escape(result.verdict)}</p>'
    yield table(HEADINGS, result.rows)
    yield "<h2>Runs</h2>"
    rows = [
        (str(seed), when, entry.date, entry.commit or "—", entry.processor, f"{entry.minutes:g}")
        for when, entries in (("recorded", result.recorded), ("now", result.outcomes))
        for seed, entry in sorted(entries.items())
    ]
    yield table(("seed", "run", "date", "commit", "processor", "minutes"), rows)
    yield FOOT
