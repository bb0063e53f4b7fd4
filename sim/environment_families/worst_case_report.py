"""Writes the result of a search for the worst environment: figures as JSON, the family, a chart,
and a page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.config import to_plain
from robots.html_page import FOOT, banner, head, heading, picture, table
from robots.proportions import wilson
from robots.storage.durable import write_atomically
from sim.environment_families.draw import values_of
from sim.environment_families.members import values_text, write_family
from sim.environment_families.worst_case import Tried, WorstCase
from sim.evaluation.charts import COLOURS
from sim.evaluation.evaluate import BOOTSTRAP_SEED
from sim.evaluation.intervals import bootstrap_mean, paired_difference
from sim.evaluation.protocol import protocol_statement
from sim.evaluation.report import Table
from sim.sensitivity.factors import label

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = "worst_case.json"
CHART = "worst_case.png"
REPORT = "report.html"


def mean_score(scores: np.ndarray, confidence: float) -> dict[str, float | int]:
    """Mean of scores (N,) with its interval, `mean`, `n`, `low` and `high`: Wilson's where all are
    0 or 1, otherwise a bootstrap over episodes."""
    if np.isin(scores, (0.0, 1.0)).all():
        low, high = wilson(int(scores.sum()), len(scores), confidence)
    else:
        low, high = bootstrap_mean(scores, BOOTSTRAP_SEED, confidence)
    return {"mean": float(scores.mean()), "n": len(scores), "low": low, "high": high}


def worst_case_figures(found: WorstCase) -> dict[str, Any]:
    """JSON-ready figures of a search.

    Returns:
        `candidates`: per candidate `round`, `values` and mean `score`, the lowest first.
        `finalists` and `members`: `name`, `values`, mean score on the `final` starts, and for
        finalists in the search, `searched`.
        `found` and `known`: the lowest finalist and the lowest known member from starts on which
        nothing was chosen, and their paired `difference`.
        `added`: whether the family has a new member.
    """
    confidence = found.confidence
    factors = found.config.factors

    def rows(tried: Sequence[Tried]) -> list[dict[str, Any]]:
        return [
            {
                "name": each.name,
                "values": dict(each.values),
                "searched": mean_score(each.searched, confidence) if len(each.searched) else None,
                "final": mean_score(each.final, confidence),
            }
            for each in tried
        ]

    return {
        "protocol": protocol_statement(found.protocol),
        "agent": found.agent,
        "confidence": confidence,
        "search": to_plain(found.config.search),
        "first_seed": found.config.first_seed,
        "factors": to_plain(factors),
        "candidates": [
            {"round": each.round, "values": values_of(factors, each.places), "score": each.mean}
            for each in found.candidates
        ],
        "finalists": rows(found.finalists),
        "members": rows(found.members),
        "found": mean_score(found.found_again, confidence),
        "known": mean_score(found.member_again, confidence),
        "difference": paired_difference(
            found.member_again, found.found_again, BOOTSTRAP_SEED, confidence
        ),
        "added": found.added,
        "family": len(found.family.members),
    }


def write_worst_case(found: WorstCase, out: Path) -> dict[str, Any]:
    """Writes `worst_case.json`, `family.json`, a chart and `report.html` to the folder `out`;
    returns the figures."""
    figures = worst_case_figures(found)
    write_family(found.family, out)
    write_atomically(out / FIGURES, f"{json.dumps(figures)}\n".encode())
    draw_worst_case(found, figures, out / CHART)
    write_atomically(out / REPORT, "".join(_page(found, figures)).encode())
    return figures


def worst_case_tables(figures: Mapping[str, Any]) -> dict[str, Table]:
    """Tables of the figures by title."""
    percent = f"{100 * figures['confidence']:g} %"
    worst, member = figures["finalists"][0], figures["members"][0]
    rows = [
        ("lowest candidate", *_cells(worst), _mean(figures["found"])),
        (f"lowest member: {member['name']}", *_cells(member), _mean(figures["known"])),
        *(("candidate", *_cells(each), "") for each in figures["finalists"][1:]),
        *((f"member: {each['name']}", *_cells(each), "") for each in figures["members"][1:]),
    ]
    headings = (
        "",
        "parameters",
        f"score in the search, {percent}",
        "on further starts",
        "on starts without a choice",
    )
    tried = [
        (str(each["round"]), values_text(each["values"]), f"{each['score']:.3f}")
        for each in figures["candidates"]
    ]
    return {
        "The worst": (headings, rows),
        "All candidates": (("round", "parameters", "score"), tried),
    }


def _cells(row: Mapping[str, Any]) -> tuple[str, str, str]:
    searched = "" if row["searched"] is None else _mean(row["searched"])
    return values_text(row["values"]), searched, _mean(row["final"])


def _mean(score: Mapping[str, Any]) -> str:
    return f"{score['mean']:.3f} ({score['low']:.3f} to {score['high']:.3f}), n = {score['n']}"


def verdict(figures: Mapping[str, Any]) -> str:
    """The result of a search in a sentence."""
    worst, member = figures["finalists"][0], figures["members"][0]
    scores = (
        f"{figures['found']['mean']:.2f} against {figures['known']['mean']:.2f} in {member['name']}"
    )
    if figures["added"]:
        return f"{values_text(worst['values'])}: {scores}; added as {worst['name']}"
    return f"{values_text(worst['values'])}: {scores}; no worse than the family, nothing added"


def draw_worst_case(found: WorstCase, figures: Mapping[str, Any], path: Path) -> None:
    """Plots the score of every candidate against every factor, and the scores of the lowest
    candidate and the lowest member from three sets of starts."""
    from matplotlib.figure import Figure

    names = list(found.config.factors)
    figure = Figure(figsize=(3.2 * (len(names) + 1), 3.2), layout="constrained")
    panels = figure.subplots(1, len(names) + 1, squeeze=False)[0]
    for name, axes in zip(names, panels, strict=False):
        factor = found.config.factors[name]
        for number in sorted({each["round"] for each in figures["candidates"]}):
            rows = [each for each in figures["candidates"] if each["round"] == number]
            axes.plot(
                [float(each["values"][name]) for each in rows],
                [each["score"] for each in rows],
                "o",
                color=COLOURS[number % len(COLOURS)],
                alpha=0.7,
                label=f"round {number}",
            )
        if factor.log:
            axes.set_xscale("log")
        axes.set_xlabel(label(name, factor), fontsize=8)
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("mean score of a candidate")
    panels[0].legend(frameon=False, fontsize=8)
    _draw_verdict(panels[-1], figures)
    figure.savefig(path, dpi=120)


def _draw_verdict(axes: Axes, figures: Mapping[str, Any]) -> None:
    """The scores of the lowest candidate and the lowest member with their intervals."""
    worst, member = figures["finalists"][0], figures["members"][0]
    rows = (
        ("lowest candidate", [worst["searched"], worst["final"], figures["found"]]),
        (f"member {member['name']}", [None, member["final"], figures["known"]]),
    )
    for index, (name, scores) in enumerate(rows):
        given = [(at, each) for at, each in enumerate(scores) if each is not None]
        mean = np.array([each["mean"] for _, each in given])
        ends = [[each["low"] for _, each in given], [each["high"] for _, each in given]]
        axes.errorbar(
            [at + 0.06 * index for at, _ in given],
            mean,
            yerr=np.maximum([mean - ends[0], ends[1] - mean], 0.0),
            marker="o",
            capsize=3,
            color=COLOURS[index],
            label=name,
        )
    axes.set_xticks(range(3), ["search", "further", "no choice"], fontsize=8)
    axes.set_xlabel("starts", fontsize=8)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False, fontsize=8)


def _page(found: WorstCase, figures: Mapping[str, Any]) -> Iterator[str]:
    protocol, search = figures["protocol"], figures["search"]
    yield head(f"Worst case: {protocol['name']}")
    yield f"<h1>Worst environments of {html.escape(found.agent)}</h1>"
    yield f"<p class='soft'>{html.escape(protocol['name'])}, {html.escape(protocol['engine'])}, "
    yield f"{html.escape(protocol['task'])}: {len(figures['candidates'])} candidates of "
    yield f"{search['episodes']} episodes each from seed {figures['first_seed']}, the same for all; "
    yield f"{search['final_episodes']} further ones for {len(figures['finalists'])} finalists and "
    yield f"{len(figures['members'])} known members, and {search['final_episodes']} more for the "
    yield "lowest of each</p>"
    yield banner("warn" if figures["added"] else "good", html.escape(verdict(figures)))
    yield picture(CHART, "Scores of all candidates, and of the lowest on three sets of starts.")
    for title, each in worst_case_tables(figures).items():
        yield heading(title)
        yield table(*each)
        yield f"<p class='soft'>{_NOTES[title]}</p>"
    yield FOOT


_NOTES = {
    "The worst": "The score of the lowest candidate rises from the search to the last column by what was chance: it "
    "was chosen for being low. Nothing was chosen on the starts of the last column, and its difference decides "
    "whether the candidate becomes a member.",
    "All candidates": "Round 0 is the design with the corners; later rounds try places around the lowest ones. The "
    "search is no proof that no worse place exists.",
}
