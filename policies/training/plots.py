"""Plots curves of training runs, and sampled next to demonstrated chunks.

Shape suffixes: W windows, S samples per window, B = W S, H horizon, A action.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from policies.data.windows import Windows
from policies.policy import ChunkPolicy, ObservationTensors
from policies.random_streams import RandomStream
from policies.training.loggers import CURVE
from policies.training.loop import rng
from robots.spec import FieldSpec
from robots.wire.learner import RECENT_EPISODES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOSS, SAMPLES = "loss.png", "samples.png"
MARKED = 50
"""Largest number of entries of a curve that are marked by points."""
_WINDOWS = 6
_SAMPLES = 8
_ROWS = 3
_ENTRIES = 8
"""Maximum numbers: panels of planar actions and samples per window; rows of panels and action
entries of other actions."""
_LEAST_SCALE = 0.3
"""Minimum side of a planar panel, as a fraction of the largest panel's."""
_DEMONSTRATED, _SAMPLED = "#16324f", "#e4572e"


def draw_curve(out: Path, label: str) -> None:
    """Plots the loss curve in the directory `out` to `loss.png`; `label` is the label of the loss
    axis."""
    from matplotlib.figure import Figure

    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    losses = [entry["loss"] for entry in entries]
    # A line through one entry is invisible.
    marker = "." if len(entries) <= MARKED else ""
    axes.plot([entry["step"] for entry in entries], losses, marker=marker, linewidth=1)
    # The negative log-likelihood of a density may be negative.
    axes.set(yscale="log" if min(losses) > 0 else "linear", xlabel="update", ylabel=label)
    axes.grid(which="both", alpha=0.3)
    figure.savefig(out / LOSS, dpi=120)


def draw_entries(
    entries: Sequence[Mapping[str, float]],
    file: Path,
    horizontal: tuple[str, str],
    vertical: Mapping[str, str],
) -> None:
    """Plots the metrics of a run, one panel per metric.

    Args:
        entries: entries of the curve.
        file: PNG file.
        horizontal: metric on the horizontal axis, and its label.
        vertical: plotted metrics, with their labels.
    """
    from matplotlib.figure import Figure

    over, label = horizontal
    figure = Figure(figsize=(3.0 + 2.0 * len(vertical), 3.0), layout="constrained")
    panels = figure.subplots(1, len(vertical), squeeze=False)[0]
    for axes, (name, caption) in zip(panels, vertical.items(), strict=True):
        axes.plot(
            [entry[over] for entry in entries], [entry[name] for entry in entries], linewidth=1
        )
        axes.set(xlabel=label, ylabel=caption)
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=120)


def draw_training(entries: Sequence[Mapping[str, float]], file: Path) -> None:
    """Plots success, interventions and critic loss of a human-in-the-loop training over environment
    steps; does nothing without entries."""
    if not entries:
        return
    from matplotlib.figure import Figure

    steps = [entry["steps"] for entry in entries]
    figure = Figure(figsize=(6, 4.6), layout="constrained")
    shares, losses = figure.subplots(2, sharex=True)
    for name, label in (("recent_success", "success"), ("recent_interventions", "interventions")):
        shares.plot(steps, [entry[name] for entry in entries], linewidth=1, label=label)
    shares.set(ylim=(-0.03, 1.03), ylabel=f"share, last {RECENT_EPISODES} episodes")
    shares.legend(loc="center right")
    if "critic_loss" in entries[0]:
        losses.plot(steps, [entry["critic_loss"] for entry in entries], linewidth=1)
        losses.set(yscale="log")
    losses.set(xlabel="environment step", ylabel="critic loss")
    for axes in (shares, losses):
        axes.grid(which="both", alpha=0.3)
    figure.savefig(file, dpi=120)


def draw_samples(
    module: ChunkPolicy, windows: Windows, out: Path, seed: int, action: FieldSpec
) -> None:
    """Plots sampled chunks and the demonstrated one to `samples.png` in the directory `out`.

    Actions with two entries are drawn as paths in the plane, others as one curve per entry over the
    horizon.

    Args:
        module: the trained policy; its training mode is restored.
        windows: normalised windows, of which a few, evenly spread, are plotted.
        out: directory of the policy.
        seed: seed of the noise.
        action: spec of the action, for its unit.
    """
    plane = module.chunk_shape[1] == 2
    count = min(_WINDOWS if plane else _ROWS, len(windows))
    window_W = torch.linspace(0, len(windows) - 1, count).long()
    sampled_WSHA, demonstrated_WHA, start_WA = _sample(module, windows, window_W, seed)
    plot = _draw_paths if plane else _draw_curves
    figure = plot(sampled_WSHA, demonstrated_WHA, start_WA, action.unit)
    figure.savefig(out / SAMPLES, dpi=110)


