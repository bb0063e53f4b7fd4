"""Stage `distil`: distils a many-step teacher to a one-step student."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.distillation.config import DistilConfig
from robots.interfaces import Progress


def run(
    config: DistilConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Distils `inputs["teacher"]` on the observations of `inputs["demos"]`."""
    from policies.distillation.one_step import distil

    return distil(config, inputs["teacher"], inputs["demos"], out, progress)
