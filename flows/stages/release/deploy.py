"""Stage `deploy`: runs a bundle on the twin and records the episodes, which the gate judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from flows.artifacts import Bundle, Dynamics, Episodes, Gate, Output
from flows.deployment.config import INFERENCES
from flows.runner.artifact import read_manifest
from flows.stages.release.config import DeployBundleConfig
from robots.errors import HandoffError
from robots.franka import find_robot
from robots.interfaces import Progress
from sim.identification.config import TuneStoreConfig
from sim.identification.parameters import parameters_of
from sim.scene.deviations import CONTROLLED, Deviations

EXCLUSIVE = True
FIXED_SEEDS = True
# The same pictures are not always encoded to the same bytes.
TELEMETRY = (INFERENCES, "*.mp4")


def check(config: DeployBundleConfig, sources: Mapping[str, Any]) -> None:
    """Refuses deviations from two sources, and tuned gains, which are not the twin's."""
    if "dynamics" not in sources:
        return
    if config.table.twin.deviations != Deviations():
        raise HandoffError(
            "deploy: the option 'table.twin.deviations' and the input 'dynamics' both say how the twin differs. Remove "
            "one of them."
        )
    tuning = sources["dynamics"]
    if isinstance(tuning, TuneStoreConfig):
        robot = find_robot(tuning.tracking.robot)
        gains = [
            item.name for item in parameters_of(tuning.parameters, robot) if item.what in CONTROLLED
        ]
        if gains:
            raise HandoffError(
                f"deploy: the tuning has {gains[0]}, which is the driver's and not the twin's. Tune with `parameters: "
                "{kind: listed, items: ..}` without gains."
            )


def run(
    config: DeployBundleConfig,
    out: Path,
    progress: Progress,
    *,
    bundle: Bundle,
    gate: Gate | None = None,
    dynamics: Dynamics | None = None,
) -> Output[Episodes]:
    """Runs `bundle` from every start; writes `store.zarr`, a plot and videos
    to `out`. With `gate`, nothing moves before it has let the bundle pass; with `dynamics`, the
    twin has the tuned parameters.

    Raises:
        HandoffError: the policy does not fit the table or its robot, another bundle passed the
            gate, or dynamics that a twin cannot have.
    """
    if gate is not None:
        passed = read_manifest(gate)["inputs"].get("bundle")
        if passed != read_manifest(bundle)["digest"]:
            raise HandoffError(
                f"deploy: {gate.name} let another bundle pass than {bundle.name}. Give both the same bundle."
            )
    from flows.deployment.config import DeployConfig
    from flows.deployment.push_t_table import PushTTable
    from flows.deployment.task_table import TaskTable
    from flows.deployment.twin import deploy_at_twin
    from sim.identification.fit_store import read_dynamics
    from sim.scene.deviations import deviations_of

    table = config.table
    if dynamics is not None:
        deviations = deviations_of(read_dynamics(dynamics))
        table = replace(table, twin=replace(table.twin, deviations=deviations))
    make = (
        partial(PushTTable, table) if isinstance(table, DeployConfig) else partial(TaskTable, table)
    )
    return Output(deploy_at_twin(table, bundle, make, out, progress))
