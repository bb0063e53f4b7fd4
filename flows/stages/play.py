"""Stage `play`: an arm plays with what a simulated task puts on the table, for a world model to
learn from."""

from __future__ import annotations

import shutil
from dataclasses import field
from pathlib import Path
from typing import Any

from robots.config import config
from robots.interfaces import Progress
from sim.recording.play import PlayConfig


@config
class RecordPlayConfig:
    """With what, and for how long."""

    task: str = "open_drawer"
    episodes: int = 400
    first_seed: int = 200_000
    """Of the first start: neither of demonstrations nor of protocols, which lie below."""
    play: PlayConfig = field(default_factory=lambda: PlayConfig(steps=250))


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
    task = find_task(config.task)
    seeds = range(config.first_seed, config.first_seed + config.episodes)
    made = play(task, seeds, store, config.play, progress)
    return {
        "episodes": made.episodes,
        "frames": made.steps,
        "hours": round(made.steps / task.rate_hz / 3600.0, 3),
        "success_rate": made.success_rate,
    }
