"""Compares policies in several simulators: one row per policy, one column per simulator.

A stage's name before the first `@` is its column, and what follows names its row: the stages
`mujoco@policy=plain` and `twin@policy=plain` are two cells of the row `policy=plain`.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.evaluation.config import CompareSimulatorsConfig
from flows.evaluation.pairs import COLUMNS, compare_pairs, pair_cells
from flows.runner.artifact import read_manifest
from robots.errors import HandoffError
from robots.html_page import FOOT, head, heading, table
from robots.storage.durable import write_atomically

REPORT = "report.html"
FIGURES = "simulators.json"
ONLY = "policy"
"""Row of stages without copies."""


def simulator_figures(
    evaluations: Sequence[Path], deployments: Sequence[Path], config: CompareSimulatorsConfig
) -> dict[str, Any]:
    """Success of every policy in every simulator.

    Args:
        evaluations: artifacts of stages that evaluate.
        deployments: artifacts of stages that deploy to the twin.
        config: confidence and seed of the intervals.

    Returns:
        `columns`, one entry each with `name`, `engine`, `task`, `robot`, `episodes` and
        `first_seed`; `rows`, names of the policies; `cells`, one entry each with `column`, `row`
        and `success`; `pairs`, in every column the difference of each row from the first, over the
        same seeds, with McNemar's `p_value` and `p_holm`.

    Raises:
        HandoffError: two stages of one cell, a column whose stages differ in their protocol, or a
            missing cell.
    """
    from sim.evaluation.intervals import success_rate

    columns: dict[str, dict[str, Any]] = {}
    solved: dict[tuple[str, str], dict[int, bool]] = {}
    for folder in [*evaluations, *deployments]:
        manifest = read_manifest(folder)
        column, _, row = str(manifest["stage"]).partition("@")
        row = row or ONLY
        about, episodes = _evaluated(folder) if folder in evaluations else _deployed(manifest)
        if columns.setdefault(column, about) != about:
            raise HandoffError(
                f"compare_simulators: the stages of {column} differ: {columns[column]} and {about}. "
                "Give their copies one protocol."
            )
        if (column, row) in solved:
            raise HandoffError(f"compare_simulators: {column} of {row} was given twice.")
        solved[column, row] = episodes
    rows = list(dict.fromkeys(row for _, row in solved))
    missing = [f"{c}@{r}" for c in columns for r in rows if (c, r) not in solved]
    if missing:
        raise HandoffError(
            f"compare_simulators: {', '.join(missing)} is missing. Do all stages take the same policies?"
        )
    pairs = [
        ({"column": column, "row": row}, solved[column, rows[0]], solved[column, row])
        for column in columns
        for row in rows[1:]
    ]
    return {
        "confidence": config.confidence,
        "columns": [{"name": name, **about} for name, about in columns.items()],
        "rows": rows,
        "cells": [
            {
                "column": column,
                "row": row,
                "success": success_rate(list(episodes.values()), config.confidence),
            }
            for (column, row), episodes in solved.items()
        ],
        "pairs": compare_pairs(pairs, config.seed, config.confidence),
    }


def write_simulators(figures: Mapping[str, Any], out: Path) -> None:
    """Writes `simulators.json` and `report.html` to the existing folder `out`.

    Args:
        figures: see `simulator_figures`.
        out: existing folder.
    """
    write_atomically(out / FIGURES, (json.dumps(figures, indent=2) + "\n").encode())
    write_atomically(out / REPORT, "\n".join(_page(figures)).encode())


def _evaluated(folder: Path) -> tuple[dict[str, Any], dict[int, bool]]:
    """What was evaluated, and the solved episodes by seed."""
    from robots.config import validate
    from sim.evaluation.comparison import read_result
    from sim.evaluation.protocol import Protocol

    result = read_result(folder).table
    statement = {k: v for k, v in result["protocol"].items() if k != "code"}
    protocol = validate(Protocol, {**statement, "packages": ()}, f"{folder}: protocol")
    about = {
        "engine": protocol.simulator,
        "task": protocol.task,
        "robot": protocol.robot,
        "episodes": protocol.episodes,
        "first_seed": protocol.first_seed,
    }
    return about, {each["seed"]: bool(each["success"]) for each in result["episodes"]}


def _deployed(manifest: Mapping[str, Any]) -> tuple[dict[str, Any], dict[int, bool]]:
    """What ran at the twin, and the solved starts by seed."""
    metrics = manifest["metrics"]
    episodes = {each["seed"]: bool(each["success"]) for each in metrics["per_start"]}
    about = {
        "engine": "twin",
        "task": metrics.get("task", ""),
        "robot": metrics["robot"],
        "episodes": len(episodes),
        "first_seed": min(episodes),
    }
    return about, episodes


def _page(figures: Mapping[str, Any]) -> Iterator[str]:
    percent = f"{100 * figures['confidence']:g} %"
    cells = {(each["column"], each["row"]): each["success"] for each in figures["cells"]}
    columns = figures["columns"]
    yield head("Policies in several simulators")
    yield "<h1>Policies in several simulators</h1>"
    yield table(
        ("policy", *(each["name"] for each in columns)),
        [(row, *(_cell(cells[each["name"], row]) for each in columns)) for row in figures["rows"]],
    )
    yield f"<p class='soft'>Solved of all episodes, with the Wilson {percent} interval.</p>"
    yield heading("Simulators")
    yield table(
        ("name", "engine", "task", "robot", "episodes", "first seed"),
        [
            (
                each["name"],
                each["engine"],
                html.escape(each["task"]),
                each["robot"],
                str(each["episodes"]),
                str(each["first_seed"]),
            )
            for each in columns
        ],
    )
    if figures["pairs"]:
        yield heading("Paired differences")
        yield table(
            (
                "simulator",
                f"against {html.escape(figures['rows'][0])}",
                "difference",
                percent,
                *COLUMNS,
            ),
            [(each["column"], each["row"], *pair_cells(each)) for each in figures["pairs"]],
        )
        yield "<p class='soft'>Success minus that of the first row over the same seeds, with a bootstrap over "
        yield "episodes; exact McNemar test with Holm's correction. They say nothing about another training.</p>"
    yield FOOT


def _cell(success: Mapping[str, Any]) -> str:
    rate = success["k"] / success["n"]
    return f"{success['k']} of {success['n']}: {rate:.2f} [{success['low']:.2f}, {success['high']:.2f}]"
