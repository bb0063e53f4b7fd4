"""Draws the plots of stages and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from flows.reports.learning_curve import TrainingHistory
    from robots.episodes.store import EpisodeStore

STRIP_FRAMES = 7
"""Number of frames in a strip."""


def draw_pushes(store: EpisodeStore, path: Path) -> None:
    """Plots every episode from above: first and last pose of the T, path of the pusher, goal."""
    from matplotlib.figure import Figure

    from sim.tasks.push_t.geometry import BOARD_SIZE, GOAL_POSE, tee_polygons

    columns = max(1, min(5, store.num_episodes))
    rows = max(1, -(-store.num_episodes // columns))
    figure = Figure(figsize=(2.3 * columns, 2.5 * rows), layout="constrained")
    for i in range(store.num_episodes):
        axes = figure.add_subplot(rows, columns, i + 1)
        steps = store.read(i, "policy", ["agent", "block_pose"])
        first, last = steps["block_pose"][0], steps["block_pose"][-1]
        for pose, colour, alpha in (
            (GOAL_POSE, "#8fde8f", 1.0),
            (first, "#b8c0cc", 0.5),
            (last, "#5c6b80", 0.8),
        ):
            for polygon in tee_polygons(pose):
                axes.fill(*polygon.T, color=colour, alpha=alpha, linewidth=0)
        axes.plot(*steps["agent"].T, color="#4169e1", linewidth=0.7)
        axes.set(xlim=(0, BOARD_SIZE), ylim=(BOARD_SIZE, 0), aspect="equal", xticks=[], yticks=[])
        metadata = store.metadata(i)
        fault = ", fault" if metadata["fault"] else ""
        axes.set_title(f"{metadata['seed']}: {metadata['coverage']:.2f}{fault}", fontsize=8)
    figure.savefig(path, dpi=110)


def draw_paths(store: EpisodeStore, starts: int, path: Path) -> None:
    """Plots the paths of the fingertips, from above and from the side.

    Args:
        store: the recorded episodes.
        starts: number of starts, including episodes that ended before their first step.
        path: path of the plot.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.5), layout="constrained")
    views = [figure.add_subplot(1, 2, i + 1) for i in range(2)]
    colours = {True: "#2e8b57", False: "#c0392b"}
    solved = [bool(store.metadata(episode)["success"]) for episode in range(store.num_episodes)]
    for episode, colour in enumerate(colours[success] for success in solved):
        positions = store.read(episode, "robot", ["base_T_ee"])["base_T_ee"][::20, :3, 3]
        for axes, across in zip(views, (1, 2), strict=True):
            axes.plot(positions[:, 0], positions[:, across], color=colour, linewidth=0.8, alpha=0.7)
            axes.plot(*positions[-1, [0, across]], "o", color=colour, markersize=3)
    for axes, label in zip(views, ("y [m]", "z [m]"), strict=True):
        axes.set(xlabel="x [m]", ylabel=label, aspect="equal")
        axes.grid(alpha=0.3)
    figure.suptitle(
        f"Paths of the fingertips; green: solved ({sum(solved)} of {starts}), dots: end points"
    )
    figure.savefig(path, dpi=110)


def draw_learning(history: TrainingHistory, demonstrations: TrainingHistory, path: Path) -> None:
    """Plots success over the last 20 episodes, corrections and cycle time against control steps, in
    three panels."""
    from matplotlib.figure import Figure

    from flows.reports.learning_curve import WINDOW, episode_seconds, learning_curve

    # Success rate with its interval.
    curve = learning_curve(history)
    figure = Figure(figsize=(8.0, 8.0), layout="constrained")
    success, corrected, cycle = figure.subplots(3, 1, sharex=True)
    success.plot(history.steps, curve.success, color="#1769aa")
    success.fill_between(
        history.steps, curve.bounds[:, 0], curve.bounds[:, 1], alpha=0.2, color="#1769aa"
    )
    success.set(ylabel=f"success, last {WINDOW}\n(95 % Wilson interval)", ylim=(-0.02, 1.02))
    # Share of corrected steps.
    corrected.plot(history.steps, curve.corrected, color="#e4572e")
    corrected.axhline(0.05, color="black", linestyle="--", linewidth=1)
    corrected.set(ylabel=f"share of steps corrected,\nlast {WINDOW} episodes", ylim=(-0.02, 1.02))
    # Cycle time of successful episodes, next to that of the demonstrations.
    solved = history.success
    seconds = history.length[solved] / history.rate_hz
    cycle.plot(history.steps[solved], seconds, ".", markersize=4, color="#1769aa")
    demonstrated = episode_seconds(demonstrations)
    cycle.axhline(demonstrated, color="black", linestyle="--", linewidth=1, label="demonstrations")
    cycle.set(ylabel="time to success [s]", xlabel="control steps", ylim=(0.0, None))
    cycle.legend(frameon=False)
    figure.savefig(path, dpi=120)


def draw_imagined(episodes: Sequence[Sequence[Any]], rate_hz: float, path: Path) -> None:
    """Draws strips of recorded and imagined steps, one below the other.

    Args:
        episodes: recorded and imagined frames (T, H, W, 3) of each episode.
        rate_hz: frame rate.
        path: path of the plot.
    """
    from matplotlib.figure import Figure

    rows = [
        (frames, name)
        for pair in episodes
        for frames, name in zip(pair, ("recorded", "imagined"), strict=True)
    ]
    figure = Figure(figsize=(1.7 * STRIP_FRAMES, 1.8 * len(rows)), layout="constrained")
    for row, (frames, name) in enumerate(rows):
        for column, step in enumerate(np.linspace(0, len(frames) - 1, STRIP_FRAMES).astype(int)):
            axes = figure.add_subplot(len(rows), STRIP_FRAMES, row * STRIP_FRAMES + column + 1)
            axes.imshow(frames[step])
            axes.set(xticks=[], yticks=[])
            axes.set_title(f"{name}, {step / rate_hz:.1f} s", fontsize=8)
    figure.savefig(path, dpi=110)
