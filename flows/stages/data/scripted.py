"""Stage `scripted`: records demonstrations of a simulated task by its scripted expert in MuJoCo."""

from __future__ import annotations

import shutil
from pathlib import Path

from flows.artifacts import Episodes, Output
from flows.stages.data.config import ScriptedConfig
from robots.errors import HandoffError
from robots.interfaces import Progress


def run(config: ScriptedConfig, out: Path, progress: Progress) -> Output[Episodes]:
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
    metrics = {
        "episodes": recorded.episodes,
        "frames": recorded.steps,
        "source": "scripted",
        "source_line": line,
    }
    return Output(metrics)
