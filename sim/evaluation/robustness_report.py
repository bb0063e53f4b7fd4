"""Writes the results of a robustness measurement: figures as JSON, a chart, pictures of the
conditions, and a page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robots.html_page import FOOT, head, heading, picture, table
from robots.storage.durable import write_atomically
from sim.evaluation.charts import COLOURS
from sim.evaluation.evaluate import make_env
from sim.evaluation.report import Table
from sim.evaluation.robustness import (
    QUANTITIES,
    Quantity,
    Robustness,
    condition_of,
    conditions,
    robustness_figures,
    under_condition,
)

FIGURES = "robustness.json"
CHART = "robustness.png"
VIEWS = "conditions.png"
REPORT = "report.html"
LABELS: Mapping[Quantity, tuple[str, float]] = {
    "camera_shift": ("displacement of the cameras [cm]", 100.0),
    "light": ("brightness of the lights (factor)", 1.0),
    "clutter": ("distractors on the table", 1.0),
}
"""Label of every quantity's axis, and the factor from its value to the axis's unit."""


def write_robustness(measured: Robustness, out: Path) -> dict[str, Any]:
    """Writes `robustness.json`, with the solved episodes by seed, `robustness.png`,
    `conditions.png` and `report.html` to the existing folder `out`; returns the figures.

    Raises:
        HandoffError: the environments cannot be made for the pictures.
    """
    figures = robustness_figures(measured)
    solved = {
        name: {condition.name: each.tolist() for condition, each in by_condition.items()}
        for name, by_condition in measured.solved.items()
    }
    seeds = list(measured.protocol.seeds)
    text = json.dumps({**figures, "seeds": seeds, "solved": solved}, indent=1) + "\n"
    write_atomically(out / FIGURES, text.encode())
    draw_robustness(measured, figures, out / CHART)
    _draw_views(measured, out / VIEWS)
    write_atomically(out / REPORT, "\n".join(_page(figures)).encode())
    return figures


def robustness_tables(figures: Mapping[str, Any]) -> list[Table]:
    """Success under every condition, and the paired differences between agents, if there are
    several."""
    percent = f"{100 * figures['confidence']:g} %"
    rows: list[tuple[str, ...]] = []
    between: list[tuple[str, ...]] = []
    for row in figures["conditions"]:
        for name, agent in row["agents"].items():
            success, nominal = agent["success"], agent.get("against_nominal")
            rows.append(
                (
                    row["name"],
                    name,
                    f"{success['k']} of {success['n']}",
                    f"{success['k'] / success['n']:.3f}",
                    f"{success['low']:.3f} to {success['high']:.3f}",
                    *(("", "", "") if nominal is None else _cells(nominal)),
                )
            )
            if "against_first" in agent:
                between.append((row["name"], name, *_cells(agent["against_first"])))
    tables: list[Table] = [
        (
            (
                "condition",
                "agent",
                "solved",
                "rate",
                f"Wilson {percent}",
                "against nominal",
                f"interval {percent}",
                "p (Holm)",
            ),
            rows,
        )
    ]
    if between:
        against = f"against {figures['agents'][0]}"
        tables.append((("condition", "agent", against, f"interval {percent}", "p (Holm)"), between))
    return tables


def draw_robustness(measured: Robustness, figures: Mapping[str, Any], path: Path) -> None:
    """Plots success with its Wilson interval over every quantity, one line per agent."""
    from matplotlib.figure import Figure

    shown: list[Quantity] = [
        quantity for quantity in QUANTITIES if len(measured.sweep.values(quantity)) > 0
    ]
    rows = {row["name"]: row["agents"] for row in figures["conditions"]}
    figure = Figure(figsize=(3.6 * len(shown), 3.4), layout="constrained")
    panels = figure.subplots(1, len(shown), sharey=True, squeeze=False)[0]
    for axes, quantity in zip(panels, shown, strict=True):
        label, unit = LABELS[quantity]
        values = sorted(measured.sweep.values(quantity))
        places = unit * np.array(values)
        # Neighbouring lines are set apart, so that their intervals are told from each other.
        apart = 0.015 * (float(np.ptp(places)) or 1.0)
        for index, name in enumerate(figures["agents"]):
            each = [rows[condition_of(quantity, value).name][name]["success"] for value in values]
            rate = np.array([success["k"] / success["n"] for success in each])
            low = np.array([success["low"] for success in each])
            high = np.array([success["high"] for success in each])
            axes.errorbar(
                places + apart * (index - 0.5 * (len(figures["agents"]) - 1)),
                rate,
                yerr=np.maximum([rate - low, high - rate], 0.0),
                marker="o",
                capsize=3,
                color=COLOURS[index % len(COLOURS)],
                label=name,
            )
        axes.set(xlabel=label, ylim=(-0.03, 1.03))
        axes.set_xticks(places, [f"{place:g}" for place in places])
        axes.grid(alpha=0.3)
    panels[0].set_ylabel("success")
    panels[-1].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


def _draw_views(measured: Robustness, path: Path) -> None:
    """Draws the first start of the protocol as every camera sees it under every condition."""
    from matplotlib.figure import Figure

    shown = conditions(measured.sweep)
    views: list[dict[str, np.ndarray]] = []
    for condition in shown:
        env = make_env(under_condition(measured.protocol, condition), 1)
        try:
            observation = env.reset([measured.protocol.first_seed])
        finally:
            env.close()
        views.append({k: v[0] for k, v in observation.items() if k.startswith("image_")})
    cameras = list(views[0])
    size = (1.5 * len(shown), 1.6 * len(cameras) + 0.2)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(cameras), len(shown), squeeze=False)
    for column, (condition, view) in enumerate(zip(shown, views, strict=True)):
        for row, camera in enumerate(cameras):
            axes = grid[row][column]
            axes.imshow(view[camera])
            axes.set(xticks=[], yticks=[])
            if row == 0:
                axes.set_title(condition.name, fontsize=7)
            if column == 0:
                axes.set_ylabel(camera.removeprefix("image_"), fontsize=7)
    figure.savefig(path, dpi=120)


def _cells(difference: Mapping[str, Any]) -> tuple[str, str, str]:
    return (
        f"{difference['mean']:+.3f}",
        f"{difference['low']:+.3f} to {difference['high']:+.3f}",
        f"{difference['p_holm']:.3g}",
    )


def _page(figures: Mapping[str, Any]) -> Iterator[str]:
    protocol = figures["protocol"]
    name = html.escape(protocol["name"])
    yield head(f"Robustness: {protocol['name']}")
    yield f"<h1>Robustness under {name}</h1>"
    yield f"<p class='soft'>{html.escape(protocol['engine'])}, {html.escape(protocol['task'])}: "
    yield f"{protocol['episodes']} episodes from seed {protocol['first_seed']}, the same under all "
    yield "conditions and for all agents</p>"
    yield picture(CHART, "Success with Wilson intervals; one quantity changes at a time.")
    yield picture(VIEWS, "The first start, as the cameras see it under every condition.")
    for title, each in zip(
        ("Success", "Differences between agents"), robustness_tables(figures), strict=False
    ):
        yield heading(title)
        yield table(*each)
    yield "<p class='soft'>Differences are paired by seed: a bootstrap interval over episodes, and the exact "
    yield "McNemar test with Holm's correction over the rows of its column. They say nothing about another "
    yield f"training of the same policy.</p>{FOOT}"
