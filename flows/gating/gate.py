"""Measures every condition of a release, writes the verdict, and refuses what misses one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flows.gating.ancestry import find_ancestry, read_evaluations
from flows.gating.conditions import Condition, at_least, at_most, not_evaluated, number, unmet
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
from robots.contract import ONNX_FILE
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
    gated = measure(settings, bundle, evidence, out, progress, resume=resume)
    metrics = _write_verdict(gated, out)
    write_page(gated, out)
    if not gated.passed:
        problems = "; ".join(condition.sentence() for condition in unmet(gated.conditions))
        raise GateError(
            f"gate: {bundle.resolve().name} was not released: {problems}. The page {out / PAGE} has all conditions."
        )
    return metrics


def measure(
    settings: GateConfig,
    bundle: Path,
    evidence: Evidence,
    out: Path,
    progress: Progress,
    *,
    resume: bool = False,
) -> Gated:
    """Measures every condition; see `gate`."""
    from flows.gating import closed_loop, parity
    from flows.gating.twin_limits import twin_conditions
    from real.deploy.bundle_checks import GOLDEN_FILE, draw_latencies, measure_latency, read_golden
    from real.deploy.onnx_policy import OnnxPolicy

    policy = OnnxPolicy(bundle / ONNX_FILE)
    golden = read_golden(bundle / GOLDEN_FILE)
    conditions = [parity.against_training(settings, policy, golden)]
    stated = (parity.order_of_fields(policy, golden), parity.rate_of_training(policy, golden))
    conditions += [condition for condition in stated if condition is not None]
    gated = Gated(settings, bundle, policy, conditions, {}, evidence=evidence)
    if conditions[0].state == "failed" and conditions[0].value is None:
        # Actions that are not finite can neither be timed nor played.
        return gated
    # Latency on the thread of the robot's process.
    reference = evidence.reference
    slow = None if reference is None else OnnxPolicy(reference / ONNX_FILE)
    latencies = measure_latency(settings.latency, policy, slow, golden, progress)
    draw_latencies(latencies, _limit_ms(settings, policy), out / LATENCIES)
    metrics = _latency_metrics(policy, slow, latencies)
    conditions += _latency(settings, policy, latencies)
    # Episodes, by the code that the robot runs.
    played = incumbent = incumbent_played = None
    try:
        played = closed_loop.play(
            settings,
            bundle,
            policy.contract,
            out / closed_loop.EXPORTED,
            progress,
            resume=resume,
        )
    except SafetyError as error:
        conditions.append(Condition("episodes of the exported policy", "failed", note=str(error)))
    if played is not None:
        again = closed_loop.play_again(settings, bundle, policy.contract, played)
        conditions += [
            parity.against_robot(settings, policy, golden, again),
            closed_loop.determinism(played, again),
            closed_loop.success(settings, played),
        ]
        conditions += closed_loop.against_ancestors(
            settings,
            played,
            find_ancestry(bundle, policy.contract),
            read_evaluations(evidence.evaluations),
        )
        if settings.incumbent:
            folder = incumbent_bundle(settings.incumbent)
            incumbent = OnnxPolicy(folder / ONNX_FILE)
            incumbent_played = closed_loop.play(
                settings,
                folder,
                incumbent.contract,
                out / closed_loop.INCUMBENT,
                progress,
                videos=0,
                resume=resume,
            )
        conditions.append(closed_loop.against_incumbent(settings, played, incumbent_played))
        metrics |= {
            key: played.metrics[key] for key in ("score", "score_low", "score_high", "success")
        }
    conditions += twin_conditions(settings.twin, evidence.twin, _digest(bundle))
    return replace(
        gated,
        conditions=conditions,
        metrics=metrics,
        played=played,
        incumbent=incumbent,
        incumbent_played=incumbent_played,
    )


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
