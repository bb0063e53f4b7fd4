"""The report of a run shows what was imported."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flows.reports.page import write_report
from flows.reports.results import StageResult, Summary
from flows.stages.data.ingest import SHIPPED
from robots.episodes.ingest import IngestConfig, ingest
from robots.episodes.write_episodes import write_episodes
from robots.interfaces import no_progress
from tests.flows.commands.test_planning import made


def test_task_rate_robot_and_fields_of_imported_episodes_are_shown(tmp_path: Path) -> None:
    episode = {"q": np.zeros((9, 7), np.float32), "action": np.zeros((9, 7), np.float32)}
    write_episodes(
        tmp_path / "towel.zarr",
        [episode],
        task="fold",
        rate_hz=20.0,
        units={"q": "rad"},
        robot="fr3",
    )
    (tmp_path / "out").mkdir()
    config = IngestConfig(data=str(tmp_path / "towel.zarr"))
    metrics = ingest(config, tmp_path / "out", no_progress, SHIPPED)
    made(tmp_path, "demos", "ingest", 1.0, metrics=metrics, environment={"commit": "abc"})
    (artifact,) = tmp_path.glob("artifacts/demos-*")
    (tmp_path / "demos").symlink_to(artifact)
    result = StageResult("demos", "ingest", "done", 1.0, False, 1.0, "", "d" * 64, metrics)
    write_report(tmp_path / "report.html", Summary("", [result], {}))
    page = (tmp_path / "report.html").read_text()
    assert "<p>fold, 20 Hz, fr3</p>" in page
    assert "<tr><td>q<td>float32 (7) [rad], observation</tr>" in page
