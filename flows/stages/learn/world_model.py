"""Stage `world_model`: trains a world model on play and renders imagined steps next to recorded
ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.artifacts import Episodes, Output, WorldModel
from flows.stages.learn.config import TRAINING_TELEMETRY
from policies.world_model.config import WorldModelConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

# The same pictures are not always encoded to the same bytes.
TELEMETRY = (*TRAINING_TELEMETRY, "*.mp4")

STRIP, VIDEO = "imagined.png", "imagined.mp4"
EPISODES = 2
"""Number of held-out episodes that are rendered."""
STEPS = 120
"""Number of steps rendered per episode."""


def run(
    config: WorldModelConfig,
    out: Path,
    progress: Progress,
    *,
    play: Episodes,
) -> Output[WorldModel]:
    """Trains on `play`, resuming an interrupted attempt in `out`.

    Raises:
        HandoffError: see `policies.world_model.train.train_world_model`.
    """
    from policies.world_model.train import train_world_model

    metrics = train_world_model(config, play, out, progress)
    return Output(metrics | _render(config, play, out))


def _render(config: WorldModelConfig, play: Path, out: Path) -> dict[str, Any]:
    """Writes `imagined.png` and `imagined.mp4`; without a renderer the metrics state the reason."""
    from policies.world_model.held_out import imagine_held_out
    from robots.episodes.store import EpisodeStore
    from sim.make import find_task
    from sim.rendering.replay import render_observations

    pairs = imagine_held_out(out, config, play, EPISODES, STEPS)
    robot = EpisodeStore.open(play / "store.zarr").schema.robot
    task = find_task(pairs.task, robot=robot) if robot else find_task(pairs.task)
    try:
        frames = [[render_observations(task, side) for side in pair] for pair in pairs.episodes]
    except HandoffError as error:
        return {"no_pictures": str(error)}
    _write(frames, pairs.rate_hz, out)
    return {"pictures": [STRIP, VIDEO]}


def _write(frames: list[list[Any]], rate_hz: float, out: Path) -> None:
    """Writes the frames (T, H, W, 3) of every episode, recorded and imagined, as a strip and a
    video."""
    import numpy as np

    from flows.reports.plots import draw_imagined
    from sim.rendering.video import write_video

    draw_imagined(frames, rate_hz, out / STRIP)
    side_by_side = [np.concatenate(pair, axis=2) for pair in frames]
    write_video(out / VIDEO, list(np.concatenate(side_by_side)), rate_hz)
