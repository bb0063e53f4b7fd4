"""Stage `ingest`: demonstrations, wherever they come from, to an episode store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robots.episodes.ingest import IngestConfig
from robots.interfaces import Progress

SHIPPED = Path(__file__).resolve().parents[2] / "sim" / "tasks" / "push_t" / "rollouts.zarr.zip"
"""State-only rollouts of a policy that Handoff trained, for machines that reach no
demonstrations."""


@dataclass(frozen=True)
class DemonstrationSource:
    """What the pipeline will start from."""

    line: str
    """One sentence for a person."""
    digest: str
    """sha256 of the source."""


def demonstrations(config: IngestConfig, *, fetch: bool = True) -> DemonstrationSource:
    """Finds the demonstrations, so that their digest can enter the cache key.

    Args:
        config: where to look.
        fetch: whether to download what `config` allows to; a mere plan does not.

    Raises:
        HandoffError: none can be found, or the ones named are missing or damaged.
    """
    from robots.episodes.sources import find_demonstrations, source_digest

    data = None if config.data is None else Path(config.data)
    source = find_demonstrations(data=data, download=config.download and fetch, shipped=SHIPPED)
    return DemonstrationSource(source.line, source_digest(source))


def run(
    config: IngestConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Writes `out/store.zarr`; there are no `inputs`, the source is outside the pipeline."""
    from robots.episodes.ingest import ingest

    return ingest(config, out, progress, SHIPPED)
