"""Stage `ingest` of a simulated task: records demonstrations by its scripted expert in MuJoCo."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from flows.stages.config import ScriptedConfig
from robots.errors import HandoffError
from robots.interfaces import Progress


def run(
    config: ScriptedConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes `out/store.zarr`. An interrupted attempt restarts from the beginning; it takes
    seconds.

    Raises:
        HandoffError: an unknown task, or an expert that never succeeds.
    """
    from sim.make import find_task
    from sim.recording.demonstrations import demonstrate

    store = out / "store.zarr"
    shutil.rmtree(store, ignore_errors=True)
    seeds = range(config.first_seed, config.first_seed + config.episodes)
    task = find_task(config.task, robot=config.robot)
    recorded = demonstrate(task, seeds, store, config.demonstrate, progress)
    if not recorded.episodes:
        raise HandoffError(
            f"{config.task}: the scripted expert solved none of {config.episodes} attempts."
        )
    line = (
        f"the scripted expert of {config.task}: {recorded.episodes} of {config.episodes} attempts"
    )
    return {
        "episodes": recorded.episodes,
        "frames": recorded.steps,
        "source": "scripted",
        "source_line": line,
    }
