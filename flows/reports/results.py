"""Defines the results of a run, and describes each stage's result in a phrase."""

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
"""Source of every metric in the summary: stage and name of its metric."""


@dataclass(frozen=True)
class StageResult:
    """Result of one stage, a row of the summary."""

    name: str
    status: str
    seconds: float
    """Time spent in this run [s]."""
    cached: bool
    computed_seconds: float
    """Time of its computation, in this run or an earlier one [s]."""
    artifact: str
    digest: str
    metrics: Mapping[str, Any]


@dataclass(frozen=True)
class Summary:
    """Results of a run."""

    source: str
    """Description of the demonstrations, one line."""
    stages: Sequence[StageResult]
    metrics: Mapping[str, Any]

    def with_times(self, started: float, now: float) -> Summary:
        """Returns the summary with the times of the whole run, from `started` to `now` [s since the
        epoch].

        All time in which no stage runs counts as Prefect's share, including its import and the
        start of its server.
        """
        total = now - started
        idle = max(0.0, total - self.metrics["stages_busy_seconds"])
        times = {"total_seconds": round(total, 2), "prefect_share": round(idle / total, 4)}
        return replace(self, metrics={**self.metrics, **times})


def _deployment(metrics: Mapping[str, Any]) -> str:
    """Describes the outcome of the starts on the twin."""
    faults = f", {metrics['faults']} ended by a fault" if metrics["faults"] else ""
    if "coverage" in metrics:
        return f"coverage {metrics['coverage']:.2f} over {metrics['starts']} starts{faults}"
    return f"solved {metrics['success']['k']} of {metrics['starts']} starts{faults}"


def describe(stage: str, metrics: Mapping[str, Any]) -> str:
    """Describes a stage's result in one phrase."""
    match stage.partition("_")[0]:
        case "ingest":
            return f"{metrics['episodes']} episodes, {metrics['frames']:,} frames"
        case "play":
            return f"{metrics['episodes']} episodes, {metrics['hours']:.1f} h of play"
        case "world":
            horizon, error = list(metrics["error"].items())[-1]
            stays = metrics["stays"][horizon]
            return f"error {error:.2f} standard deviations after {horizon} steps (constant prediction: {stays:.2f})"
        case "distil" if "kl" in metrics:
            chunks = metrics["asked"]
            kl = metrics["kl"]
            return f"{chunks:,} chunks distilled, divergence {kl:.3g} nat, {metrics['cpu_seconds'] / 60:.1f} CPU min"
        case "pretrain" | "distil":
            return f"{metrics['steps']:,} steps, loss {metrics['loss']:.4f}, {metrics['cpu_seconds'] / 60:.1f} CPU min"
        case "finetune":
            return (
                f"{metrics['steps']:,} fine-tuning steps, {metrics['cpu_seconds'] / 60:.1f} CPU min"
            )
        case "reinforce":
            spent = f"{metrics['steps']:,} steps, {metrics['updates']:,} updates"
            return f"{spent}, success {metrics['success']:.2f} in training, {metrics['cpu_seconds'] / 60:.1f} CPU min"
        case "evaluate":
            success = metrics["success"]
            rate = success["k"] / success["n"]
            low = success["low"]
            high = success["high"]
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
            return f"{_deployment(metrics)}, {speed:.1f}x real time, {lost} packets lost"
        case _:
            return ""
