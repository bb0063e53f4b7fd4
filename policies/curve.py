"""The loss curve as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from policies.training import CURVE


def draw_curve(out: Path, label: str) -> None:
    """Draws the loss curve in the directory `out` to `loss.png`; `label` names the loss."""
    from matplotlib.figure import Figure

    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    axes.plot([entry["step"] for entry in entries], [entry["loss"] for entry in entries], linewidth=1)
    axes.set(yscale="log", xlabel="update", ylabel=label)
    axes.grid(which="both", alpha=0.3)
    figure.savefig(out / "loss.png", dpi=120)
