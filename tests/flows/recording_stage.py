"""A stage for tests that records lines with a person, and goes on from what it recorded before."""

from __future__ import annotations

from dataclasses import field
from pathlib import Path

from flows.artifacts import Episodes, Output
from robots.config import config
from robots.errors import HandoffError
from robots.interfaces import Progress

GROWS = "episodes"


@config
class OperatorConfig:
    kind: str = "keyboard"


@config
class RecordingConfig:
    episodes: int = 2
    operator: OperatorConfig = field(default_factory=OperatorConfig)


STOP_AT: list[int] = []
"""Number of lines at which the person stops; empty if they do not."""


def run(config: RecordingConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Adds lines to `out/lines.txt` until there are `episodes`; `begun` is the number before."""
    file = out / "lines.txt"
    lines = file.read_text().splitlines() if file.exists() else []
    begun = len(lines)
    while len(lines) < config.episodes:
        if len(lines) in STOP_AT:
            raise HandoffError(f"stopped by the person after {len(lines)}.")
        lines.append(f"episode {len(lines)}")
        file.write_text("\n".join(lines))
    return Output({"begun": begun, "episodes": len(lines)})
