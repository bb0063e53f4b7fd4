"""Stage `gate`: stops the pipeline unless the exported policy matches the trained one and is fast
enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from real.deploy.release_gate import GateConfig
from robots.interfaces import Progress


def run(
    config: GateConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Replays the golden examples of `inputs["bundle"]` in ONNX Runtime and compares its latency
    with that of the teacher `inputs["reference"]`."""
    from real.deploy.release_gate import gate

    return gate(config, inputs["bundle"], inputs["reference"], out, progress)
