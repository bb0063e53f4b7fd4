"""Options of this package."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

METRICS = {
    "pretrained_score": ("evaluate_pretrained", "score"),
    "pretrained_success": ("evaluate_pretrained", "success"),
    "pusht_score": ("evaluate_teacher", "score"),
    "pusht_success": ("evaluate_teacher", "success"),
    "student_score": ("evaluate_student", "score"),
    "student_success": ("evaluate_student", "success"),
    "one_step_control_score": ("evaluate_control", "score"),
    "one_step_control_success": ("evaluate_control", "success"),
    "student_speedup": ("gate", "speedup"),
    "parity": ("gate", "parity"),
    "latency_p50_ms": ("gate", "latency_p50_ms"),
    "latency_p99_ms": ("gate", "latency_p99_ms"),
    "twin_realtime_factor": ("deploy", "realtime_factor"),
    "twin_lost_packets": ("deploy", "lost_packets"),
    "twin_success_rate": ("deploy", "command_success_rate"),
    "twin_coverage": ("deploy", "coverage"),
    "twin_solved": ("deploy", "success"),
}
"""Name in the summary: the stage and the metric it comes from."""


@dataclass(frozen=True)
class StageResult:
    """One row of the summary."""

    name: str
    status: str
    seconds: float
    """Spent on it in this run [s]."""
    cached: bool
    computed_seconds: float
    """Spent when it was computed, in this run or an earlier one [s]."""
    artifact: str
    digest: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """What a run did and reached."""

    source: str
    """One line: which demonstrations were used."""
    stages: Sequence[StageResult]
    metrics: Mapping[str, Any]

    def ended(self, started: float, now: float) -> Summary:
        """The same with the times of the whole run, from `started` to `now` [s since the epoch].

        All the time in which no stage was at work counts as Prefect's share, its import and its
        server's start too.
        """
        total = now - started
        idle = max(0.0, total - self.metrics["stages_busy_seconds"])
        times = {"total_seconds": round(total, 2), "prefect_share": round(idle / total, 4)}
        return replace(self, metrics={**self.metrics, **times})


def _reached(metrics: Mapping[str, Any]) -> str:
    """What came of the starts on the twin."""
    faults = f", {metrics['faults']} ended by a fault" if metrics["faults"] else ""
    if "coverage" in metrics:
        return f"coverage {metrics['coverage']:.2f} over {metrics['starts']} starts{faults}"
    return f"solved {metrics['success']['k']} of {metrics['starts']} starts{faults}"


def describe(stage: str, metrics: Mapping[str, Any]) -> str:
    """A stage's result in one phrase."""
    match stage.partition("_")[0]:
        case "ingest":
            return f"{metrics['episodes']} episodes, {metrics['frames']:,} frames"
        case "play":
            return f"{metrics['episodes']} episodes, {metrics['hours']:.1f} h of play"
        case "world":
            horizon, error = list(metrics["error"].items())[-1]
            stays = metrics["stays"][horizon]
            return f"off by {error:.2f} deviations after {horizon} steps (staying put: {stays:.2f})"
        case "distil" if "kl" in metrics:
            asked, kl = metrics["asked"], metrics["kl"]
            return f"{asked:,} decisions taught, divergence {kl:.3g} nat, {metrics['cpu_seconds'] / 60:.1f} CPU min"
        case "pretrain" | "distil":
            return f"{metrics['steps']:,} steps, loss {metrics['loss']:.4f}, {metrics['cpu_seconds'] / 60:.1f} CPU min"
        case "finetune":
            return (
                f"{metrics['steps']:,} steps of practice, {metrics['cpu_seconds'] / 60:.1f} CPU min"
            )
        case "reinforce":
            spent = f"{metrics['steps']:,} steps, {metrics['updates']:,} updates"
            return f"{spent}, success {metrics['success']:.2f} in practice, {metrics['cpu_seconds'] / 60:.1f} CPU min"
        case "evaluate":
            success = metrics["success"]
            rate, low, high = success["k"] / success["n"], success["low"], success["high"]
            return f"score {metrics['score']:.3f}, success {rate:.2f} [{low:.2f}, {high:.2f}] (n = {success['n']})"
        case "export":
            return f"{metrics['sampler']}, {metrics['bytes'] / 1e6:.1f} MB"
        case "gate":
            return (
                f"parity {metrics['parity']:.1e}, p50 {metrics['latency_p50_ms']:.3f} ms, "
                f"p99 {metrics['latency_p99_ms']:.3f} ms, {metrics['speedup']:.1f}x the teacher"
            )
        case "deploy":
            speed, lost = metrics["realtime_factor"], metrics["lost_packets"]
            return f"{_reached(metrics)}, {speed:.1f}x real time, {lost} packets lost"
        case _:
            return ""
