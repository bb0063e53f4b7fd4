"""Stage `filter`: keeps the episodes of a store that meet conditions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.artifacts import Episodes, Examination, Output
from flows.runner.artifact import read_manifest
from flows.stages.data.config import FilterEpisodesConfig
from robots.errors import HandoffError
from robots.interfaces import Progress


def check(config: FilterEpisodesConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a choice by faults without an examination, and an examination without a choice."""
    if ("examination" in sources) != (config.faulty != "keep"):
        found, wanted = (
            ("is given", "faulty is 'keep'; set errors or warnings")
            if "examination" in sources
            else ("is missing", f"faulty is '{config.faulty}'; name a stage that uses examine")
        )
        raise HandoffError(f"filter: the input examination {found}, but {wanted}.")


def run(
    config: FilterEpisodesConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes,
    examination: Examination | None = None,
) -> Output[Episodes]:
    """Copies the episodes of `demos` that meet all conditions to `out/store.zarr`; every episode
    records where it comes from. An interrupted attempt restarts.

    Raises:
        HandoffError: no episode meets them, or `examination` is of other episodes.
    """
    from robots.episodes.curation.choose import filtered
    from robots.episodes.merge import MergeSource, copy_episodes
    from robots.episodes.store import EpisodeStore

    manifest = read_manifest(demos)
    excluded = config.exclude
    if examination is not None:
        excluded += _faulty(examination, manifest["digest"], config)
    store = EpisodeStore.open(demos / "store.zarr")
    kept, left_out = filtered(store, replace(config, exclude=excluded))
    source = MergeSource(manifest["stage"], demos / "store.zarr", manifest["digest"])
    copied = copy_episodes(source, out / "store.zarr", kept, progress)
    return Output(
        {
            **copied,
            "episodes_before": store.num_episodes,
            "left_out": left_out,
        }
    )


def _faulty(
    examination: Examination, demos_digest: str, config: FilterEpisodesConfig
) -> tuple[int, ...]:
    """Episodes in which an examination found faults."""
    import json

    from flows.stages.data.examine import FINDINGS

    examined = read_manifest(examination)["inputs"].get("demos")
    if examined != demos_digest:
        raise HandoffError(
            f"filter: the examination is of the episodes {str(examined)[:12]}, expected {demos_digest[:12]}, the input "
            "demos. Give both the same stage."
        )
    findings = json.loads((examination / FINDINGS).read_bytes())["findings"]
    severities = ("error",) if config.faulty == "errors" else ("error", "warning")
    return tuple(
        sorted({n for each in findings if each["severity"] in severities for n in each["episodes"]})
    )
