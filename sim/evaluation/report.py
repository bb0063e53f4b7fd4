"""Writes the HTML report of one or more evaluations: success with both intervals, failures first,
comparisons, and the protocol."""

from __future__ import annotations

import html
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from robots.html_page import FOOT, head, table, video
from robots.storage.durable import write_atomically
from sim.evaluation.adastop import AdaStop, PairDecision
from sim.evaluation.charts import Point, histogram, learning_curve
from sim.evaluation.comparison import Comparison, Result

Table = tuple[tuple[str, ...], list[tuple[str, ...]]]
"""Headings and rows of a table in the report or the terminal."""


def write_report(
    path: Path,
    results: Sequence[Result],
    comparisons: Sequence[Comparison] = (),
    *,
    steps: Mapping[str, int] | None = None,
    adastop: tuple[AdaStop, Sequence[PairDecision]] | None = None,
) -> None:
    """Writes the report; links to videos are relative, so results and report can be moved together.

    Args:
        path: file of the report.
        results: at least one evaluation.
        comparisons: comparisons of these results.
        steps: training steps of the agents that are checkpoints of one training run, by name; two
            or more are drawn as a learning curve.
        adastop: the test and its decisions, if the agents were compared with early stopping.
    """
    sections = [
        head(f"Evaluation: {results[0].table['protocol']['name']}"),
        *_summary(results),
        *_specifications(results),
        *_videos(path.parent, results),
        *_curve(results, steps or {}),
        *_compared(comparisons),
        *(_early_stopping(*adastop) if adastop else ()),
        "<h2>Scores</h2>",
        f"<figure>{histogram({result.name: result.column('score') for result in results})}</figure>",
        *_protocol(results),
        FOOT,
    ]
    write_atomically(path, "\n".join(sections).encode())


def summary_table(results: Sequence[Result]) -> Table:
    """Success with both intervals, score and, where there is one, cost with their intervals, one
    row per agent."""
    percent = f"{100 * results[0].table['confidence']:g} %"
    headings = (
        "agent",
        "solved",
        "rate",
        f"Wilson {percent}",
        "Clopper-Pearson",
        "score",
        "bootstrap",
        "steps",
    )
    costs = any("cost" in result.table for result in results)
    headings = (*headings, "cost", f"bootstrap {percent}") if costs else headings
    rows = []
    for result in results:
        metrics, success = result.table, result.table["success"]
        rows.append(
            (
                result.name,
                f"{success['k']} of {success['n']}",
                f"{success['k'] / success['n']:.3f}",
                f"{success['low']:.3f} to {success['high']:.3f}",
                f"{success['exact_low']:.3f} to {success['exact_high']:.3f}",
                f"{metrics['score']:.3f}",
                f"{metrics['score_low']:.3f} to {metrics['score_high']:.3f}",
                f"{metrics['mean_steps']:.1f}",
                *(_cost_cells(metrics) if costs else ()),
            )
        )
    return headings, rows


def _cost_cells(metrics: Mapping[str, Any]) -> tuple[str, str]:
    """Mean cost of an episode and its interval; empty for environments without a cost."""
    if "cost" not in metrics:
        return "", ""
    return f"{metrics['cost']:.2f}", f"{metrics['cost_low']:.2f} to {metrics['cost_high']:.2f}"


def specification_tables(results: Sequence[Result]) -> list[Table]:
    """One table of the share of the episodes that satisfy each specification, and of their
    robustness; empty without specifications."""
    percent = f"{100 * results[0].table['confidence']:g} %"
    headings = (
        "agent",
        "specification",
        "satisfied",
        "share",
        f"Wilson {percent}",
        "smallest robustness",
        "mean",
    )
    rows = [
        (
            result.name,
            name,
            f"{share['k']} of {share['n']}",
            f"{share['k'] / share['n']:.3f}",
            f"{share['low']:.3f} to {share['high']:.3f}",
            *("" if share[key] is None else f"{share[key]:.4g}" for key in ("smallest", "mean")),
        )
        for result in results
        for name, share in result.table.get("specifications", {}).items()
    ]
    return [(headings, rows)] if rows else []


def comparison_tables(comparisons: Sequence[Comparison]) -> list[Table]:
    """One table of all comparisons with the reference; empty without comparisons."""
    if not comparisons:
        return []
    headings = (
        f"against {comparisons[0].reference}",
        "score",
        "interval",
        "only agent solved",
        "only reference solved",
        "p",
    )
    rows = []
    for each in comparisons:
        score, success = each.score, each.success
        rows.append(
            (
                each.agent,
                f"{score['mean']:+.3f}",
                f"{score['low']:+.3f} to {score['high']:+.3f}",
                str(success["only_second"]),
                str(success["only_first"]),
                f"{success['p_value']:.3g}",
            )
        )
    return [(headings, rows)]


