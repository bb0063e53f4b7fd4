"""Writes the success of policies over a family of environments: figures as JSON, a chart, and a
page."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from robots.config import to_plain
from robots.html_page import FOOT, head, heading, picture, table
from robots.storage.durable import write_atomically
from sim.environment_families.evaluation import FamilyEvaluation
from sim.environment_families.members import NOMINAL, values_text
from sim.evaluation.charts import COLOURS
from sim.evaluation.evaluate import BOOTSTRAP_SEED
from sim.evaluation.groups import holm
from sim.evaluation.intervals import mcnemar, paired_difference, success_rate
from sim.evaluation.protocol import protocol_statement
from sim.evaluation.report import Table

FIGURES = "family_scores.json"
CHART = "family_scores.png"
REPORT = "report.html"


def family_figures(measured: FamilyEvaluation) -> dict[str, Any]:
    """JSON-ready figures of an evaluation over a family.

    Returns:
        `members`: per member its `name`, `values` and by agent `success`
        (`intervals.success_rate`).
        `agents`: per agent `nominal`, the success in the member of that name (None without one);
        `mean` over the members with a bootstrap interval over members; the `worst` member's name
        with its `success` and that from new starts, `again`; and for all but the first
        `against_first`: the difference of `mean`, paired by member, and `worst_member`, McNemar's
        test between the two agents in the first agent's worst member, with `p_holm` over the
        agents.
    """
    names = [member.name for member in measured.family.members]
    agents: dict[str, dict[str, Any]] = {}
    first = next(iter(measured.solved))
    for agent, solved in measured.solved.items():
        rates = solved.mean(axis=1)
        lowest = measured.worst[agent]
        agents[agent] = {
            "nominal": None,
            "mean": _mean_over_members(rates, measured.confidence),
            "worst": {
                "member": names[lowest],
                "success": success_rate(solved[lowest], measured.confidence),
                "again": success_rate(measured.worst_again[agent], measured.confidence),
            },
        }
        if NOMINAL in names:
            own = solved[names.index(NOMINAL)]
            agents[agent]["nominal"] = success_rate(own, measured.confidence)
        if agent != first:
            at = measured.worst[first]
            agents[agent]["against_first"] = {
                **paired_difference(
                    measured.solved[first].mean(axis=1),
                    rates,
                    BOOTSTRAP_SEED,
                    measured.confidence,
                ),
                "worst_member": {
                    "member": names[at],
                    **mcnemar(measured.solved[first][at], solved[at]),
                },
            }
    tests = [each["against_first"]["worst_member"] for each in list(agents.values())[1:]]
    for test, p_holm in zip(tests, holm([each["p_value"] for each in tests]), strict=True):
        test["p_holm"] = p_holm
    return {
        "protocol": protocol_statement(measured.protocol),
        "confidence": measured.confidence,
        "factors": to_plain(measured.family.factors),
        "agents": agents,
        "members": [
            {
                "name": member.name,
                "values": dict(member.values),
                "success": {
                    agent: success_rate(solved[i], measured.confidence)
                    for agent, solved in measured.solved.items()
                },
            }
            for i, member in enumerate(measured.family.members)
        ],
    }


def _mean_over_members(rates: np.ndarray, confidence: float) -> dict[str, float]:
    return paired_difference(np.zeros(len(rates)), rates, BOOTSTRAP_SEED, confidence)


def write_family_evaluation(measured: FamilyEvaluation, out: Path) -> dict[str, Any]:
    """Writes `family_scores.json` with every episode, a chart and `report.html` to the folder
    `out`; returns the figures."""
    figures = family_figures(measured)
    seeds = measured.protocol.seeds
    episodes = {
        "seeds": list(seeds),
        "seeds_again": list(range(seeds.stop, seeds.stop + len(seeds))),
        "solved": {agent: solved.tolist() for agent, solved in measured.solved.items()},
        "solved_again": {agent: each.tolist() for agent, each in measured.worst_again.items()},
    }
    text = json.dumps({**figures, **episodes})
    write_atomically(out / FIGURES, f"{text}\n".encode())
    draw_family_evaluation(measured, out / CHART)
    write_atomically(out / REPORT, "".join(_page(measured, figures)).encode())
    return figures


def family_tables(figures: Mapping[str, Any]) -> dict[str, Table]:
    """Tables of the figures by title."""
    percent = f"{100 * figures['confidence']:g} %"
    rows: list[tuple[str, ...]] = []
    for name, agent in figures["agents"].items():
        nominal = agent["nominal"]
        mean, worst = agent["mean"], agent["worst"]
        against = agent.get("against_first")
        rows.append(
            (
                name,
                "" if nominal is None else _rate(nominal),
                f"{mean['mean']:.3f} ({mean['low']:.3f} to {mean['high']:.3f})",
                worst["member"],
                _rate(worst["success"]),
                _rate(worst["again"]),
                ""
                if against is None
                else f"{against['mean']:+.3f} ({against['low']:+.3f} to {against['high']:+.3f})",
                "" if against is None else f"{against['worst_member']['p_holm']:.3g}",
            )
        )
    first = next(iter(figures["agents"]))
    headings = (
        "agent",
        "nominal",
        f"mean over members, {percent}",
        "worst member",
        "solved there",
        "again",
        f"mean against {first}, {percent}",
        f"p (Holm) in the worst member of {first}",
    )
    members = [
        (
            member["name"],
            values_text(member["values"]),
            *(_rate(success) for success in member["success"].values()),
        )
        for member in figures["members"]
    ]
    return {
        "Policies": (headings, rows),
        "Members": (("member", "parameters", *figures["agents"]), members),
    }


def draw_family_evaluation(measured: FamilyEvaluation, path: Path) -> None:
    """Plots the sorted success rates of all members, one line per agent, and beside them the
    nominal success and that of the worst member from new starts with Wilson intervals."""
    from matplotlib.figure import Figure

    figures = family_figures(measured)
    figure = Figure(figsize=(9.6, 4.0), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    names = list(measured.solved)
    for index, (agent, solved) in enumerate(measured.solved.items()):
        colour = COLOURS[index % len(COLOURS)]
        rates = np.sort(solved.mean(axis=1))
        left.plot(np.linspace(0.0, 1.0, len(rates)), rates, color=colour, label=agent)
        own = figures["agents"][agent]
        for shift, row, marker in (
            (-0.12, own["nominal"], "o"),
            (0.12, own["worst"]["again"], "v"),
        ):
            if row is None:
                continue
            rate = row["k"] / row["n"]
            ends = np.maximum([[rate - row["low"]], [row["high"] - rate]], 0.0)
            right.errorbar(
                [index + shift], [rate], yerr=ends, color=colour, marker=marker, capsize=3
            )
    left.set_xlabel("share of the members, the hardest first")
    left.set_ylabel("success")
    left.legend(frameon=False, fontsize=8)
    right.set_xticks(range(len(names)), names, fontsize=8, rotation=20, ha="right")
    right.set_title("nominal (circle), worst member again (triangle)", fontsize=9)
    for axes in (left, right):
        axes.set_ylim(-0.03, 1.03)
        axes.grid(alpha=0.3)
    figure.savefig(path, dpi=120)


def _rate(success: Mapping[str, Any]) -> str:
    return f"{success['k']} of {success['n']} ({success['low']:.2f} to {success['high']:.2f})"


def _page(measured: FamilyEvaluation, figures: Mapping[str, Any]) -> Iterator[str]:
    protocol = figures["protocol"]
    yield head(f"Family of environments: {protocol['name']}")
    yield f"<h1>{len(measured.family.members)} environments of {html.escape(protocol['name'])}</h1>"
    yield f"<p class='soft'>{html.escape(protocol['engine'])}, {html.escape(protocol['task'])}: "
    yield f"{protocol['episodes']} episodes from seed {protocol['first_seed']} in every member, the "
    yield "same for all agents; as many from the next seeds in each agent's worst member</p>"
    yield picture(CHART, "Success in all members, sorted, and in the nominal and the worst one.")
    for title, each in family_tables(figures).items():
        yield heading(title)
        yield table(*each)
        yield f"<p class='soft'>{_NOTES[title]}</p>"
    yield FOOT


_NOTES = {
    "Policies": "Wilson intervals of single members. The mean and its difference have a bootstrap interval over "
    "members. The success in the worst member is the lowest of many, so it is low by chance, too; `again`, from new "
    "starts, is not. p: McNemar's test on the same starts, with Holm's correction over the agents.",
    "Members": f"Parameters that differ from the protocol's environments; '{NOMINAL}' has none.",
}
