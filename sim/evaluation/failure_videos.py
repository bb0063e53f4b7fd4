"""Videos of chosen episodes, failed ones first: their recorded actions are taken again in worlds
that show pictures."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, runtime_checkable
from typing import Protocol as Interface

import numpy as np

from robots.interfaces import Observation, VecEnv
from sim.evaluation.agent import ReplayAgent
from sim.evaluation.protocol import Protocol
from sim.evaluation.rollout import EpisodeResult, rollout
from sim.rendering.video import write_video

SPEED = 2.0
"""Of the videos, times real time."""


@runtime_checkable
class DrawableEnv(Interface):
    """Worlds that can draw themselves."""

    def render(self, world: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB picture of one world."""
        ...


def choose(episodes: Sequence[EpisodeResult], videos: int) -> list[EpisodeResult]:
    """Up to `videos` episodes, the failed ones first, each kind in the order of seeds.

    One place is kept for a success, to show what was meant; the failures take the rest, as far as
    there are any.
    """
    failed = [episode for episode in episodes if not episode.success]
    solved = [episode for episode in episodes if episode.success]
    failures = failed[: max(videos - 1, videos - len(solved), min(videos, 1))]
    return [*failures, *solved[: videos - len(failures)]]


def film(
    env: VecEnv, episodes: Sequence[EpisodeResult], protocol: Protocol, out: Path
) -> list[dict[str, Any]]:
    """Writes `failure-<seed>.mp4` and `success-<seed>.mp4` to `out`.

    Args:
        env: `len(episodes)` worlds that draw themselves, or observe images.
        episodes: as they were run.
        protocol: under which.
        out: existing folder.

    Returns:
        Per episode `seed`, `success`, `file` and `exact`: whether the worlds did the same again, so
        that the video shows the very episode. Empty when these worlds have nothing to show.
    """
    frames: list[list[np.ndarray]] = [[] for _ in episodes]

    def watch(observation: Observation) -> None:
        for world, shots in enumerate(frames):
            picture = _picture(env, observation, world)
            if picture is not None:
                shots.append(picture)

    again = rollout(
        ReplayAgent([episode.actions for episode in episodes]),
        env,
        [episode.seed for episode in episodes],
        max(episode.steps for episode in episodes),
        protocol.score,
        success=protocol.success,
        watch=watch,
    )
    if not frames[0]:
        return []
    shown = []
    for episode, repeated, shots in zip(episodes, again, frames, strict=True):
        name = f"{'success' if episode.success else 'failure'}-{episode.seed}.mp4"
        write_video(out / name, shots[: episode.steps + 1], SPEED * env.rate_hz)
        exact = (repeated.score, repeated.success, repeated.steps) == (
            episode.score,
            episode.success,
            episode.steps,
        )
        shown.append(
            {"seed": episode.seed, "success": episode.success, "file": name, "exact": exact}
        )
    return shown


def _picture(env: VecEnv, observation: Observation, world: int) -> np.ndarray | None:
    """One world's picture: drawn, or what its cameras see, side by side."""
    if isinstance(env, DrawableEnv):
        return env.render(world)
    views = [
        array[world]
        for array in observation.values()
        if array.dtype == np.uint8 and array.ndim == 4
    ]
    return np.concatenate(views, axis=1) if views else None
