"""Stage `merge`: merges several episode stores into one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flows.artifacts import Episodes, Output
from flows.runner.artifact import read_manifest
from flows.stages.data.config import MergeConfig
from robots.interfaces import Progress


def run(
    config: MergeConfig,
    out: Path,
    progress: Progress,
    *,
    stores: Sequence[Episodes],
) -> Output[Episodes]:
    """Writes the episodes of `stores`, one store after another, to `out/store.zarr`; every episode
    records where it comes from. An interrupted attempt restarts from the beginning.

    Raises:
        HandoffError: stores whose robots, rates or fields do not agree.
    """
    from robots.episodes.merge import MergeSource, merge_stores

    manifests = [read_manifest(folder) for folder in stores]
    sources = [
        MergeSource(manifest["stage"], folder / "store.zarr", manifest["digest"])
        for manifest, folder in zip(manifests, stores, strict=True)
    ]
    metrics = merge_stores(
        sources,
        out / "store.zarr",
        task=config.task,
        fields=config.fields,
        missing=config.missing,
        successes=config.successes,
        episodes_each=config.episodes_each,
        progress=progress,
    )
    return Output(metrics)
