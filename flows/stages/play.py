"""Stage `play`: an arm plays with what a simulated task puts on the table, for a world model to
learn from."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from flows.stages.config import RecordPlayConfig
from robots.interfaces import Progress


def run(
    config: RecordPlayConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes `out/store.zarr`; an interrupted attempt starts over, it takes minutes at most.

    Raises:
        HandoffError: an unknown task, or play that cannot be.
    """
    from sim.make import find_task
    from sim.recording.play import play

    store = out / "store.zarr"
    shutil.rmtree(store, ignore_errors=True)
    task = find_task(config.task, robot=config.robot)
    seeds = range(config.first_seed, config.first_seed + config.episodes)
    made = play(task, seeds, store, config.play, progress)
    return {
        "episodes": made.episodes,
        "frames": made.steps,
        "hours": round(made.steps / task.rate_hz / 3600.0, 3),
        "success_rate": made.success_rate,
    }
