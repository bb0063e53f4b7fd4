"""Stage `ingest`: converts demonstrations from any source to an episode store."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flows.artifacts import Episodes, Output
from robots.episodes.ingest import IngestConfig
from robots.interfaces import Progress

SHIPPED = Path(__file__).resolve().parents[3] / "sim" / "tasks" / "push_t" / "rollouts.zarr.zip"
"""State-only rollouts of a policy that Handoff trained, for machines without access to
demonstrations."""


@dataclass(frozen=True)
class DemonstrationSource:
    """Source of the demonstrations."""

    line: str
    """Description of the source, one sentence."""
    digest: str
    """sha256 of the source, hex."""


def locate_demonstrations(config: IngestConfig, *, fetch: bool = True) -> DemonstrationSource:
    """Locates the demonstrations and computes their digest, which enters the cache key.

    Args:
        config: source of the demonstrations.
        fetch: allows a download if `config` does; `handoff plan` downloads nothing.

    Raises:
        HandoffError: no demonstrations were found, or the named ones are missing, damaged, or
            cannot stay where they are, as `copy: false` asks.
    """
    from robots.episodes.ingest import check_referable
    from robots.episodes.sources import find_demonstrations, source_digest

    data = None if config.data is None else Path(config.data)
    source = find_demonstrations(
        data=data, download=config.download and fetch, shipped=SHIPPED, form=config.format
    )
    if data is not None:
        check_referable(config, source.path)
    return DemonstrationSource(source.line, source_digest(source))


def external(config: IngestConfig, fetch: bool) -> dict[str, str]:
    """Returns the sha256 of the demonstrations, which enters the cache key."""
    return {"source": locate_demonstrations(config, fetch=fetch).digest}


def run(config: IngestConfig, out: Path, progress: Progress) -> Output[Episodes]:
    """Writes the demonstrations of a source outside the pipeline to `out/store.zarr`."""
    from robots.episodes.ingest import ingest

    return Output(ingest(config, out, progress, SHIPPED))
