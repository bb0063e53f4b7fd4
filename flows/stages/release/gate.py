"""Stage `gate`: stops the pipeline unless the exported policy matches the trained one and is fast
enough."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.artifacts import Bundle, Gate, Output
from real.deploy.release_gate import FIGURES, LATENCIES, GateConfig, check_reference
from robots.interfaces import Progress

EXCLUSIVE = True
TELEMETRY = (FIGURES, LATENCIES)
FIXED_SEEDS = True


def check(config: GateConfig, sources: Mapping[str, Any]) -> None:
    """Refuses a required speed-up without a reference."""
    check_reference(config, given="reference" in sources)


def run(
    config: GateConfig,
    out: Path,
    progress: Progress,
    *,
    bundle: Bundle,
    reference: Bundle | None = None,
) -> Output[Gate]:
    """Replays the golden examples of `bundle` in ONNX Runtime, and compares its latency with the
    limit and, if there is one, with that of the teacher `reference`.

    Raises:
        GateError: a threshold was missed.
    """
    from real.deploy.release_gate import gate

    return Output(gate(config, bundle, reference, out, progress))
