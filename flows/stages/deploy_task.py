"""Stage `deploy` of a simulated task: the gated bundle drives the twin and its hand at the task's
table."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.deployment.config import DeployTaskConfig
from robots.interfaces import Progress


def run(
    config: DeployTaskConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Runs `inputs["bundle"]` from every start; writes `store.zarr`, a picture and videos to
    `out`."""
    from flows.deployment.task_table import TaskTable
    from flows.deployment.twin import deploy_at_twin

    return deploy_at_twin(config, inputs["bundle"], partial(TaskTable, config), out, progress)
