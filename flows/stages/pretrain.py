"""Stage `pretrain`: demonstrations to a teacher policy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from policies.imitation.config import PretrainConfig
from robots.interfaces import Progress


def outside(config: PretrainConfig) -> dict[str, str]:
    """sha256 of what the stage reads from outside the pipeline, by name, so that its change is a
    changed policy.

    Raises:
        HandoffError: a mixed store, a backbone, or the policy to start from, cannot be read.
    """
    from robots.episodes.sources import Source, source_digest

    places = {f"mixture {mixed.path}": mixed.store for mixed in config.mixture}
    if config.initial is not None:
        places["initial"] = Path(config.initial)
    places |= {name: Path(folder) for name, folder in config.policy.outside_folders.items()}
    sources = {name: Source(kind="argument", path=path, line=name) for name, path in places.items()}
    return {name: source_digest(source) for name, source in sources.items()}


def run(
    config: PretrainConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Trains on `inputs["demos"]`, resuming from what an interrupted attempt left in `out`."""
    from policies.imitation.pretrain import pretrain

    return pretrain(config, inputs["demos"], out, progress)
