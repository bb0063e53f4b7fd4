"""Stage `gate`: stops the pipeline unless the exported policy matches the trained one and is fast
enough."""

from __future__ import annotations

from pathlib import Path

from flows.artifacts import Bundle, Gate, Output
from real.deploy.release_gate import GateConfig
from robots.interfaces import Progress

EXCLUSIVE = True
FIXED_SEEDS = True


def run(
    config: GateConfig,
    out: Path,
    progress: Progress,
    *,
    bundle: Bundle,
    reference: Bundle,
) -> Output[Gate]:
    """Replays the golden examples of `bundle` in ONNX Runtime and compares its latency
    with that of the teacher `reference`."""
    from real.deploy.release_gate import gate

    return Output(gate(config, bundle, reference, out, progress))
