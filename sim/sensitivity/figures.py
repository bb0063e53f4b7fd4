"""Computes the figures of a sensitivity measurement: intervals, paired differences, and the
influence of every factor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from robots.config import to_plain
from sim.evaluation.groups import holm
from sim.evaluation.intervals import success_rate
from sim.evaluation.protocol import protocol_statement
from sim.evaluation.robustness import correct_differences, success_difference
from sim.sensitivity.design import ranged
from sim.sensitivity.factors import DUMMY, nominal
from sim.sensitivity.importance import log_odds, permutation_test, slices, success_by_slice
from sim.sensitivity.measure import NOMINAL, Sensitivity, conditions, start_of

SLICES = 5
"""Slices of a factor's range in which success over the design is compared."""


def sensitivity_figures(measured: Sensitivity) -> dict[str, Any]:
    """JSON-ready figures of a measurement.

    Returns:
        `conditions`: per value and agent `success` (`intervals.success_rate`) and the paired
        difference from the nominal condition, `against_nominal`, and for every agent but the first
        from the first one, `against_first`, with `p_holm` over all rows of its kind.
        `design`: None without a factor that has a range, or per agent the `success` over its
        points, its paired differences as above, and for every factor `share`, `chance`, `p_value`
        (`importance.permutation_test`), `p_holm` over the factors, `important` (`p_holm` below one
        minus the confidence), `log_odds` with its interval, and success by `slices` between
        `edges`.
        `factors`: options and nominal value of every factor.
    """
    factors = measured.config.factors
    plain = {name: to_plain(factor) for name, factor in factors.items()}
    return {
        "protocol": protocol_statement(measured.protocol),
        "confidence": measured.confidence,
        "agents": list(measured.solved),
        "factors": {
            name: {**plain[name], "nominal": nominal(factor, measured.protocol)}
            for name, factor in factors.items()
        },
        "conditions": _condition_rows(measured),
        "design": None if len(measured.unit) == 0 else _design(measured),
    }


def _condition_rows(measured: Sensitivity) -> list[dict[str, Any]]:
    first = next(iter(measured.solved))
    rows: list[dict[str, Any]] = []
    for condition in conditions(measured.protocol, measured.config.factors):
        agents: dict[str, dict[str, Any]] = {}
        for agent, solved in measured.solved.items():
            own = solved[condition.name]
            agents[agent] = {"success": success_rate(own, measured.confidence)}
            if condition.factor is not None:
                agents[agent]["against_nominal"] = success_difference(
                    solved[NOMINAL], own, measured.confidence
                )
            if agent != first:
                agents[agent]["against_first"] = success_difference(
                    measured.solved[first][condition.name], own, measured.confidence
                )
        value = None if condition.factor is None else condition.values[condition.factor]
        rows.append(
            {"name": condition.name, "factor": condition.factor, "value": value, "agents": agents}
        )
    _correct([agent for row in rows for agent in row["agents"].values()])
    return rows


def _design(measured: Sensitivity) -> dict[str, Any]:
    starts = start_of(measured.protocol, len(measured.unit))
    first = next(iter(measured.design_solved))
    agents: dict[str, dict[str, Any]] = {}
    for agent, solved in measured.design_solved.items():
        alone = measured.solved[agent][NOMINAL][starts]
        agents[agent] = {
            "success": success_rate(solved, measured.confidence),
            "against_nominal": success_difference(alone, solved, measured.confidence),
            "factors": _influences(measured, solved),
        }
        if agent != first:
            agents[agent]["against_first"] = success_difference(
                measured.design_solved[first], solved, measured.confidence
            )
    _correct(list(agents.values()))
    return {
        **to_plain(measured.config.design),
        "slices": SLICES,
        "agents": agents,
    }


def _influences(measured: Sensitivity, solved: np.ndarray) -> list[dict[str, Any]]:
    """The influence of every factor of the design, and of the one without an effect."""
    within = ranged(measured.config.factors)
    bounds = {name: (factor.low, factor.high) for name, factor in within.items()}
    bounds[DUMMY] = (0.0, 1.0)
    places = np.linspace(0.0, 1.0, SLICES + 1)
    edges = {name: [float(factor.place(at)) for at in places] for name, factor in within.items()}
    edges[DUMMY] = places.tolist()
    odds = log_odds(measured.unit, solved, measured.confidence)
    rows: list[dict[str, Any]] = []
    for column, (name, (low, high)) in enumerate(bounds.items()):
        groups = slices(measured.unit[:, column], SLICES)
        rows.append(
            {
                "name": name,
                "low": low,
                "high": high,
                **permutation_test(solved, groups, measured.confidence),
                "log_odds": dict(zip(("mean", "low", "high"), odds[column].tolist(), strict=True)),
                "edges": edges[name],
                "slices": success_by_slice(solved, groups, SLICES, measured.confidence),
            }
        )
    for row, p_holm in zip(rows, holm([row["p_value"] for row in rows]), strict=True):
        row["p_holm"] = p_holm
        row["important"] = p_holm < 1.0 - measured.confidence
    return rows


def _correct(agents: Sequence[Mapping[str, Any]]) -> None:
    for kind in ("against_nominal", "against_first"):
        correct_differences([agent[kind] for agent in agents if kind in agent])
