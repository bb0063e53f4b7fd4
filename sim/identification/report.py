"""Writes the report of a tuning: a page, pictures, and its figures as JSON."""

from __future__ import annotations

import html
import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from robots.config import to_plain
from robots.html_page import FOOT, head, picture, table
from robots.storage.durable import write_atomically
from sim.identification.parameters import to_values
from sim.identification.tune import Tuning
from sim.scene.dynamics import UNITS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

REPORT = "report.html"
FIGURES = "tuning.json"
TRACKING = "tracking.png"
PROFILES = "profiles.png"


def write_tuning(tuning: Tuning, folder: Path, held_out: tuple[float, float] | None = None) -> None:
    """Writes `report.html`, `tuning.json`, `tracking.png` and, if there are profiles,
    `profiles.png` to an existing `folder`.

    Args:
        tuning: result of the search.
        folder: output folder.
        held_out: mean squared tracking errors of recordings that were not fitted, before and after
            tuning [rad^2]; None without such recordings.
    """
    figures = to_json(tuning) | _held_out(held_out)
    text = json.dumps(figures, indent=2, allow_nan=False) + "\n"
    write_atomically(folder / FIGURES, text.encode())
    _draw_tracking(tuning).savefig(folder / TRACKING, dpi=110)
    if len(tuning.report.profile_at):
        _draw_profiles(tuning).savefig(folder / PROFILES, dpi=110)
    write_atomically(folder / REPORT, "\n".join(_page(tuning, held_out)).encode())


def _held_out(errors: tuple[float, float] | None) -> dict[str, float]:
    if errors is None:
        return {}
    return {"held_out_nominal_mse": errors[0], "held_out_mse": errors[1]}


def _page(tuning: Tuning, held_out: tuple[float, float] | None) -> Iterator[str]:
    """Lines of the page: tracking errors, one row per parameter, trade-offs and pictures."""
    robot = tuning.config.tracking.robot
    yield head(f"Tuning of {robot}")
    yield f"<h1>Tuning of the simulated {html.escape(robot)}</h1>"
    rows = [("fitted", tuning.nominal_mse, tuning.mse)]
    if held_out is not None:
        rows.append(("not fitted", *held_out))
    yield table(
        ("recordings", "rms tracking error before [rad]", "after [rad]"),
        [(name, f"{before**0.5:.2e}", f"{after**0.5:.2e}") for name, before, after in rows],
    )
    yield "<h2>Parameters</h2>"
    yield table(("parameter", "value", "unit", "95 % interval", "identifiability"), _rows(tuning))
    yield "<p class='soft'>An interval is that of the linearised fit (Cramer-Rao), clipped to the range. "
    yield "A parameter that is not determined keeps the value of the best fit, which is arbitrary along "
    yield "the trade-offs below.</p>"
    if tuning.report.open_directions:
        items = "".join(f"<li>{html.escape(d.about)}" for d in tuning.report.open_directions)
        yield f"<h2>Trade-offs</h2><ul>{items}</ul>"
    yield picture(TRACKING, "Position minus target of the first recording, per joint")
    if len(tuning.report.profile_at):
        yield picture(PROFILES, "Tracking error along each parameter, with the others adapted")
    yield FOOT


def _rows(tuning: Tuning) -> list[tuple[str, ...]]:
    rows = []
    for i, parameter in enumerate(tuning.parameters):
        low, high = tuning.intervals[i]
        verdict = "determined" if tuning.report.determined[i] else "not determined"
        if tuning.report.at_bound[i]:
            verdict = "at the end of its range, which may be too narrow"
        unit = UNITS[parameter.what]
        value = f"{tuning.values[i]:.4g}"
        rows.append((parameter.name, value, unit, f"{low:.4g} to {high:.4g}", verdict))
    return rows


def to_json(tuning: Tuning) -> dict[str, Any]:
    """Results of a tuning as JSON-serialisable values; infinite ones become null."""
    report = tuning.report
    results = {
        name: {
            "value": float(tuning.values[i]),
            "unit": UNITS[tuning.parameters[i].what],
            "interval_95": tuning.intervals[i].tolist(),
            "determined": bool(report.determined[i]),
            "at_bound": bool(report.at_bound[i]),
            "spread_of_best_few": float(tuning.best_few_spread[i]),
            "sensitivity_rad": float(report.sensitivity[i]),
            "profile_mse": [_finite(value) for value in report.profile[i]],
            "profile_at": to_values((tuning.parameters[i],), report.profile_at[:, None])[
                :, 0
            ].tolist(),
        }
        for i, name in enumerate(tuning.names)
    }
    few = tuning.sampled_mse[: tuning.config.keep]
    return {
        "mse": tuning.mse,
        "nominal_mse": tuning.nominal_mse,
        "joint_mse": tuning.joint_mse.tolist(),
        "best_few_mse": [_finite(value) for value in few.tolist()],
        "parameters": results,
        "condition": _finite(report.condition),
        "trade_offs": [direction.about for direction in report.open_directions],
        "lines": tuning.lines(),
        "config": to_plain(tuning.config),
    }


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def _draw_tracking(tuning: Tuning) -> Figure:
    """Plots the tracking error of the first recording per joint: measured, simulated before and
    after tuning."""
    from matplotlib.figure import Figure

    recording, (before, after) = tuning.recordings[0], tuning.tracked[0]
    time = np.arange(len(recording.q)) / recording.rate_hz
    figure = Figure(figsize=(9, 13), layout="constrained")
    axes = figure.subplots(len(tuning.joint_mse), 1, sharex=True)
    for joint, ax in enumerate(axes):
        for label, q, style in (
            ("measured", recording.q, {"color": "0.2", "lw": 1.6}),
            ("simulated before", before, {"color": "tab:orange", "lw": 1.0, "ls": "--"}),
            ("simulated after", after, {"color": "tab:blue", "lw": 1.0}),
        ):
            ax.plot(time, 1e3 * (q - recording.target)[:, joint], label=label, **style)
        ax.set_ylabel(f"joint {joint + 1} [mrad]")
        ax.set_title(
            f"rms difference after tuning {1e3 * tuning.joint_mse[joint] ** 0.5:.3f} mrad",
            fontsize=8,
        )
    axes[0].legend(ncols=3, fontsize=8)
    axes[-1].set_xlabel("time [s]")
    figure.suptitle("Position minus target")
    return figure


def _draw_profiles(tuning: Tuning) -> Figure:
    """Plots the error along each parameter with the others adapted; parameters that the recordings
    do not determine are grey."""
    from matplotlib.figure import Figure

    count = len(tuning.parameters)
    columns = min(4, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(3.2 * columns, 2.4 * rows), layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False).ravel()
    for i, ax in enumerate(axes):
        if i >= count:
            ax.set_visible(False)
            continue
        at = to_values((tuning.parameters[i],), tuning.report.profile_at[:, None])[:, 0]
        ax.plot(at, 1e3 * np.sqrt(tuning.report.profile[i]), "o-", ms=3, color="tab:blue")
        ax.axhline(1e3 * tuning.mse**0.5, color="0.6", lw=0.8)
        ax.axvspan(
            *tuning.intervals[i],
            alpha=0.2,
            color="tab:green" if tuning.report.determined[i] else "0.5",
        )
        ax.set_title(tuning.names[i], fontsize=8)
        ax.set_xlabel(UNITS[tuning.parameters[i].what], fontsize=7)
        ax.set_ylabel("rms [mrad]", fontsize=7)
    return figure
