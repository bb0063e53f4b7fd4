"""What a policy answers to a few recorded observations, beside what was demonstrated there, as a
picture.

Shape suffixes: W windows, S samples of a window, B = W S, H horizon, A action.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from policies.data.windows import Windows
from policies.policy import ChunkPolicy, Observed
from policies.training.loop import rng
from robots.spec import FieldSpec

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SAMPLES = "samples.png"
_DRAW = 7 << 60
"""Number of the draw for noise and goals, apart from those of the training."""
_WINDOWS, _SAMPLES, _ROWS, _ENTRIES = 6, 8, 3, 8
"""Panels in the plane and chunks in each; without a plane, rows of panels and entries of the action
at most."""
_LEAST_SCALE = 0.3
"""Least side of a panel in the plane, as a share of the largest one's."""
_DEMONSTRATED, _SAMPLED = "#16324f", "#e4572e"


def draw_samples(
    module: ChunkPolicy, windows: Windows, out: Path, seed: int, action: FieldSpec
) -> None:
    """Draws sampled chunks against the demonstrated one to `samples.png` in the directory `out`.

    An action of two entries is drawn as a path in the plane, any other as one curve per entry over
    the horizon.

    Args:
        module: the trained policy; its mode is as before afterwards.
        windows: normalised; a few are taken, evenly spread.
        out: directory of the policy.
        seed: of the noise.
        action: names the unit.
    """
    plane = module.chunk_shape[1] == 2
    count = min(_WINDOWS if plane else _ROWS, len(windows))
    chosen_W = torch.linspace(0, len(windows) - 1, count).long()
    sampled_WSHA, shown_WHA, start_WA = _sample(module, windows, chosen_W, seed)
    draw = _draw_paths if plane else _draw_curves
    figure = draw(sampled_WSHA, shown_WHA, start_WA, action.unit)
    figure.savefig(out / SAMPLES, dpi=110)


@torch.no_grad()
def _sample(
    module: ChunkPolicy, windows: Windows, chosen_W: Tensor, seed: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray | None]:
    """Sampled and demonstrated chunks in physical units, and what they are relative to, if
    anything."""
    learning, draw = module.training, rng(seed, _DRAW)
    module.eval()
    batch, count = windows.batch(chosen_W, draw), len(chosen_W)
    noise = draw.standard_normal((count * _SAMPLES, *module.chunk_shape), dtype=np.float32)
    sample_BHA = module.sample(
        _repeated(batch.observed, _SAMPLES), torch.from_numpy(noise).to(module.device)
    )
    module.train(learning)
    sampled_BHA = module.normalize_action.inverse(sample_BHA.float())
    sampled_WSHA = sampled_BHA.view(count, _SAMPLES, *module.chunk_shape).cpu().numpy()
    shown_WHA = module.normalize_action.inverse(batch.chunk_BHA).cpu().numpy()
    if module.anchor is None:
        return sampled_WSHA, shown_WHA, None
    entries = slice(module.anchor, module.anchor + module.chunk_shape[1])
    start_WA = (
        module.normalize_observation.inverse(batch.observed.vector_BTO[:, -1])[:, entries]
        .cpu()
        .numpy()
    )
    return sampled_WSHA + start_WA[:, None, None], shown_WHA + start_WA[:, None], start_WA


def _repeated(observed: Observed, times: int) -> Observed:
    """Every row `times` times in succession."""
    return Observed(
        observed.vector_BTO.repeat_interleave(times, 0),
        {name: frames.repeat_interleave(times, 0) for name, frames in observed.sensors.items()},
        tuple(line for line in observed.instructions for _ in range(times)),
        None if observed.goal_BO is None else observed.goal_BO.repeat_interleave(times, 0),
    )


def _draw_paths(
    sampled_WSHA: np.ndarray, shown_WHA: np.ndarray, start_WA: np.ndarray | None, unit: str
) -> Figure:
    from matplotlib.figure import Figure

    columns = min(3, len(shown_WHA))
    rows = -(-len(shown_WHA) // columns)
    figure = Figure(figsize=(2.7 * columns + 0.6, 2.7 * rows + 0.6), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False)
    for panel in grid.flat[len(shown_WHA) :]:
        panel.set_axis_off()
    everything = [
        np.concatenate([s.reshape(-1, 2), d]) for s, d in zip(sampled_WSHA, shown_WHA, strict=True)
    ]
    if start_WA is not None:
        everything = [
            np.concatenate([points, start[None]])
            for points, start in zip(everything, start_WA, strict=True)
        ]
    spans = [float(np.ptp(points, axis=0).max()) for points in everything]
    for number, (axes, points) in enumerate(zip(grid.flat, everything, strict=False)):
        # Not below a share of the largest motion, or noise about a standstill would look like one.
        half = 0.6 * max(spans[number], _LEAST_SCALE * max(spans)) or 1.0
        for path_HA in sampled_WSHA[number]:
            axes.plot(
                *path_HA.T, color=_SAMPLED, alpha=0.55, linewidth=1, marker=".", markersize=2.5
            )
        axes.plot(
            *shown_WHA[number].T, color=_DEMONSTRATED, linewidth=1.8, marker=".", markersize=4.5
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
    figure.supxlabel(f"first entry of the action [{unit}]", fontsize="small")
    figure.supylabel(f"second entry [{unit}]", fontsize="small")
    _legend(
        figure,
        {"marker": "o", "fillstyle": "none", "linestyle": "none"} if start_WA is not None else None,
    )
    return figure


def _draw_curves(
    sampled_WSHA: np.ndarray, shown_WHA: np.ndarray, start_WA: np.ndarray | None, unit: str
) -> Figure:
    from matplotlib.figure import Figure

    rows, horizon, entries = shown_WHA.shape
    columns, steps = min(entries, _ENTRIES), np.arange(horizon)
    figure = Figure(figsize=(1.9 * columns + 0.8, 1.6 * rows + 0.8), layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey="col")
    for (window, entry), axes in np.ndenumerate(grid):
        axes.plot(
            steps, sampled_WSHA[window, :, :, entry].T, color=_SAMPLED, alpha=0.55, linewidth=1
        )
        axes.plot(steps, shown_WHA[window, :, entry], color=_DEMONSTRATED, linewidth=1.8)
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


def _legend(figure: Figure, observed: dict[str, Any] | None) -> None:
    """Names the lines; `observed` is the style of the mark at what the actions are relative to."""
    from matplotlib.lines import Line2D

    lines = [
        Line2D([], [], color=_DEMONSTRATED, linewidth=1.8, marker=".", label="demonstrated"),
        Line2D([], [], color=_SAMPLED, linewidth=1, marker=".", label="sampled"),
    ]
    if observed is not None:
        lines.append(Line2D([], [], color="black", label="observed", **observed))
    figure.legend(
        handles=lines, loc="outside upper center", ncols=len(lines), frameon=False, fontsize="small"
    )
