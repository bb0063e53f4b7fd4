"""Artifacts as a pipeline leaves them: demonstrations, policy, bundle, evaluation, gate, approval."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flows.runner.artifact import Artifact, seal
from tests.real.onnx_models import save_policy

MADE = {
    "seconds": 1.0,
    "finished": "2026-11-26T10:00:00Z",
    "code": "",
    "seeds": {},
    "person": "ada",
    "environment": {"commit": "e91c3cf"},
}


class MadeRuns:
    """A runs folder with the artifacts of one pipeline."""

    def __init__(
        self, runs: Path, *, passed: bool = True, looser: Sequence[str] = (), surplus: str = ""
    ) -> None:
        self.runs = runs
        demos = self._made("demos", "episodes", {"store.txt": b"episodes"})
        student = self._made("student", "policy", {"weights.txt": b"weights"}, {"demos": demos})
        files = {"golden.npz": b"golden", **({surplus: b"surplus"} if surplus else {})}
        self.bundle = self._made(
            "bundle", "bundle", files, {"policy": student, "demos": demos}, policy=True
        )
        scores = self._made(
            "scores@student",
            "evaluation",
            {"episodes.json": b"[]", "failure-0.mp4": b"video", "report.html": b"page"},
            {"policy": student},
            telemetry=("*.mp4", "report.html"),
        )
        self.gate = self._made(
            "gate",
            "gate",
            {"gate.json": b"{}", "verdict.json": b"{}"},
            {"bundle": self.bundle},
            {"passed": passed, "conditions": [], "looser": list(looser)},
            telemetry=("gate.json",),
        )
        about = {"bundle": self.bundle.digest, "gate": self.gate.digest}
        self.approval = self._made(
            "approval",
            "approval",
            {"answer.json": b"{}", "release.html": b"page"},
            {"bundle": self.bundle, "gate": self.gate, "scores": scores},
            {
                "decision": "approved",
                "by": "Grace",
                "time": "2026-11-26T11:00:00Z",
                "about": about,
                "valid_until": time.time() + 3600.0,
            },
        )
        lab = runs / "lab"
        lab.mkdir()
        for name in ("bundle", "gate", "approval"):
            (lab / name).symlink_to(f"../artifacts/{name}")

    def _made(
        self,
        stage: str,
        kind: str,
        files: Mapping[str, bytes],
        inputs: Mapping[str, Artifact] | None = None,
        metrics: Mapping[str, Any] | None = None,
        *,
        telemetry: tuple[str, ...] = (),
        policy: bool = False,
    ) -> Artifact:
        folder = self.runs / "artifacts"
        partial = folder / f"{stage}.partial"
        partial.mkdir(parents=True)
        for name, data in files.items():
            (partial / name).write_bytes(data)
        if policy:
            # It stays where the pusher is.
            save_policy(partial / "policy.onnx", scale=0.0)
        sources = inputs or {}
        record = {
            **MADE,
            "stage": stage,
            "metrics": dict(metrics or {}),
            "inputs": {name: source.digest for name, source in sources.items()},
            "input_paths": {name: f"../{source.path.name}" for name, source in sources.items()},
        }
        return seal(partial, folder / stage, kind, record, telemetry)
