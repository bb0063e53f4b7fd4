"""Measures every condition of a release, writes the verdict, and refuses what misses one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.gating.ancestry import compared_with, find_ancestry, read_evaluations
from flows.gating.conditions import (
    Condition,
    at_least,
    at_most,
    not_evaluated,
    number,
    specification_conditions,
    unmet,
)
from flows.gating.config import GateConfig
from flows.gating.outcome import (
    FIGURES,
    LATENCIES,
    PAGE,
    VERDICT,
    Evidence,
    Gated,
    incumbent_bundle,
)
from flows.gating.page import write_page
from flows.runner.artifact import MANIFEST, read_manifest
from robots.config import to_plain
from robots.contract import GOLDEN_FILE, ONNX_FILE
from robots.errors import GateError, SafetyError
from robots.interfaces import Progress

if TYPE_CHECKING:
    from real.deploy.bundle_checks import Latencies
    from real.deploy.onnx_policy import OnnxPolicy


def gate(
    settings: GateConfig,
    bundle: Path,
    evidence: Evidence,
    out: Path,
    progress: Progress,
    *,
    resume: bool = False,
) -> dict[str, Any]:
    """Decides whether `bundle` is released.

    Args:
        settings: conditions and limits.
        bundle: folder with `policy.onnx` and `golden.npz`.
        evidence: exported teacher, evaluations and episodes at the twin.
        out: folder for `gate.json`, `verdict.json`, `latency.png`, the results of the played
            episodes, videos and the release page.
        progress: called with the progress of latency measurement and episodes.
        resume: whether `out` is kept for this gate alone, so that an interrupted call can go on
            with its episodes.

    Returns:
        The metrics: figures of the conditions, `conditions`, `passed` (True), `failed` (empty) and
        `looser`.

    Raises:
        GateError: a condition is not met; all files are written first.
        HandoffError: a file is missing or broken, or an input does not fit the bundle.
    """
    from flows.gating import parity
    from flows.gating.twin_limits import twin_conditions
    from real.deploy.bundle_checks import read_golden
    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(bundle / ONNX_FILE)
    golden = read_golden(bundle / GOLDEN_FILE)
    trained = parity.against_training(settings, policy, golden)
    stated = (parity.order_of_fields(policy, golden), parity.rate_of_training(policy, golden))
    conditions = [trained, *(each for each in stated if each is not None)]
    gated = Gated(settings, bundle, policy, conditions, {}, evidence=evidence)
    # Actions that are not finite can neither be timed nor played.
    if trained.value is not None:
        gated = _timed(gated, golden, out, progress)
        gated = _played(gated, golden, out, progress, resume)
        gated = gated.with_conditions(
            twin_conditions(settings.twin, evidence.twin, _digest(bundle), policy.contract.steps)
        )
    metrics = _write_verdict(gated, out)
    write_page(gated, out)
    if not gated.passed:
        problems = "; ".join(condition.sentence() for condition in unmet(gated.conditions))
        raise GateError(
            f"gate: {bundle.resolve().name} was not released: {problems}. The page {out / PAGE} has all conditions."
        )
    return metrics


def _timed(gated: Gated, golden: Mapping[str, np.ndarray], out: Path, progress: Progress) -> Gated:
    """Measures the inference time on the one thread of the robot's process."""
    from real.deploy.bundle_checks import draw_latencies, measure_latency
    from real.deploy.onnx_policy import OnnxPolicy

    settings, policy = gated.settings, gated.policy
    reference = gated.evidence.reference
    slow = None if reference is None else OnnxPolicy(reference / ONNX_FILE)
    latencies = measure_latency(settings.latency, policy, slow, golden, progress)
    draw_latencies(latencies, _limit_ms(settings, policy), out / LATENCIES)
    metrics = _latency_metrics(policy, slow, latencies)
    return gated.with_conditions(_latency(settings, policy, latencies), metrics)


