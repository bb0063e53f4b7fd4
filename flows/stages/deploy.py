"""Stage `deploy`: runs the gated bundle on the twin at the push-T table and records the
episodes."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from flows.deployment.config import DeployConfig
from robots.interfaces import Progress


def run(
    config: DeployConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Runs `inputs["bundle"]` from every start; writes `store.zarr`, a plot and videos to `out`."""
    from flows.deployment.push_t_table import PushTTable
    from flows.deployment.twin import deploy_at_twin

    return deploy_at_twin(config, inputs["bundle"], partial(PushTTable, config), out, progress)