def decision_table(test: AdaStop, decisions: Sequence[PairDecision]) -> Table:
    """AdaStop's decisions in order, followed by the undecided pairs."""
    n = test.config.n
    rows = [(d.better, d.worse, f"{d.difference:+.3f}", str((d.stage + 1) * n)) for d in decisions]
    rows += [(*pair, "not significant", str(test.stage * n)) for pair in test.undecided]
    return ("better", "worse", "difference", "episodes each"), rows


def _summary(results: Sequence[Result]) -> Iterator[str]:
    protocol = results[0].table["protocol"]
    yield f"<h1>{html.escape(protocol['name'])}</h1>"
    yield f"<p class='soft'>{html.escape(protocol['engine'])}, {html.escape(protocol['task'])}: "
    yield f"{protocol['episodes']} episodes from seed {protocol['first_seed']}, "
    yield f"at most {protocol['max_steps']} steps each</p>"
    yield table(*summary_table(results))


def _specifications(results: Sequence[Result]) -> Iterator[str]:
    for headings, rows in specification_tables(results):
        yield "<h2>Specifications</h2>"
        yield table(headings, rows)
        formulas = {
            name: share["formula"]
            for result in results
            for name, share in result.table.get("specifications", {}).items()
        }
        for name, formula in formulas.items():
            yield f"<p class='soft'>{html.escape(name)}: <code>{html.escape(formula)}</code></p>"


def _videos(folder: Path, results: Sequence[Result]) -> Iterator[str]:
    """Videos of all agents, failures first."""
    videos = [(result, entry) for result in results for entry in result.table["videos"]]
    for success, title in ((False, "Failures"), (True, "Successes")):
        group = [(result, entry) for result, entry in videos if entry["success"] == success]
        if group:
            yield f"<h2>{title}</h2><div class='tiles'>"
        for result, entry in group:
            source = os.path.relpath(result.folder / entry["file"], folder)
            note = (
                ""
                if entry["exact"]
                else "; the replay is not deterministic, so it differs from the evaluated episode"
            )
            yield video(source, f"{result.name}, seed {entry['seed']}{note}")
        if group:
            yield "</div>"
    for result in results:
        if "no_videos" in result.table:
            yield f"<p class='soft'>{html.escape(result.name)}: no videos, {html.escape(result.table['no_videos'])}</p>"


def _curve(results: Sequence[Result], steps: Mapping[str, int]) -> Iterator[str]:
    points = [
        Point(steps[r.name], r.table["score"], r.table["score_low"], r.table["score_high"])
        for r in results
        if r.name in steps
    ]
    if len({point.step for point in points}) > 1:
        yield f"<h2>Learning curve</h2><figure>{learning_curve(points)}</figure>"


def _compared(comparisons: Sequence[Comparison]) -> Iterator[str]:
    for headings, rows in comparison_tables(comparisons):
        yield "<h2>Paired by seed</h2>"
        yield table(headings, rows)
        yield "<p class='soft'>Bootstrap interval of the mean difference in score, exact McNemar test of success. "
        yield "Each row is a separate test, without correction for multiple comparisons.</p>"


def _early_stopping(test: AdaStop, decisions: Sequence[PairDecision]) -> Iterator[str]:
    config = test.config
    yield "<h2>AdaStop</h2>"
    yield table(*decision_table(test, decisions))
    yield f"<p class='soft'>Up to {config.stages} stages of {config.n} episodes, {config.permutations} permutations. "
    yield f"The probability of any wrong decision is at most {config.alpha:g}.</p>"


def _protocol(results: Sequence[Result]) -> Iterator[str]:
    yield "<h2>Protocol</h2>"
    # Protocols in one report differ only after early stopping, in the number of episodes.
    for digest in dict.fromkeys(result.table["protocol_digest"] for result in results):
        group = [result for result in results if result.table["protocol_digest"] == digest]
        statement = html.escape(json.dumps(group[0].table["protocol"], indent=2))
        names = html.escape(", ".join(result.name for result in group))
        yield f"<p>{names}: sha256 <code>{digest}</code></p><pre>{statement}</pre>"
    for result in results:
        execution = html.escape(json.dumps(result.table["execution"], indent=2))
        yield f"<details><summary>execution of {html.escape(result.name)}</summary><pre>{execution}</pre></details>"
