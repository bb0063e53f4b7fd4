"""Records one start played by every policy that the gate knows: teacher, trained policy, exported
policy, incumbent, twin."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robots.errors import HandoffError

if TYPE_CHECKING:
    from flows.gating.ancestry import Evaluated
    from flows.gating.closed_loop import Played
    from sim.evaluation.protocol import Protocol

FOLDER = "side_by_side"


def record_side_by_side(
    protocol: Protocol,
    played: Mapping[str, Played],
    evaluated: Mapping[str, Evaluated],
    twin: Path | None,
    out: Path,
) -> list[tuple[str, str]]:
    """Writes a video per policy of the same start.

    Args:
        protocol: rules under which the episodes were run.
        played: episodes of exported policies, by title; at least one.
        evaluated: evaluations of other policies, by title.
        twin: folder with videos of starts at the twin.
        out: folder, in which the folder of videos is made.

    Returns:
        Titles and paths relative to `out`; empty if the environments cannot render images.
    """
    from sim.evaluation.evaluate import make_env
    from sim.evaluation.failure_videos import SPEED, replay_with_images
    from sim.evaluation.rollout import EpisodeResult
    from sim.rendering.video import write_video

    seed, at_twin = _choose(next(iter(played.values())), twin)
    actions: dict[str, np.ndarray] = {}
    for title, each in evaluated.items():
        found = each.result.actions(seed)
        if found is not None:
            actions[title] = found
    for title, own in played.items():
        actions[title] = next(one.actions for one in own.episodes if one.seed == seed)
    episodes = [
        EpisodeResult(
            seed=seed, score=0.0, success=False, steps=len(rows), largest={}, actions=rows
        )
        for rows in actions.values()
    ]
    try:
        env = make_env(protocol, len(episodes), pictures=True)
        try:
            _, frames = replay_with_images(env, episodes, protocol)
            rate = SPEED * env.rate_hz
        finally:
            env.close()
    except HandoffError:
        # Without OpenGL there are no videos; the page says so.
        return []
    if not frames[0]:
        return []
    (out / FOLDER).mkdir(exist_ok=True)
    videos = []
    for title, images in zip(actions, frames, strict=True):
        name = f"{FOLDER}/{title.replace(' ', '_')}-{seed}.mp4"
        write_video(out / name, images, rate)
        videos.append((f"{title}, start {seed}", name))
    if at_twin is not None:
        name = f"{FOLDER}/twin-{seed}.mp4"
        shutil.copyfile(at_twin, out / name)
        videos.append((f"twin, start {seed}", name))
    return videos


def _choose(played: Played, twin: Path | None) -> tuple[int, Path | None]:
    """A seed that the twin has a video of; else that of the first failure, else the first."""
    seeds: Sequence[int] = [episode.seed for episode in played.episodes]
    files = {} if twin is None else {seed: twin / f"twin_start_{seed}.mp4" for seed in seeds}
    for seed, file in files.items():
        if file.is_file():
            return seed, file
    failed = [episode.seed for episode in played.episodes if not episode.success]
    return (failed or list(seeds))[0], None
