"""Writes the results of a sensitivity measurement: figures as JSON, a chart, and a page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.html_page import FOOT, banner, head, heading, picture, table
from robots.storage.durable import write_atomically
from sim.evaluation.charts import COLOURS
from sim.evaluation.report import Table
from sim.sensitivity.design import ranged, values_at
from sim.sensitivity.factors import DUMMY, Value, label, shown
from sim.sensitivity.figures import sensitivity_figures
from sim.sensitivity.measure import NOMINAL, Sensitivity, start_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FIGURES = "sensitivity.json"
CHART = "sensitivity.png"
REPORT = "report.html"
_ONE, _ALL = "one at a time", "all vary"
_ACROSS = 4
"""Largest number of charts side by side."""
_SINGLE = 0.5
"""Half the width of the axis of a factor with a single value, in its unit."""


def write_sensitivity(measured: Sensitivity, out: Path) -> dict[str, Any]:
    """Writes `sensitivity.json`, with all episodes, `sensitivity.png` and `report.html` to the
    existing folder `out`; returns the figures."""
    figures = sensitivity_figures(measured)
    text = json.dumps({**figures, **_episodes(measured)}, indent=1) + "\n"
    write_atomically(out / FIGURES, text.encode())
    draw_sensitivity(measured, figures, out / CHART)
    write_atomically(out / REPORT, "\n".join(_page(measured, figures)).encode())
    return figures


def sensitivity_tables(figures: Mapping[str, Any]) -> dict[str, Table]:
    """Tables by title: the influence of every factor over the design, success at single values, and
    differences between agents, where there are any."""
    tables: dict[str, Table] = {}
    if figures["design"] is not None:
        tables["Influence of each factor"] = _influence_table(figures)
    values = _value_table(figures)
    if len(figures["conditions"]) > 1:
        tables["One factor at a time"] = values
    between = _between_table(figures)
    if between[1]:
        tables["Differences between agents"] = between
    return tables


def draw_sensitivity(measured: Sensitivity, figures: Mapping[str, Any], path: Path) -> None:
    """Plots success with its Wilson interval against every factor, one line per agent: the values
    one at a time above, and slices of the design below."""
    from matplotlib.figure import Figure

    factors = measured.config.factors
    swept = [name for name, factor in factors.items() if factor.values]
    within = [*ranged(factors), DUMMY] if figures["design"] is not None else []
    wide = min(_ACROSS, max(len(swept), len(within)))
    rows = [
        (kind, names[first : first + wide])
        for kind, names in ((_ONE, swept), (_ALL, within))
        for first in range(0, len(names), wide)
    ]
    figure = Figure(figsize=(3.4 * wide, 3.2 * len(rows)), layout="constrained")
    grid = figure.subplots(len(rows), wide, sharey=True, squeeze=False)
    for (kind, names), panels in zip(rows, grid, strict=True):
        for axes in panels[len(names) :]:
            axes.axis("off")
        for name, axes in zip(names, panels, strict=False):
            if kind == _ONE:
                _draw_values(axes, name, measured, figures)
            else:
                _draw_slices(axes, name, figures)
            axes.set_ylim(-0.03, 1.03)
            axes.grid(alpha=0.3)
        panels[0].set_ylabel(f"{kind}: success")
    grid[0][0].legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


def _draw_values(axes: Axes, name: str, measured: Sensitivity, figures: Mapping[str, Any]) -> None:
    """Success at single values of a factor, the nominal one included."""
    factor = measured.config.factors[name]
    rows = {row["value"]: row["agents"] for row in figures["conditions"] if row["factor"] == name}
    own = figures["factors"][name]["nominal"]
    as_it_is = figures["conditions"][0]["agents"]
    if own is not None:
        rows[own] = as_it_is
    values: list[Value] = list(rows)
    numeric = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
    values = sorted(values) if numeric else values
    places = np.array(values, dtype=float) if numeric else np.arange(len(values), dtype=float)
    for index, agent in enumerate(figures["agents"]):
        each = [rows[value][agent]["success"] for value in values]
        _draw_rates(axes, places, each, index, len(figures["agents"]), agent)
        if own is None:
            rate = as_it_is[agent]["success"]
            axes.axhline(rate["k"] / rate["n"], color=COLOURS[index % len(COLOURS)], ls=":")
    if factor.log and numeric and min(places) > 0.0:
        axes.set_xscale("log")
        axes.minorticks_off()
    axes.set_xticks(places, [shown(value) for value in values])
    axes.set_xlabel(label(name, factor), fontsize=8)
    if len(values) == 1:
        # Otherwise the agents, which are set apart a little, are at either edge.
        axes.set_xlim(places[0] - _SINGLE, places[0] + _SINGLE)
    if own is not None:
        axes.axvline(places[values.index(own)], color="0.6", ls=":", zorder=0)


def _draw_slices(axes: Axes, name: str, figures: Mapping[str, Any]) -> None:
    """Success in slices of a factor's range while all factors vary."""
    for index, agent in enumerate(figures["agents"]):
        row = _row(figures, agent, name)
        edges = np.arange(len(row["edges"]), dtype=float)
        places = edges[:-1] + 0.5
        filled = [i for i, each in enumerate(row["slices"]) if each["n"]]
        each = [row["slices"][i] for i in filled]
        _draw_rates(axes, places[filled], each, index, len(figures["agents"]), agent)
        axes.set_xticks(edges, [f"{edge:.3g}" for edge in row["edges"]])
    share = ", ".join(f"{_row(figures, agent, name)['share']:.2f}" for agent in figures["agents"])
    axes.set_xlabel(f"{name} (explains {share})", fontsize=8)


