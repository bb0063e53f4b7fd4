"""The loss curve as a picture."""

from __future__ import annotations

import json
from pathlib import Path

from policies.training.loop import CURVE


def draw_curve(out: Path, label: str) -> None:
    """Draws the loss curve in the directory `out` to `loss.png`; `label` names the loss."""
    from matplotlib.figure import Figure

    entries = [json.loads(line) for line in (out / CURVE).read_text().splitlines()]
    figure = Figure(figsize=(6, 3.2), layout="constrained")
    axes = figure.add_subplot()
    losses = [entry["loss"] for entry in entries]
    axes.plot([entry["step"] for entry in entries], losses, linewidth=1)
    # A likelihood's loss may be negative.
    axes.set(yscale="log" if min(losses) > 0 else "linear", xlabel="update", ylabel=label)
    axes.grid(which="both", alpha=0.3)
    figure.savefig(out / "loss.png", dpi=120)
