"""Writes the report of a comparison of groups: a page, a chart and the figures as JSON."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from robots.config import to_plain
from robots.html_page import FOOT, head, table
from robots.storage.durable import write_atomically
from sim.evaluation.charts import intervals_chart
from sim.evaluation.groups import GroupComparison
from sim.evaluation.report import Table, comparison_tables, decision_table

REPORT = "report.html"
FIGURES = "comparison.json"
CHART = "groups.svg"


def write_comparison(comparison: GroupComparison, out: Path) -> None:
    """Writes `report.html`, `groups.svg` and `comparison.json` to the existing folder `out`."""
    chart = intervals_chart(
        {
            group.name: (group.values_SE.mean(axis=1).tolist(), group.mean, group.low, group.high)
            for group in comparison.groups
        },
        f"mean {comparison.config.measure}",
    )
    write_atomically(out / CHART, chart.encode())
    figures = json.dumps(to_figures(comparison), indent=2) + "\n"
    write_atomically(out / FIGURES, figures.encode())
    write_atomically(out / REPORT, "\n".join(_page(comparison, chart, out)).encode())


def to_figures(comparison: GroupComparison) -> dict[str, Any]:
    """JSON-ready figures of a comparison."""
    figures: dict[str, Any] = {
        "config": to_plain(comparison.config),
        "protocol": comparison.groups[0].results[0].table["protocol"]["name"],
        "groups": [
            {
                "name": group.name,
                "evaluations": [result.name for result in group.results],
                "means": group.values_SE.mean(axis=1).tolist(),
                "episodes": group.values_SE.shape[1],
                "mean": group.mean,
                "low": group.low,
                "high": group.high,
            }
            for group in comparison.groups
        ],
        "differences": [each._asdict() for each in comparison.differences],
    }
    if comparison.adastop is not None:
        test, decisions = comparison.adastop
        figures["adastop"] = {
            "decisions": [
                {
                    "better": each.better,
                    "worse": each.worse,
                    "difference": each.difference,
                    "evaluations": (each.stage + 1) * test.config.n,
                }
                for each in decisions
            ],
            "undecided": [list(pair) for pair in test.undecided],
            "smallest_p_value": comparison.smallest_p_value,
        }
    else:
        figures["paired"] = [
            {"agent": each.agent, **each.success, "p_holm": p}
            for each, p in zip(comparison.paired, comparison.holm, strict=True)
        ]
    return figures


def group_tables(comparison: GroupComparison) -> list[Table]:
    """Tables of the groups, of their differences from the reference, and of the tests."""
    percent = f"{100 * comparison.config.confidence:g} %"
    groups = [
        (
            group.name,
            str(len(group.results)),
            str(group.values_SE.shape[1]),
            f"{group.mean:.3f}",
            f"{group.low:.3f} to {group.high:.3f}",
        )
        for group in comparison.groups
    ]
    against = [
        (each.group, f"{each.mean:+.3f}", f"{each.low:+.3f} to {each.high:+.3f}")
        for each in comparison.differences
    ]
    tables: list[Table] = [
        (("group", "evaluations", "episodes each", comparison.config.measure, percent), groups),
        ((f"against {comparison.groups[0].name}", "difference", percent), against),
    ]
    if comparison.adastop is not None:
        (better, worse, difference, _), rows = decision_table(*comparison.adastop)
        return [*tables, ((better, worse, difference, "evaluations each"), rows)]
    ((headings, rows),) = comparison_tables(comparison.paired)
    corrected = [(*row, f"{p:.3g}") for row, p in zip(rows, comparison.holm, strict=True)]
    return [*tables, ((*headings, "p (Holm)"), corrected)]


def _page(comparison: GroupComparison, chart: str, out: Path) -> Iterator[str]:
    protocol = comparison.groups[0].results[0].table["protocol"]
    config = comparison.config
    groups, against, tests = group_tables(comparison)
    yield head(f"Comparison: {protocol['name']}")
    yield f"<h1>Comparison under {html.escape(protocol['name'])}</h1>"
    yield f"<p class='soft'>{html.escape(protocol['engine'])}, {html.escape(protocol['task'])}: "
    yield f"{protocol['episodes']} episodes from seed {protocol['first_seed']}, the same for all</p>"
    yield f"<figure>{chart}</figure>"
    yield table(*groups)
    yield "<p class='soft'>A dot is one evaluation. Intervals resample evaluations and episodes.</p>"
    yield "<h2>Differences</h2>"
    yield table(*against)
    if comparison.adastop is None:
        yield "<h2>Paired by seed of the episode</h2>"
        yield table(*tests)
        yield "<p class='soft'>Exact McNemar test of success, one evaluation per group: it says nothing about "
        yield "another training of the same method.</p>"
    else:
        yield "<h2>AdaStop</h2>"
        yield table(*tests)
        yield "<p class='soft'>Permutations of the evaluations' means; the probability of any wrong decision is at "
        yield f"most {config.alpha:g}.</p>"
        if comparison.smallest_p_value > config.alpha:
            runs = len(comparison.groups[0].results)
            yield f"<p><b>{runs} evaluations per group cannot show any difference: the smallest possible p-value is "
            yield f"{comparison.smallest_p_value:.2g}.</b></p>"
    yield "<h2>Evaluations</h2><ul>"
    for group in comparison.groups:
        for result in group.results:
            link = html.escape(os.path.relpath(result.folder / "report.html", out))
            yield f"<li><a href='{link}'>{html.escape(result.name)}</a>"
    yield f"</ul>{FOOT}"