def _draw_rates(
    axes: Axes,
    places: np.ndarray,
    successes: Sequence[Mapping[str, Any]],
    index: int,
    agents: int,
    name: str,
) -> None:
    rate = np.array([each["k"] / each["n"] for each in successes])
    low = np.array([each["low"] for each in successes])
    high = np.array([each["high"] for each in successes])
    # Neighbouring lines are set apart, so that their intervals are told from each other.
    apart = 0.015 * (float(np.ptp(places)) or 1.0)
    axes.errorbar(
        places + apart * (index - 0.5 * (agents - 1)),
        rate,
        yerr=np.maximum([rate - low, high - rate], 0.0),
        marker="o",
        capsize=3,
        color=COLOURS[index % len(COLOURS)],
        label=name,
    )


def _row(figures: Mapping[str, Any], agent: str, name: str) -> Mapping[str, Any]:
    rows = figures["design"]["agents"][agent]["factors"]
    return next(row for row in rows if row["name"] == name)


def _influence_table(figures: Mapping[str, Any]) -> Table:
    percent = f"{100 * figures['confidence']:g} %"
    rows: list[tuple[str, ...]] = []
    for agent, design in figures["design"]["agents"].items():
        for row in sorted(design["factors"], key=lambda row: -row["share"]):
            odds = row["log_odds"]
            ends = [row["slices"][0], row["slices"][-1]]
            rows.append(
                (
                    agent,
                    row["name"],
                    f"{row['low']:g} to {row['high']:g}",
                    f"{row['share']:.3f}",
                    f"{row['chance']:.3f}",
                    f"{row['p_holm']:.3g}",
                    "yes" if row["important"] else "no",
                    f"{odds['mean']:+.2f} ({odds['low']:+.2f} to {odds['high']:+.2f})",
                    *(f"{each['k']} of {each['n']}" for each in ends),
                )
            )
    headings = (
        "agent",
        "factor",
        "range",
        "share explained",
        f"chance, {percent}",
        "p (Holm)",
        "important",
        f"log odds, low to high, {percent}",
        "solved in the lowest slice",
        "in the highest",
    )
    return headings, rows


def _value_table(figures: Mapping[str, Any]) -> Table:
    percent = f"{100 * figures['confidence']:g} %"
    rows: list[tuple[str, ...]] = []
    for row in figures["conditions"]:
        for name, agent in row["agents"].items():
            rows.append((row["name"], name, *_success(agent), *_cells(agent, "against_nominal")))
    if figures["design"] is not None:
        for name, agent in figures["design"]["agents"].items():
            rows.append(("design", name, *_success(agent), *_cells(agent, "against_nominal")))
    headings = (
        "condition",
        "agent",
        "solved",
        "rate",
        f"Wilson {percent}",
        "against nominal",
        f"interval {percent}",
        "p (Holm)",
    )
    return headings, rows


