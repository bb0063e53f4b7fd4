"""Stage `play`: records play with the objects of a simulated task, as training data of a world
model."""

from __future__ import annotations

from pathlib import Path

from flows.artifacts import Episodes, Output
from flows.stages.data.config import RecordPlayConfig
from robots.interfaces import Progress


def run(config: RecordPlayConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Writes `out/store.zarr`; resumes an interrupted attempt at the first batch that is missing.

    Raises:
        HandoffError: an unknown task, or invalid options of play.
    """
    from sim.make import find_task
    from sim.recording.play import play

    store = out / "store.zarr"
    task = find_task(config.task, robot=config.robot)
    seeds = range(config.first_seed, config.first_seed + config.episodes)
    recorded = play(task, seeds, store, config.play, progress)
    metrics = {
        "episodes": recorded.episodes,
        "frames": recorded.steps,
        "hours": round(recorded.steps / task.rate_hz / 3600.0, 3),
        "success_rate": recorded.success_rate,
    }
    return Output(metrics)
