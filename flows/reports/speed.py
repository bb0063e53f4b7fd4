"""Shows success against inference time for the policies of a run."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flows.reports.results import DISTILL, TEACHERS
from robots.html_page import heading, table

if TYPE_CHECKING:
    from flows.reports.results import StageResult, Summary

INFERENCE = "inference.json"
"""File of an evaluation with the time of one observation: runtime, device, denoising_steps (None
for a policy without a sampler), calls, p50_ms and p99_ms."""
SPEED = "Success and speed"
"""Heading of the section."""
Role = Literal["teacher", "student", "control", ""]
"""Part of a policy in distillation: `control` is a teacher with other sampler steps than its own;
empty for a policy that has no part in it."""


@dataclass(frozen=True)
class PolicySpeed:
    """Success and inference time of one policy."""

    name: str
    """Stage of the evaluation, or of the gate that played the exported file."""
    role: Role
    runtime: str
    steps: int | None
    """Sampler steps; None for a policy without a sampler."""
    p50_ms: float
    p99_ms: float
    success: Mapping[str, float]
    """Solved episodes `k` of `n`, and the interval `low` to `high` of their share."""


def policy_speeds(
    folder: Path, summary: Summary, manifests: Mapping[str, Mapping[str, Any]]
) -> list[PolicySpeed]:
    """Every policy of a run whose success and inference time are both known, fastest first.

    Args:
        folder: folder of the run, with a link per stage.
        summary: results of the run.
        manifests: manifests of the stages by name.
    """
    speeds = []
    for result in summary.stages:
        path = folder / result.name / INFERENCE
        manifest = manifests[result.name]
        if result.uses == "evaluate" and path.is_file():
            times = json.loads(path.read_bytes())
            role = _role(manifest, summary, manifests)
            speeds.append(_evaluated(result, role, times))
        elif result.uses == "gate" and "success" in result.metrics:
            speeds.append(_gated(result, manifest, manifests))
    return sorted(speeds, key=lambda each: each.p50_ms)


def speed_section(speeds: Sequence[PolicySpeed]) -> Iterator[str]:
    """Yields the section: a table, and a plot if there are policies to compare."""
    from sim.evaluation.charts import TimedSuccess, success_against_time

    yield heading(SPEED)
    yield (
        "<p>Time of one observation on one thread: of torch after the evaluation, on the machine that ran it; of "
        "ONNX Runtime in the gate, whose success is that of the exported file.</p>"
    )
    headings = ("stage", "policy", "runtime", "steps", "median", "p99", "success", "95 % interval")
    rows = []
    for each in speeds:
        success = each.success
        cells = (
            each.name,
            each.role,
            each.runtime,
            "1" if each.steps is None else str(each.steps),
            f"{each.p50_ms:.2f} ms",
            f"{each.p99_ms:.2f} ms",
            f"{success['k']} of {success['n']}",
            f"{success['low']:.2f} to {success['high']:.2f}",
        )
        rows.append(cells)
    yield table(headings, rows)
    if len(speeds) > 1:
        points = [
            TimedSuccess(
                each.name if each.role in ("", each.name) else f"{each.name} ({each.role})",
                each.role,
                each.p50_ms,
                each.success["k"] / each.success["n"],
                each.success["low"],
                each.success["high"],
            )
            for each in speeds
        ]
        yield f"<figure>{success_against_time(points)}</figure>"


def _evaluated(result: StageResult, role: Role, times: Mapping[str, Any]) -> PolicySpeed:
    device = "" if times["device"] == "cpu" else f", {times['device']}"
    return PolicySpeed(
        result.name,
        role,
        times["runtime"] + device,
        times["denoising_steps"],
        times["p50_ms"],
        times["p99_ms"],
        result.metrics["success"],
    )


def _gated(
    result: StageResult,
    manifest: Mapping[str, Any],
    manifests: Mapping[str, Mapping[str, Any]],
) -> PolicySpeed:
    exported = _made(manifest["inputs"].get("bundle"), manifests)
    policy = None if exported is None else _made(exported["inputs"].get("policy"), manifests)
    sampler, _, steps = str(result.metrics["sampler"]).rpartition("-")
    return PolicySpeed(
        result.name,
        "student" if policy is not None and policy["uses"] == DISTILL else "",
        "ONNX Runtime",
        int(steps) if sampler and steps.isdigit() else 1,
        result.metrics["latency_p50_ms"],
        result.metrics["latency_p99_ms"],
        result.metrics["success"],
    )


def _role(
    manifest: Mapping[str, Any], summary: Summary, manifests: Mapping[str, Mapping[str, Any]]
) -> Role:
    """Part that the policy of an evaluation has in the run's distillations; without its cameras, it
    is a control."""
    if manifest["config"].get("blind"):
        return "control"
    policy = manifest["inputs"].get("policy")
    distilled = [result for result in summary.stages if result.uses == DISTILL]
    if policy in {result.digest for result in distilled}:
        return "student"
    teachers = {
        digest
        for result in distilled
        for name, digest in manifests[result.name]["inputs"].items()
        if name.partition(".")[0] in TEACHERS
    }
    if policy not in teachers:
        return ""
    return "teacher" if manifest["config"].get("denoising_steps") is None else "control"


def _made(
    digest: str | None, manifests: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any] | None:
    """The manifest of the artifact with this digest; None if no stage of the run made it."""
    return next((each for each in manifests.values() if each["digest"] == digest), None)
