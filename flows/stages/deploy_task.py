"""Stage `deploy` of a simulated task: runs the gated bundle on the twin and its gripper, at the
task's table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.deployment.config import DeployTaskConfig
from robots.interfaces import Progress


def run(
    config: DeployTaskConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Runs `inputs["bundle"]` from every start; writes `store.zarr`, a plot and videos to `out`."""
    from flows.deployment.task_table import TaskTable
    from flows.deployment.twin import deploy_at_twin

    return deploy_at_twin(config, inputs["bundle"], partial(TaskTable, config), out, progress)
