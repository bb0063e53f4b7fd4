"""Stage `split`: writes one part of a store, such as the episodes that are held out."""

from __future__ import annotations

from pathlib import Path

from flows.artifacts import Episodes, Output
from flows.runner.artifact import read_manifest
from robots.episodes.curation.choose import SplitConfig
from robots.interfaces import Progress


def run(
    config: SplitConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes,
) -> Output[Episodes]:
    """Copies one part of the episodes of `demos` to `out/store.zarr`; every episode records where
    it comes from. An interrupted attempt restarts.

    Raises:
        HandoffError: too few episodes or groups for two parts.
    """
    from robots.episodes.curation.choose import part_groups, split
    from robots.episodes.merge import MergeSource, copy_episodes
    from robots.episodes.store import EpisodeStore

    manifest = read_manifest(demos)
    store = EpisodeStore.open(demos / "store.zarr")
    metadata = [store.metadata(i) for i in range(store.num_episodes)]
    chosen = split(metadata, config)
    source = MergeSource(manifest["stage"], demos / "store.zarr", manifest["digest"])
    copied = copy_episodes(source, out / "store.zarr", chosen, progress)
    return Output(
        {
            **copied,
            "episodes_before": store.num_episodes,
            **part_groups(metadata, config, chosen),
        }
    )
