"""Stage `deploy`: runs a bundle on the twin and records the episodes, which the gate judges."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from flows.artifacts import Bundle, Episodes, Output
from flows.deployment.config import INFERENCES
from flows.stages.release.config import DeployBundleConfig
from robots.interfaces import Progress

EXCLUSIVE = True
FIXED_SEEDS = True
# The same pictures are not always encoded to the same bytes.
TELEMETRY = (INFERENCES, "*.mp4")


def run(
    config: DeployBundleConfig, out: Path, progress: Progress, *, bundle: Bundle
) -> Output[Episodes]:
    """Runs `bundle` from every start; writes `store.zarr`, a plot and videos
    to `out`.

    Raises:
        HandoffError: the policy does not fit the table or its robot.
    """
    from flows.deployment.config import DeployConfig
    from flows.deployment.push_t_table import PushTTable
    from flows.deployment.task_table import TaskTable
    from flows.deployment.twin import deploy_at_twin

    table = config.table
    make = (
        partial(PushTTable, table) if isinstance(table, DeployConfig) else partial(TaskTable, table)
    )
    return Output(deploy_at_twin(table, bundle, make, out, progress))
