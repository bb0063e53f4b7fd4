"""Compares episodes at the twin with the robot's limits."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from flows.gating.conditions import (
    Condition,
    at_least,
    at_most,
    not_evaluated,
    specification_conditions,
)
from flows.gating.config import TwinLimits, tracking_limit
from flows.runner.artifact import read_manifest
from robots.control.actions import StepSpace

NAMES = (
    "success at the twin",
    "faults at the twin",
    "tracking at the twin",
    "torque rate at the twin",
    "contact at the twin",
)
STORE = "store.zarr"


def twin_conditions(
    limits: TwinLimits | None,
    twin: Path | None,
    bundle_digest: str | None,
    steps: StepSpace | None = None,
) -> list[Condition]:
    """Returns the conditions on the episodes at the twin.

    Args:
        limits: limits; None waives the twin.
        twin: artifact of a stage `deploy`; None if there is none.
        bundle_digest: digest of the bundle that must have been deployed; None if it is no artifact.
        steps: steps of the bundle's actions; None for streamed positions.
    """
    if limits is None:
        note = "the recipe's limits say twin: null"
        return [Condition("twin", "waived", note=note)]
    if twin is None:
        reason = "there is no input 'twin', the episodes of a stage that uses deploy"
        return [not_evaluated("twin", reason)]
    manifest = read_manifest(twin)
    if manifest["inputs"].get("bundle") != bundle_digest:
        reason = f"{manifest['stage']} ran another bundle"
        return [not_evaluated("twin", reason)]
    return [
        *_outcomes(limits, manifest["metrics"], steps),
        *_margins(limits, twin, manifest),
        *specification_conditions(limits.specifications, manifest["metrics"], " at the twin"),
    ]


def _outcomes(
    limits: TwinLimits, metrics: Mapping[str, Any], steps: StepSpace | None
) -> Iterator[Condition]:
    rate = metrics["success"]
    yield at_least(
        NAMES[0],
        rate["low"],
        limits.min_success,
        note=f"{rate['k']} of {rate['n']} starts, 95 % interval up to {rate['high']:.3f}",
        details=dict(rate),
    )
    reasons = ", ".join(f"{name} {count}" for name, count in metrics["fault_reasons"].items())
    yield at_most(
        NAMES[1],
        metrics["faults"] / metrics["starts"],
        limits.max_faults,
        note=f"{metrics['faults']} of {metrics['starts']} starts"
        + (f": {reasons}" if reasons else ""),
    )
    tracked = [
        start["tracking_rms_m"] for start in metrics["per_start"] if "tracking_rms_m" in start
    ]
    if tracked:
        yield at_most(NAMES[2], max(tracked), tracking_limit(limits, steps), unit="m")
    else:
        yield not_evaluated(NAMES[2], "no start made a step")


def _margins(limits: TwinLimits, twin: Path, manifest: Mapping[str, Any]) -> Iterator[Condition]:
    """Shares of the robot's torque rate and of the contact thresholds, from the states that the
    robot sent every millisecond."""
    from robots.episodes.store import EpisodeStore
    from robots.franka import find_robot

    store = EpisodeStore.open(twin / STORE)
    robot = find_robot(store.schema.robot or manifest["metrics"]["robot"])
    threshold = np.array(manifest["config"]["table"]["arm"]["collision_torque"])
    rate, contact = 0.0, 0.0
    for episode in range(store.num_episodes):
        states = store.read(episode, "robot", ("tau_J_d", "tau_ext"))
        torque_rate = 1000.0 * np.abs(np.diff(states["tau_J_d"], axis=0)) / robot.limits.dtau_max
        rate = max(rate, float(torque_rate.max(initial=0.0)))
        if store.metadata(episode).get("fault") is None:
            contact = max(contact, float((np.abs(states["tau_ext"]) / threshold).max(initial=0.0)))
    note = f"{store.num_episodes} episodes, limit of the {robot.name}"
    yield at_most(NAMES[3], rate, limits.torque_rate_share, unit="of the limit", note=note)
    note = "starts without a fault"
    yield at_most(NAMES[4], contact, limits.contact_share, unit="of the threshold", note=note)
