"""Writes the comparison of deployments: figures as JSON, a chart and a page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flows.evaluation.pairs import COLUMNS, pair_cells
from robots.html_page import head, heading, picture, table
from robots.storage.durable import write_atomically

REPORT = "report.html"
DEPLOYMENTS = "deployments.json"
CHART = "deployments.png"


def write_transfer(figures: Mapping[str, Any], out: Path) -> None:
    """Writes `deployments.json`, `deployments.png` and `report.html` to the folder `out`.

    Args:
        figures: see `flows.identification.transfer.compare_deployments`.
        out: existing folder.
    """
    text = json.dumps(figures, indent=2) + "\n"
    write_atomically(out / DEPLOYMENTS, text.encode())
    _draw(figures, out / CHART)
    write_atomically(out / REPORT, "\n".join(_page(figures)).encode())


def _draw(figures: Mapping[str, Any], path: Path) -> None:
    """Plots the success rates, and the tuned values in units of the true ones."""
    from matplotlib.figure import Figure

    rows = figures["deployments"]
    parameters = [row for row in figures["parameters"] if row["true"] > 0.0]
    figure = Figure(figsize=(9.0 if parameters else 4.5, 3.2), layout="constrained")
    panels = figure.subplots(1, 2 if parameters else 1, squeeze=False)[0]
    rates = [row["success"]["k"] / row["success"]["n"] for row in rows]
    below = [rate - row["success"]["low"] for rate, row in zip(rates, rows, strict=True)]
    above = [row["success"]["high"] - rate for rate, row in zip(rates, rows, strict=True)]
    panels[0].bar([row["name"] for row in rows], rates, color="tab:blue", alpha=0.6)
    panels[0].errorbar(range(len(rows)), rates, yerr=[below, above], fmt="none", color="0.2")
    panels[0].set_ylim(0.0, 1.0)
    panels[0].set_ylabel("success rate at the twin")
    if parameters:
        values = [row["tuned"] / row["true"] for row in parameters]
        low = [(row["tuned"] - row["low"]) / row["true"] for row in parameters]
        high = [(row["high"] - row["tuned"]) / row["true"] for row in parameters]
        places = range(len(parameters))
        panels[1].errorbar(values, places, xerr=[low, high], fmt="o", color="tab:blue")
        panels[1].axvline(1.0, color="0.5", lw=0.8)
        panels[1].set_yticks(list(places), [row["name"] for row in parameters], fontsize=8)
        panels[1].set_xlabel("tuned value / true value")
    figure.savefig(path, dpi=110)


def _page(figures: Mapping[str, Any]) -> Iterator[str]:
    percent = f"{100 * figures['confidence']:g} %"
    yield head("Deployments from the same starts")
    yield "<h1>Deployments from the same starts</h1>"
    yield table(
        ("deployment", "solved", "rate", f"Wilson {percent}", "faults", "seconds per start"),
        [
            (
                row["name"],
                f"{row['success']['k']} of {row['success']['n']}",
                f"{row['success']['k'] / row['success']['n']:.3f}",
                f"{row['success']['low']:.3f} to {row['success']['high']:.3f}",
                str(row["faults"]),
                f"{row['seconds']:.2f}",
            )
            for row in figures["deployments"]
        ],
    )
    yield picture(CHART, "Success rates, and tuned values in units of the true ones")
    yield heading("Paired differences")
    yield table(
        ("first", "second", "difference", f"{percent}", *COLUMNS),
        [(pair["first"], pair["second"], *pair_cells(pair)) for pair in figures["pairs"]],
    )
    yield "<p class='soft'>Success of the second minus that of the first, with a bootstrap over starts; exact "
    yield "McNemar test on the starts that one of them alone solved, with Holm's correction. They say nothing "
    yield "about another training.</p>"
    if figures["parameters"]:
        yield from _parameters(figures)
    yield "</html>"


def _parameters(figures: Mapping[str, Any]) -> Iterator[str]:
    yield heading("Parameters")
    yield table(
        ("parameter", "true", "tuned", "95 % interval", "unit", "true value inside"),
        [
            (
                row["name"],
                f"{row['true']:.4g}",
                f"{row['tuned']:.4g}" + ("" if row["determined"] else ", not determined"),
                f"{row['low']:.4g} to {row['high']:.4g}",
                row["unit"],
                "yes" if row["inside"] else "no",
            )
            for row in figures["parameters"]
        ],
    )
    if figures["unidentified"]:
        names = html.escape("; ".join(figures["unidentified"]))
        yield f"<p class='soft'>Not tuned: {names}.</p>"
