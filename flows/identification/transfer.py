"""Compares deployments from the same starts in pairs, and tuned parameters with true ones."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

from flows.evaluation.pairs import compare_pairs
from flows.identification.config import CompareDeploymentsConfig
from flows.runner.artifact import read_manifest
from robots.errors import HandoffError
from sim.identification.report import FIGURES
from sim.scene.deviations import Deviations
from sim.scene.dynamics import UNITS


def compare_deployments(
    deployments: Sequence[Path], tuning: Path | None, config: CompareDeploymentsConfig
) -> dict[str, Any]:
    """Success of every deployment, all paired differences, and the parameters.

    Args:
        deployments: artifacts of stages that deploy to the twin.
        tuning: artifact of a stage that tunes; None leaves the parameters out.
        config: true values and confidence.

    Returns:
        `deployments`, one row each with `success`; `pairs`, with the mean paired difference and
        its bootstrap interval, the starts that one of them alone solved, McNemar's `p_value` and
        `p_holm`; `parameters`, one row for each true value; `unidentified`, names of true values
        that were not tuned.

    Raises:
        HandoffError: other starts, or a true value that was tuned with other joints.
    """
    from sim.evaluation.intervals import success_rate

    solved = {}
    rows = []
    for folder in deployments:
        manifest = read_manifest(folder)
        starts = {start["seed"]: start for start in manifest["metrics"]["per_start"]}
        solved[manifest["stage"]] = {seed: bool(each["success"]) for seed, each in starts.items()}
        rows.append(
            {
                "name": manifest["stage"],
                "success": success_rate(
                    [bool(each["success"]) for each in starts.values()], config.confidence
                ),
                "faults": manifest["metrics"]["faults"],
                "seconds": sum(each["seconds"] for each in starts.values()) / len(starts),
            }
        )
    check_same_starts(solved)
    pairs = [
        ({"first": first, "second": second}, solved[first], solved[second])
        for first, second in combinations(solved, 2)
    ]
    tuned = {} if tuning is None else json.loads((tuning / FIGURES).read_text())["parameters"]
    parameters, missing = identified(config.deviations, tuned)
    return {
        "confidence": config.confidence,
        "deployments": rows,
        "pairs": compare_pairs(pairs, config.seed, config.confidence),
        "parameters": parameters if tuning is not None else [],
        "unidentified": missing if tuning is not None else [],
    }


def check_same_starts(solved: Mapping[str, Mapping[int, bool]]) -> None:
    """Checks that all deployments began from the same starts.

    Raises:
        HandoffError: two of them differ.
    """
    first, *others = solved
    for other in others:
        apart = sorted(solved[first].keys() ^ solved[other].keys())
        if apart:
            raise HandoffError(
                f"compare_deployments: {first} and {other} differ in {len(apart)} starts, such as seed {apart[0]}. "
                "Give them the same `starts` and `first_seed`."
            )


def identified(
    truth: Deviations, tuned: Mapping[str, Mapping[str, Any]]
) -> tuple[list[dict[str, Any]], list[str]]:
    """Rows of the true values that were tuned, and the names of those that were not.

    Args:
        truth: values of the twin.
        tuned: `parameters` of a tuning's figures, by name.
    """
    rows = []
    missing = []
    for item in truth.arm:
        found = tuned.get(item.name)
        if found is None:
            missing.append(item.name)
            continue
        low, high = found["interval_95"]
        rows.append(
            {
                "name": item.name,
                "unit": UNITS[item.what],
                "true": item.value,
                "tuned": found["value"],
                "low": low,
                "high": high,
                "inside": low <= item.value <= high,
                "determined": found["determined"],
            }
        )
    for item in truth.objects:
        missing.append(f"{item.what} of {', '.join(item.names)}")
    return rows, missing
