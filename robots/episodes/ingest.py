"""Copies demonstrations into an episode store; the first stage of a pipeline."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from robots.config import config
from robots.episodes.demonstrations import Demonstrations, open_demonstrations
from robots.episodes.formats.pusht import STREAM
from robots.episodes.mirror import check_mirrored, mirrored
from robots.episodes.schema import EpisodeSchema
from robots.episodes.sources import find_demonstrations, source_digest
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress


@config
class IngestConfig:
    """Which demonstrations to take."""

    data: str | None = None
    """File or folder of demonstrations; by default they are looked for, see
    `robots.episodes.sources`."""
    images: bool = True
    """Keep the camera images where there are some."""
    max_episodes: int | None = None
    """Take only this many, from the first; all by default."""
    mirror: bool = False
    """Add the mirror image of every episode after them all; known for push-T alone, see
    `robots.episodes.mirror`."""
    download: bool = True
    """Whether the published archive may be downloaded when no copy is at hand."""


def ingest(config: IngestConfig, out: Path, progress: Progress, shipped: Path) -> dict[str, Any]:
    """Writes the demonstrations to `out/store.zarr`; goes on where a killed attempt with the same
    source stopped.

    Args:
        config: which demonstrations.
        out: the artifact's folder.
        progress: counts episodes.
        shipped: the small set that comes with Handoff, used when nothing else is found.

    Returns:
        `episodes`, `frames` (of the policy stream), `images` (whether stored), `source` (kind),
        `source_line`, `source_digest`.

    Raises:
        HandoffError: no demonstrations, damaged ones, or no room for them.
    """
    if config.max_episodes is not None and config.max_episodes < 1:
        raise HandoffError(f"max_episodes: is {config.max_episodes}, expected at least 1.")
    data = None if config.data is None else Path(config.data)
    source = find_demonstrations(
        data=data, download=config.download, shipped=shipped, progress=progress
    )
    digest = source_digest(source)
    with open_demonstrations(source.path, config.images) as demonstrations:
        wanted = min(
            demonstrations.num_episodes, config.max_episodes or demonstrations.num_episodes
        )
        if config.mirror:
            check_mirrored(demonstrations.schema)
        total = 2 * wanted if config.mirror else wanted
        with _resume(out / "store.zarr", demonstrations.schema, digest, wanted, total) as store:
            with store.writer() as writer:
                for streams, metadata in _episodes(
                    demonstrations, wanted, store.num_episodes, total
                ):
                    number = writer.append(
                        streams, {**metadata, "source": source.kind, "source_digest": digest}
                    )
                    progress(number + 1, total, "episodes")
            return {
                "episodes": store.num_episodes,
                "frames": int(store.ends(STREAM)[-1]),
                "images": "image" in store.schema.streams[STREAM].fields,
                "source": source.kind,
                "source_line": source.line,
                "source_digest": digest,
            }


def _episodes(
    demonstrations: Demonstrations, wanted: int, first: int, stop: int
) -> Iterator[tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]]:
    """Episodes `[first, stop)` of the store: `wanted` as they are, then the same mirrored."""
    yield from demonstrations.episodes(min(first, wanted), min(stop, wanted))
    for streams, metadata in demonstrations.episodes(max(first - wanted, 0), max(stop - wanted, 0)):
        yield mirrored(streams), {**metadata, "mirrored": True}


def _resume(
    path: Path, schema: EpisodeSchema, digest: str, wanted: int, total: int
) -> EpisodeStore:
    """What an earlier attempt left, if it is of the same source and schema; else a new store."""
    if _readable(path):
        store = EpisodeStore.open(path, "a")
        marks = [store.metadata(i) for i in range(store.num_episodes)]
        same = all(mark.get("source_digest") == digest for mark in marks)
        same &= all(mark.get("mirrored", False) == (i >= wanted) for i, mark in enumerate(marks))
        if same and store.schema == schema and store.num_episodes <= total:
            return store
        store.close()
    if path.exists():
        shutil.rmtree(path)
    return EpisodeStore.create(path, schema)


def _readable(path: Path) -> bool:
    try:
        EpisodeStore.open(path, "r")
    except (
        HandoffError
    ):  # absent, damaged or of another version: only a copy of the source, which is written again
        return False
    return True
