"""Success against inference time in the report of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from flows.reports.page import write_report
from flows.reports.results import StageResult, Summary
from flows.reports.speed import INFERENCE, SPEED, policy_speeds
from flows.runner.artifact import MANIFEST
from sim.evaluation.charts import TimedSuccess, success_against_time

INPUTS = {
    "teacher": ("pretrain", {}),
    "student": ("distill", {"teacher": "d-teacher"}),
    "other": ("pretrain", {}),
    "scores@teacher": ("evaluate", {"policy": "d-teacher"}),
    "scores@student": ("evaluate", {"policy": "d-student"}),
    "scores@other": ("evaluate", {"policy": "d-other"}),
    "control": ("evaluate", {"policy": "d-teacher"}),
    "bundle": ("export", {"policy": "d-student"}),
    "gate": ("gate", {"bundle": "d-bundle"}),
}
TIMES = {"scores@teacher": (8.0, 10), "scores@student": (1.0, 1), "control": (1.1, 1)}
SOLVED = {
    "scores@teacher": 130,
    "scores@student": 110,
    "control": 54,
    "scores@other": 9,
    "gate": 108,
}


def rate(solved: int) -> dict[str, Any]:
    return {"k": solved, "n": 200, "low": solved / 200 - 0.07, "high": solved / 200 + 0.07}


def run_of(folder: Path) -> Summary:
    """A run's folder with the manifests of its stages, and the times of three evaluations."""
    stages = []
    for name, (uses, inputs) in INPUTS.items():
        metrics: dict[str, Any] = {"steps": 3, "loss": 0.1, "cpu_seconds": 1.0}
        config: dict[str, Any] = {}
        if uses == "evaluate":
            metrics = {"score": 0.9, "success": rate(SOLVED[name])}
            config = {
                "protocol": {"name": "p"},
                "denoising_steps": 1 if name == "control" else None,
            }
        elif uses == "export":
            metrics = {"sampler": "one-step", "bytes": 10}
        elif uses == "gate":
            metrics = {
                "success": rate(SOLVED[name]),
                "latency_p50_ms": 0.2,
                "latency_p99_ms": 0.4,
                "sampler": "one-step",
                "parity": 0.0,
                "looser": [],
            }
        path = folder / name
        path.mkdir(parents=True)
        manifest = {
            "kind": "any",
            "stage": name,
            "seconds": 1.0,
            "files": {},
            "digest": f"d-{name}",
            "uses": uses,
            "inputs": inputs,
            "config": config,
            "metrics": metrics,
            "code": "c",
            "environment": {"commit": "abc"},
        }
        (path / MANIFEST).write_text(json.dumps(manifest))
        if name in TIMES:
            p50, steps = TIMES[name]
            times = {"runtime": "torch", "device": "cpu", "denoising_steps": steps}
            (path / INFERENCE).write_text(json.dumps({**times, "p50_ms": p50, "p99_ms": 2 * p50}))
        stages.append(StageResult(name, uses, "done", 1.0, False, 1.0, "", f"d-{name}", metrics))
    return Summary("demonstrations", stages, {})


def test_every_policy_with_a_known_time_has_its_part_in_distillation(tmp_path: Path) -> None:
    summary = run_of(tmp_path)
    manifests = {
        each.name: json.loads((tmp_path / each.name / MANIFEST).read_text())
        for each in summary.stages
    }
    found = policy_speeds(tmp_path, summary, manifests)
    assert [(each.name, each.role, each.steps, each.p50_ms) for each in found] == [
        ("gate", "student", 1, 0.2),
        ("scores@student", "student", 1, 1.0),
        ("control", "control", 1, 1.1),
        ("scores@teacher", "teacher", 10, 8.0),
    ]
    assert [each.runtime for each in found] == ["ONNX Runtime", "torch", "torch", "torch"]


def test_the_report_shows_success_with_its_interval_against_time(tmp_path: Path) -> None:
    summary = run_of(tmp_path)
    write_report(tmp_path / "report.html", summary)
    page = (tmp_path / "report.html").read_text()
    assert f"<a href='#success-and-speed'>{SPEED}</a>" in page
    section = page.split("<h2 id='success-and-speed'>")[1].split("<h2")[0]
    assert "<td>scores@teacher<td>teacher<td>torch<td>10<td>8.00 ms<td>16.00 ms" in section
    assert "<td>54 of 200<td>0.20 to 0.34" in section
    for label in ("gate (student)", ">control<", "scores@teacher (teacher)"):
        assert label in section.split("<svg")[1]
    assert "scores@other" not in section


def test_no_success_at_all_is_drawn_although_the_interval_is_rounded() -> None:
    point = TimedSuccess("student", "student", 1.0, 0.0, 1e-18, 0.1)
    assert "student" in success_against_time([point, point._replace(rate=1.0, high=1.0 - 1e-16)])


def test_a_run_whose_times_are_unknown_has_no_such_section(tmp_path: Path) -> None:
    summary = run_of(tmp_path)
    for name in TIMES:
        (tmp_path / name / INFERENCE).unlink()
    summary = Summary(summary.source, [s for s in summary.stages if s.uses != "gate"], {})
    write_report(tmp_path / "report.html", summary)
    assert SPEED not in (tmp_path / "report.html").read_text()
