"""Stage `export`: exports a policy to one ONNX file with its contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from flows.runner.artifact import read_manifest
from policies.export.onnx import ExportConfig
from robots.interfaces import Progress


def run(
    config: ExportConfig, inputs: dict[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Exports `inputs["policy"]`; golden examples are taken from `inputs["demos"]`."""
    from policies.export.onnx import export

    digests = {name: read_manifest(path)["digest"] for name, path in inputs.items()}
    return export(
        config,
        inputs["policy"],
        inputs["demos"],
        out,
        progress,
        digests["policy"],
        digests["demos"],
    )