@torch.no_grad()
def _sample(
    module: ChunkPolicy, windows: Windows, window_W: Tensor, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Sampled and demonstrated chunks in physical units, and the values of the anchor field, if
    any."""
    was_training, generator = module.training, rng(seed, RandomStream.SAMPLE_PLOT)
    module.eval()
    batch, count = windows.batch(window_W, generator), len(window_W)
    noise = generator.standard_normal((count * _SAMPLES, *module.chunk_shape), dtype=np.float32)
    sample_BHA = module.sample(
        _repeated(batch.obs, _SAMPLES), torch.from_numpy(noise).to(module.device)
    )
    module.train(was_training)
    sampled_BHA = module.normalize_action.inverse(sample_BHA.float())
    sampled_WSHA = sampled_BHA.view(count, _SAMPLES, *module.chunk_shape).cpu().numpy()
    demonstrated_WHA = module.normalize_action.inverse(batch.chunk_BHA).cpu().numpy()
    if module.anchor is None:
        return sampled_WSHA, demonstrated_WHA, None
    entries = slice(module.anchor, module.anchor + module.chunk_shape[1])
    start_WA = (
        module.normalize_observation.inverse(batch.obs.vector_BTO[:, -1])[:, entries].cpu().numpy()
    )
    return sampled_WSHA + start_WA[:, None, None], demonstrated_WHA + start_WA[:, None], start_WA


def _repeated(obs: ObservationTensors, times: int) -> ObservationTensors:
    """Repeats every row `times` times consecutively."""
    return ObservationTensors(
        obs.vector_BTO.repeat_interleave(times, 0),
        {name: frames.repeat_interleave(times, 0) for name, frames in obs.sensors.items()},
        tuple(line for line in obs.instructions for _ in range(times)),
        None if obs.goal_BO is None else obs.goal_BO.repeat_interleave(times, 0),
    )


def _draw_paths(
    sampled_WSHA: np.ndarray, demonstrated_WHA: np.ndarray, start_WA: np.ndarray | None, unit: str
) -> Figure:
    from matplotlib.figure import Figure

    # Grid of panels.
    columns = min(3, len(demonstrated_WHA))
    rows = -(-len(demonstrated_WHA) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.6, 2.7 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for panel in grid.flat[len(demonstrated_WHA) :]:
        panel.set_axis_off()
    # Points and extent of every panel.
    panel_points = [
        np.concatenate([s.reshape(-1, 2), d])
        for s, d in zip(sampled_WSHA, demonstrated_WHA, strict=True)
    ]
    if start_WA is not None:
        panel_points = [
            np.concatenate([points, start[None]])
            for points, start in zip(panel_points, start_WA, strict=True)
        ]
    spans = [float(np.ptp(points, axis=0).max()) for points in panel_points]
    for number, (axes, points) in enumerate(zip(grid.flat, panel_points, strict=False)):
        # A minimum scale, so that noise around a standstill does not look like motion.
        half = 0.6 * max(spans[number], _LEAST_SCALE * max(spans)) or 1.0
        for path_HA in sampled_WSHA[number]:
            axes.plot(
                *path_HA.T, color=_SAMPLED, alpha=0.55, linewidth=1, marker=".", markersize=2.5
            )
        axes.plot(
            *demonstrated_WHA[number].T,
            color=_DEMONSTRATED,
            linewidth=1.8,
            marker=".",
            markersize=4.5,
        )
        if start_WA is not None:
            axes.plot(
                *start_WA[number],
                color="black",
                marker="o",
                markersize=7,
                fillstyle="none",
                linestyle="none",
            )
        x, y = (points.min(axis=0) + points.max(axis=0)) / 2
        axes.set(xlim=(x - half, x + half), ylim=(y - half, y + half), aspect="equal")
        _tidy(axes)
    # Axis labels and legend.
    figure.supxlabel(f"first entry of the action [{unit}]", fontsize="small")
    figure.supylabel(f"second entry [{unit}]", fontsize="small")
    _legend(
        figure,
        {"marker": "o", "fillstyle": "none", "linestyle": "none"} if start_WA is not None else None,
    )
    return figure


def _draw_curves(
    sampled_WSHA: np.ndarray, demonstrated_WHA: np.ndarray, start_WA: np.ndarray | None, unit: str
) -> Figure:
    from matplotlib.figure import Figure

    rows, horizon, entries = demonstrated_WHA.shape
    columns, steps = min(entries, _ENTRIES), np.arange(horizon)
    figure = Figure(figsize=(1.9 * columns + 0.8, 1.6 * rows + 0.8), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="col")
    for (window, entry), axes in np.ndenumerate(grid):
        axes.plot(
            steps, sampled_WSHA[window, :, :, entry].T, color=_SAMPLED, alpha=0.55, linewidth=1
        )
        axes.plot(steps, demonstrated_WHA[window, :, entry], color=_DEMONSTRATED, linewidth=1.8)
        if start_WA is not None:
            axes.axhline(start_WA[window, entry], color="black", linewidth=0.8, linestyle=":")
        _tidy(axes)
    for entry, axes in enumerate(grid[0]):
        axes.set_title(
            f"entry {entry}" + (f" of {entries}" if columns < entries else ""), fontsize="small"
        )
    figure.supxlabel("step of the chunk", fontsize="small")
    figure.supylabel(f"action [{unit}], a window per row", fontsize="small")
    _legend(figure, {"linestyle": ":", "linewidth": 0.8} if start_WA is not None else None)
    return figure


def _tidy(axes: Axes) -> None:
    axes.grid(alpha=0.25)
    axes.tick_params(labelsize="x-small")
    axes.locator_params(nbins=4)


def _legend(figure: Figure, anchor_style: dict[str, Any] | None) -> None:
    """Adds the legend; `anchor_style` is the line style of the anchor field's value."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=_DEMONSTRATED, linewidth=1.8, marker=".", label="demonstrated"),
        Line2D([], [], color=_SAMPLED, linewidth=1, marker=".", label="sampled"),
    ]
    if anchor_style is not None:
        lines.append(Line2D([], [], color="black", label="observed", **anchor_style))
    figure.legend(
        handles=lines, loc="outside upper center", ncols=len(lines), frameon=False, fontsize="small"
    )
