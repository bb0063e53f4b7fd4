"""Stage `examine`: looks for faults in recorded episodes, such as a stuck camera."""

from __future__ import annotations

import json
from pathlib import Path

from flows.artifacts import Episodes, Examination, Output
from flows.runner.artifact import read_manifest
from flows.stages.data.config import ExamineEpisodesConfig
from robots.errors import HandoffError
from robots.interfaces import Progress

TELEMETRY = ("report.html",)
FINDINGS = "examination.json"


def run(
    config: ExamineEpisodesConfig,
    out: Path,
    progress: Progress,
    *,
    demos: Episodes,
) -> Output[Examination]:
    """Examines every episode of `demos`, and writes the findings to `examination.json` and
    `report.html`. An interrupted attempt restarts.

    Raises:
        HandoffError: more errors or warnings than the options accept; both files are written first.
    """
    from flows.reports.dataset_text import counted
    from robots.config import to_plain
    from robots.episodes.curation.examination import count_findings
    from robots.episodes.curation.examine import examine
    from robots.episodes.curation.examine_page import write_examination
    from robots.episodes.store import EpisodeStore
    from robots.storage.durable import write_atomically

    with EpisodeStore.open(demos / "store.zarr") as store:
        examination = examine(store, config.limits, progress)
    write_atomically(out / FINDINGS, (json.dumps(to_plain(examination), indent=2) + "\n").encode())
    page = write_examination(examination, out / "report.html")
    counts = count_findings(examination)
    for severity, limit in (("error", config.max_errors), ("warning", config.max_warnings)):
        found = [each for each in examination.findings if each.severity == severity]
        if limit is not None and len(found) > limit:
            number = counted(len(found), severity)
            raise HandoffError(
                f"{read_manifest(demos)['stage']}: {number} in the episodes, at most {limit} accepted "
                f"(max_{severity}s). The first: {found[0].sentence} The page {page} has all."
            )
    return Output(
        {
            "episodes": examination.episodes,
            "frames": examination.steps,
            "errors": counts["error"],
            "warnings": counts["warning"],
            "checks": sorted({each.check for each in examination.findings}),
        }
    )