def _between_table(figures: Mapping[str, Any]) -> Table:
    percent = f"{100 * figures['confidence']:g} %"
    named = [(row["name"], row["agents"]) for row in figures["conditions"]]
    if figures["design"] is not None:
        named.append(("design", figures["design"]["agents"]))
    rows = [
        (condition, name, *_cells(agent, "against_first"))
        for condition, agents in named
        for name, agent in agents.items()
        if "against_first" in agent
    ]
    against = f"against {figures['agents'][0]}"
    return ("condition", "agent", against, f"interval {percent}", "p (Holm)"), rows


def _success(agent: Mapping[str, Any]) -> tuple[str, str, str]:
    success = agent["success"]
    return (
        f"{success['k']} of {success['n']}",
        f"{success['k'] / success['n']:.3f}",
        f"{success['low']:.3f} to {success['high']:.3f}",
    )


def _cells(agent: Mapping[str, Any], kind: str) -> tuple[str, str, str]:
    if kind not in agent:
        return "", "", ""
    difference = agent[kind]
    return (
        f"{difference['mean']:+.3f}",
        f"{difference['low']:+.3f} to {difference['high']:+.3f}",
        f"{difference['p_holm']:.3g}",
    )


def _episodes(measured: Sensitivity) -> dict[str, Any]:
    """All episodes, from which the figures follow."""
    within = ranged(measured.config.factors)
    starts = start_of(measured.protocol, len(measured.unit))
    seeds = np.array(measured.protocol.seeds)
    return {
        "seeds": seeds.tolist(),
        "solved": {
            agent: {name: each.tolist() for name, each in by_condition.items()}
            for agent, by_condition in measured.solved.items()
        },
        "points": [
            {
                "seed": int(seed),
                "values": values_at(within, row),
                "solved": {
                    agent: bool(each[index]) for agent, each in measured.design_solved.items()
                },
            }
            for index, (seed, row) in enumerate(zip(seeds[starts], measured.unit, strict=True))
        ],
    }


def _page(measured: Sensitivity, figures: Mapping[str, Any]) -> Iterator[str]:
    protocol, design = figures["protocol"], figures["design"]
    yield head(f"Sensitivity: {protocol['name']}")
    yield f"<h1>Sensitivity under {html.escape(protocol['name'])}</h1>"
    yield f"<p class='soft'>{html.escape(protocol['engine'])}, {html.escape(protocol['task'])}: "
    yield f"{protocol['episodes']} episodes from seed {protocol['first_seed']}, the same at every "
    yield "value and for all agents"
    if design is not None:
        yield f"; {design['points']} points over all factors ({design['kind'].replace('_', ' ')}, seed "
        yield f"{design['seed']}), one episode each from the same starts in turn"
    yield "</p>"
    if design is not None:
        yield from _control(figures)
    yield picture(CHART, "Success with Wilson intervals: one factor at a time, and all at once.")
    for title, each in sensitivity_tables(figures).items():
        yield heading(title)
        yield table(*each)
        yield f"<p class='soft'>{_NOTES[title]}</p>"
    yield heading("Factors")
    yield table(
        ("factor", "meaning", "as it is"),
        [
            (name, label(name, factor), _nominal_text(figures["factors"][name]["nominal"]))
            for name, factor in measured.config.factors.items()
        ],
    )
    yield FOOT


_NOTES = {
    "Influence of each factor": "Share of the variance of success that the factor explains by itself, over five "
    "slices of its range, and what a factor without influence stays below by chance (permutations); factors that act "
    "together explain less by themselves. Important: p with Holm's correction below one minus the confidence. Log "
    "odds: logistic regression on all factors at once, from the lower to the upper bound.",
    "One factor at a time": "Differences are paired by seed: a bootstrap interval over episodes, and the exact McNemar "
    f"test with Holm's correction over the rows. '{NOMINAL}' has all factors as they are.",
    "Differences between agents": "Paired by seed as above. They say nothing about another training of the same "
    "policy.",
}


def _control(figures: Mapping[str, Any]) -> Iterator[str]:
    """The verdict on the factor that has no effect."""
    found = [agent for agent in figures["agents"] if _row(figures, agent, DUMMY)["important"]]
    if found:
        names = html.escape(", ".join(found))
        yield banner(
            "bad",
            f"Control: a factor without an effect was found important for {names}. Believe no influence of this "
            "design; repeat it with another seed.",
        )
        return
    yield banner("good", "Control: the factor without an effect was not found important.")


def _nominal_text(value: Value | None) -> str:
    return "the model's own value" if value is None else shown(value)
