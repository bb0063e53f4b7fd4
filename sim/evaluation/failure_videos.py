"""Records videos of selected episodes, failures first, by replaying their actions in environments
that render images."""

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
"""Playback speed of the videos, as a multiple of real time."""


@runtime_checkable
class DrawableEnv(Interface):
    """Environments that can render themselves."""

    def render(self, env_id: int) -> np.ndarray:
        """(H, W, 3) uint8 RGB image of one environment."""
        ...


def choose_episodes(episodes: Sequence[EpisodeResult], videos: int) -> list[EpisodeResult]:
    """Selects up to `videos` episodes, failures first, each group in the order of seeds.

    One video is reserved for a success if there is one; failures take the others.
    """
    failed = [episode for episode in episodes if not episode.success]
    solved = [episode for episode in episodes if episode.success]
    failures = failed[: max(videos - 1, videos - len(solved), min(videos, 1))]
    return [*failures, *solved[: videos - len(failures)]]


def write_failure_videos(
    env: VecEnv, episodes: Sequence[EpisodeResult], protocol: Protocol, out: Path
) -> list[dict[str, Any]]:
    """Writes `failure-<seed>.mp4` and `success-<seed>.mp4` to `out`.

    Args:
        env: `len(episodes)` environments that can render or observe images.
        episodes: results of the episodes to replay.
        protocol: rules under which they were run.
        out: existing folder.

    Returns:
        Per episode `seed`, `success`, `file` and `exact`: whether the replay reproduced score,
        success and length, so that the video shows the evaluated episode. Empty if these
        environments cannot render images.
    """
    replays, frames = replay_with_images(env, episodes, protocol)
    if not frames[0]:
        return []
    entries = []
    for episode, replay, env_frames in zip(episodes, replays, frames, strict=True):
        name = f"{'success' if episode.success else 'failure'}-{episode.seed}.mp4"
        write_video(out / name, env_frames, SPEED * env.rate_hz)
        exact = (replay.score, replay.success, replay.steps) == (
            episode.score,
            episode.success,
            episode.steps,
        )
        entries.append(
            {"seed": episode.seed, "success": episode.success, "file": name, "exact": exact}
        )
    return entries


def replay_with_images(
    env: VecEnv, episodes: Sequence[EpisodeResult], protocol: Protocol
) -> tuple[list[EpisodeResult], list[list[np.ndarray]]]:
    """Plays recorded actions again and captures images.

    Args:
        env: `len(episodes)` environments that can render or observe images.
        episodes: seeds, actions and lengths of the episodes.
        protocol: rules under which they were run.

    Returns:
        The results of the replays, and per episode its images (H, W, 3) uint8 RGB, the first before
        the first action; no images if these environments cannot render.
    """
    frames: list[list[np.ndarray]] = [[] for _ in episodes]

    def capture(observation: Observation) -> None:
        for env_id, env_frames in enumerate(frames):
            image = _image(env, observation, env_id)
            if image is not None:
                env_frames.append(image)

    replays = rollout(
        ReplayAgent([episode.actions for episode in episodes]),
        env,
        [episode.seed for episode in episodes],
        max(episode.steps for episode in episodes),
        protocol.score,
        success=protocol.success,
        watch=capture,
    )
    return replays, [
        images[: episode.steps + 1] for episode, images in zip(episodes, frames, strict=True)
    ]


def _image(env: VecEnv, observation: Observation, env_id: int) -> np.ndarray | None:
    """One environment's image: rendered, or its observed camera images side by side."""
    if isinstance(env, DrawableEnv):
        return env.render(env_id)
    views = [
        array[env_id]
        for array in observation.values()
        if array.dtype == np.uint8 and array.ndim == 4
    ]
    return np.concatenate(views, axis=1) if views else None
