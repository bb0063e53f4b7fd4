"""Stage `world_model`: play to a frozen model of it, with imagined steps drawn beside recorded
ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.world_model.config import WorldModelConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

STRIP, FILM = "imagined.png", "imagined.mp4"
EPISODES = 2
"""Held-out episodes that are drawn."""
STEPS = 120
"""Of each."""


def run(
    config: WorldModelConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Trains on `inputs["play"]`, resuming from what an interrupted attempt left in `out`.

    Raises:
        HandoffError: see `policies.world_model.train.train_world_model`.
    """
    from policies.world_model.train import train_world_model

    metrics = train_world_model(config, inputs["play"], out, progress)
    return metrics | _draw(config, inputs["play"], out)


def _draw(config: WorldModelConfig, play: Path, out: Path) -> dict[str, Any]:
    """Writes `imagined.png` and `imagined.mp4`; a machine that cannot draw says so in the
    metrics."""
    from policies.world_model.train import imagine_held_out
    from robots.episodes.store import EpisodeStore
    from sim.make import find_task
    from sim.rendering.replay import redraw

    pairs = imagine_held_out(out, config, play, EPISODES, STEPS)
    robot = EpisodeStore.open(play / "store.zarr").schema.robot
    task = find_task(pairs.task, robot=robot) if robot else find_task(pairs.task)
    try:
        frames = [[redraw(task, side) for side in pair] for pair in pairs.episodes]
    except HandoffError as error:
        return {"no_pictures": str(error)}
    _write(frames, pairs.rate_hz, out)
    return {"pictures": [STRIP, FILM]}


def _write(frames: list[list[Any]], rate_hz: float, out: Path) -> None:
    """Frames (T, H, W, 3) of every episode, recorded and imagined."""
    import numpy as np

    from flows.reports.plots import draw_imagined
    from sim.rendering.video import write_video

    draw_imagined(frames, rate_hz, out / STRIP)
    side_by_side = [np.concatenate(pair, axis=2) for pair in frames]
    write_video(out / FILM, list(np.concatenate(side_by_side)), rate_hz)
