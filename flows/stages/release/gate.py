"""Stage `gate`: stops the pipeline unless what the exported file does is as good as what was
trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.artifacts import Bundle, Episodes, Evaluation, Gate, Output
from flows.gating.checks import check_inputs, incumbent_digest
from flows.gating.config import GateConfig
from robots.interfaces import Progress

EXCLUSIVE = True
TELEMETRY = ("gate.json", "latency.png", "*.html", "*.mp4")
FIXED_SEEDS = True


def external(config: GateConfig, fetch: bool) -> dict[str, str]:
    """Digest of the policy that is replaced."""
    return {} if not config.incumbent else {"incumbent": incumbent_digest(config.incumbent)}


def check(config: GateConfig, sources: Mapping[str, Any]) -> None:
    """Refuses inputs with which the gate cannot pass."""
    check_inputs(config, sources)


def run(
    config: GateConfig,
    out: Path,
    progress: Progress,
    *,
    bundle: Bundle,
    reference: Bundle | None = None,
    scores: Sequence[Evaluation] | None = None,
    twin: Episodes | None = None,
) -> Output[Gate]:
    """Plays episodes with the exported file of `bundle` as the robot runs it, and compares them
    with the evaluations `scores` of the trained policy and its teacher, start by start; checks
    parity, latency, repeatability and the episodes at the `twin`.

    `reference` is the exported teacher, whose inference time is compared.

    Raises:
        GateError: a condition is not met.
    """
    from flows.gating.gate import gate
    from flows.gating.outcome import Evidence

    evidence = Evidence(reference, scores or (), twin)
    return Output(gate(config, bundle, evidence, out, progress, resume=True))
