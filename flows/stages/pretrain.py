"""Stage `pretrain`: demonstrations to a teacher policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.pretrain import PretrainConfig
from robots.types import Progress


def run(config: PretrainConfig, inputs: dict[str, Path], out: Path, progress: Progress) -> dict[str, Any]:
    """Trains on `inputs["demos"]`, resuming from what an interrupted attempt left in `out`."""
    from policies.pretrain import pretrain

    return pretrain(config, inputs["demos"], out, progress)