def _played(
    gated: Gated, golden: Mapping[str, np.ndarray], out: Path, progress: Progress, resume: bool
) -> Gated:
    """Plays episodes by the code that the robot runs, and compares them."""
    from flows.gating import closed_loop, parity

    settings, policy = gated.settings, gated.policy
    ancestry = find_ancestry(gated.bundle, policy.contract)
    evaluations = compared_with(ancestry, read_evaluations(gated.evidence.evaluations))
    folder = out / closed_loop.EXPORTED
    try:
        played = closed_loop.play(
            settings, gated.bundle, policy.contract, folder, progress, resume=resume
        )
    except SafetyError as error:
        failed = Condition("episodes of the exported policy", "failed", note=str(error))
        return gated.with_conditions([failed])
    again = closed_loop.play_again(settings, gated.bundle, policy.contract, played)
    gated = _incumbent_played(gated, out, progress, resume)
    conditions = [
        parity.against_robot(settings, policy, golden, again),
        closed_loop.determinism(played, again),
        closed_loop.success(settings, played),
        *closed_loop.against_ancestors(settings, played, ancestry, evaluations),
        closed_loop.against_incumbent(settings, played, gated.incumbent_played),
        *specification_conditions(settings.specifications, played.metrics, ""),
    ]
    figures = ("score", "score_low", "score_high", "success")
    metrics = {key: played.metrics[key] for key in figures}
    gated = replace(gated, played=played, evaluations=evaluations)
    return gated.with_conditions(conditions, metrics)


def _incumbent_played(gated: Gated, out: Path, progress: Progress, resume: bool) -> Gated:
    """Plays the same episodes with the policy that is replaced, if there is one."""
    from flows.gating import closed_loop
    from real.deploy.onnx_policy import OnnxPolicy

    if not gated.settings.incumbent:
        return gated
    bundle = incumbent_bundle(gated.settings.incumbent)
    policy = OnnxPolicy(bundle / ONNX_FILE)
    played = closed_loop.play(
        gated.settings,
        bundle,
        policy.contract,
        out / closed_loop.INCUMBENT,
        progress,
        videos=0,
        resume=resume,
    )
    return replace(gated, incumbent=policy, incumbent_played=played)


def _limit_ms(settings: GateConfig, policy: OnnxPolicy) -> float:
    by_period = 1e3 * settings.period_share / policy.contract.rate_hz
    return by_period if settings.p99_ms is None else min(by_period, settings.p99_ms)


def _latency(settings: GateConfig, policy: OnnxPolicy, latencies: Latencies) -> Iterator[Condition]:
    p50, p99 = (float(value) for value in np.percentile(latencies.bundle, [50, 99]))
    limit = _limit_ms(settings, policy)
    period = 1e3 / policy.contract.rate_hz
    busy = "" if p99 <= limit else "; is the machine busy?"
    note = f"p50 {number(p50)} ms, one thread, control period {number(period)} ms{busy}"
    yield at_most("p99 latency", p99, limit, unit="ms", note=note, repeatable=False)
    if settings.min_speedup is None:
        return
    name = "speed-up over the reference"
    if not len(latencies.reference):
        yield not_evaluated(name, "there is no input 'reference', the exported teacher")
        return
    slow = float(np.median(latencies.reference))
    note = f"median of the reference {number(slow)} ms"
    yield at_least(name, slow / p50, settings.min_speedup, note=note, repeatable=False)


def _latency_metrics(
    policy: OnnxPolicy, slow: OnnxPolicy | None, latencies: Latencies
) -> dict[str, Any]:
    p50, p99 = (float(value) for value in np.percentile(latencies.bundle, [50, 99]))
    metrics = {
        "latency_p50_ms": p50,
        "latency_p99_ms": p99,
        "repeats": len(latencies.bundle),
        "sampler": policy.contract.sampler,
    }
    if slow is not None:
        slow_p50, slow_p99 = (
            float(value) for value in np.percentile(latencies.reference, [50, 99])
        )
        metrics |= {
            "reference_p50_ms": slow_p50,
            "reference_p99_ms": slow_p99,
            "speedup": slow_p50 / p50,
            "reference_sampler": slow.contract.sampler,
        }
    return metrics


def _write_verdict(gated: Gated, out: Path) -> dict[str, Any]:
    parity = gated.conditions[0]
    failed = [condition.sentence() for condition in unmet(gated.conditions)]
    verdict = {
        **({} if parity.value is None else {"parity": parity.value}),
        **gated.metrics,
        "passed": gated.passed,
        "failed": failed,
        "looser": gated.looser,
        "conditions": [condition.to_plain() for condition in gated.conditions],
    }
    limits = to_plain(gated.settings)
    (out / FIGURES).write_text(json.dumps({**verdict, "limits": limits}, indent=2) + "\n")
    repeatable = [each.to_plain() for each in gated.conditions if each.repeatable]
    (out / VERDICT).write_text(
        json.dumps({"conditions": repeatable, "limits": limits}, indent=2) + "\n"
    )
    return verdict


def _digest(bundle: Path) -> str | None:
    return read_manifest(bundle)["digest"] if (bundle / MANIFEST).is_file() else None
