"""Tiny bundles with evaluations of their policies, as a run leaves them."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from flows.config.protocols import push_t_published
from flows.evaluation.agents import make_agent
from flows.gating.config import GateConfig, TwinLimits
from flows.gating.gate import gate
from flows.gating.outcome import Evidence
from real.deploy.bundle_checks import LatencyConfig
from real.deploy.onnx_policy import OnnxPolicy
from robots.interfaces import no_progress
from sim.evaluation.evaluate import EvaluateConfig, evaluate, make_env
from sim.evaluation.protocol import Sampling
from tests.real.onnx_models import save_policy

PROTOCOL = replace(push_t_published(), episodes=4, max_steps=20)
EVALUATE = EvaluateConfig(videos=0)
# Policies as small as these solve nothing, and their times say nothing.
LENIENT = GateConfig(
    protocol=PROTOCOL,
    evaluate=EVALUATE,
    latency=LatencyConfig(repeats=20, warmup=2),
    p99_ms=1e6,
    period_share=1.0,
    min_success=0.0,
    margin=0.01,
    repeated=2,
    twin=None,
)
PULLED = {"scale": 0.05}
"""A policy that moves the pusher by its noise, far more than the usual one."""


METRICS = {"steps": 1, "updates": 1, "success": 0.0, "loss": 0.0, "cpu_seconds": 1.0}
"""Metrics that the text about an artifact names."""


def write_manifest(folder: Path, **entries: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    base = {"kind": "policy", "stage": folder.name, "digest": folder.name, "inputs": {}}
    made = {"finished": "", "seconds": 0.0, "code": "c" * 12, "environment": {"commit": "none"}}
    manifest = {**base, **made, "metrics": METRICS, "files": {}, "input_paths": {}, **entries}
    (folder / "artifact.json").write_text(json.dumps(manifest))
    return folder


def write_bundle(folder: Path, **changes: Any) -> Path:
    """A bundle with golden examples of its own policy."""
    folder.mkdir(parents=True)
    save_policy(folder / "policy.onnx", **changes)
    generator = np.random.default_rng(0)
    observation = generator.normal(size=(5, 2, 20)).astype(np.float32)
    noise = generator.normal(size=(5, 16, 2)).astype(np.float32)
    examples = {
        "observation": observation,
        "noise": noise,
        "action": OnnxPolicy(folder / "policy.onnx")(observation, noise),
        "action_scale": np.full((16, 2), 0.25),
        "rate_hz": np.array(10.0),
        "fields/keypoints": observation[..., :18].reshape(5, 2, 9, 2),
        "fields/agent": observation[..., 18:],
    }
    np.savez(folder / "golden.npz", **examples)
    return folder


def write_evaluation(folder: Path, policy: Path, digest: str, steps: int = 1) -> Path:
    """An evaluation of an ONNX file, as that of the policy with that digest."""
    folder.mkdir(parents=True)
    protocol = replace(PROTOCOL, sampling=Sampling())
    entrant = make_agent(str(policy / "policy.onnx"), protocol)
    execution = {**entrant.execution, "denoising_steps": steps}
    metrics = evaluate(
        protocol,
        EVALUATE,
        entrant.load,
        partial(make_env, protocol),
        folder,
        no_progress,
        execution,
    )
    return write_manifest(
        folder, kind="evaluation", inputs={"policy": digest}, metrics=metrics, uses="evaluate"
    )


class Run:
    """The artifacts of a run: teacher, student, bundle, evaluations."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        write_manifest(folder / "teacher", uses="pretrain")
        write_manifest(
            folder / "student",
            uses="distill",
            inputs={"teacher": "teacher"},
            input_paths={"teacher": "../teacher"},
        )
        self.bundle = write_bundle(folder / "bundle", policy="student")
        write_manifest(
            self.bundle,
            kind="bundle",
            inputs={"policy": "student"},
            input_paths={"policy": "../student"},
        )
        self.evaluations = [
            write_evaluation(folder / "scores@student", self.bundle, "student"),
            write_evaluation(folder / "scores@teacher", self.bundle, "teacher", steps=10),
            write_evaluation(folder / "control", self.bundle, "teacher"),
        ]
        self.out = folder / "gate"
        self.out.mkdir()

    def gate(
        self, settings: GateConfig = LENIENT, *, resume: bool = False, **evidence: Any
    ) -> dict[str, Any]:
        given = {"evaluations": self.evaluations, **evidence}
        return gate(settings, self.bundle, Evidence(**given), self.out, no_progress, resume=resume)

    def replace_policy(self, **changes: Any) -> None:
        """Another file in the bundle, with the golden examples of the first one."""
        save_policy(self.bundle / "policy.onnx", policy="student", **changes)

    def verdict(self) -> dict[str, dict[str, Any]]:
        """The conditions in `gate.json`, by name."""
        verdict = json.loads((self.out / "gate.json").read_text())
        return {condition["name"]: condition for condition in verdict["conditions"]}


STRICT_TWIN = TwinLimits()
