"""Stage `gate`: the robot process must agree with the trainer, and be fast enough, or nothing goes
on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from real.deploy.release_gate import GateConfig
from robots.interfaces import Progress


def run(
    config: GateConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Replays the golden vectors of `inputs["bundle"]` in ONNX Runtime beside the teacher
    `inputs["reference"]`."""
    from real.deploy.release_gate import gate

    return gate(config, inputs["bundle"], inputs["reference"], out, progress)
