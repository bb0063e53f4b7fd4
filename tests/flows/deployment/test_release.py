"""`handoff deploy` accepts the unchanged bundle that passed a gate, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.deployment.release import check_limits, released_bundle
from flows.deployment.session import session_options
from flows.reports.explain import explain
from flows.runner.artifact import file_digest, json_digest, seal
from robots.errors import HandoffError
from tests.flows.deployment.releases import MADE


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A gate that was passed, beside its bundle, as the pipeline leaves them."""
    partial = tmp_path / "bundle.partial"
    partial.mkdir()
    (partial / "policy.onnx").write_bytes(b"good")
    (partial / "golden.npz").write_bytes(b"vectors")
    figures = {"sampler": "one step", "bytes": 4}
    record = {"stage": "export", "metrics": figures, "inputs": {}, "input_paths": {}, **MADE}
    bundle = seal(partial, tmp_path / "bundle", "bundle", record)
    return gated(tmp_path, bundle.digest, passed=True)


def gated(folder: Path, digest: str, *, passed: bool) -> Path:
    partial = folder / "gate.partial"
    partial.mkdir()
    (partial / "gate.json").write_text('{"passed": false}')
    figures = {
        "passed": passed,
        "parity": 0.0,
        "latency_p50_ms": 0.1,
        "latency_p99_ms": 0.2,
        "speedup": 9.0,
    }
    links = {"inputs": {"bundle": digest}, "input_paths": {"bundle": "../bundle"}}
    return seal(
        partial, folder / "gate", "gate", {"stage": "gate", "metrics": figures, **links, **MADE}
    ).path


def rewrite(artifact: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Edits a manifest by hand."""
    manifest = json.loads((artifact / "artifact.json").read_text())
    change(manifest)
    (artifact / "artifact.json").write_text(json.dumps(manifest))


def replace_policy(bundle: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    (bundle / "policy.onnx").write_bytes(b"EVIL")
    rewrite(bundle, change)


def note_hash(bundle: Path) -> Callable[[dict[str, Any]], Any]:
    return lambda manifest: manifest["files"]["policy.onnx"].update(
        sha256=file_digest(bundle / "policy.onnx")
    )


def recompute_digests(manifest: dict[str, Any]) -> None:
    """Recomputes all digests, as a person who knows the code can."""
    manifest.pop("manifest_digest")
    manifest["digest"] = json_digest(
        {name: entry["sha256"] for name, entry in manifest["files"].items()}
    )
    manifest["manifest_digest"] = json_digest(manifest)


def refused(gate: Path, message: str) -> None:
    """Asserts that deploying and verifying both fail with the message."""
    with pytest.raises(HandoffError, match=message):
        released_bundle(gate)
    with pytest.raises(
        HandoffError,
        match=message.replace("is not the bundle that passed", "its input 'bundle' had"),
    ):
        explain(gate, verify=True)


def test_the_bundle_that_passed_is_released_and_its_chain_verified(gate: Path) -> None:
    assert released_bundle(gate) == gate.parent / "bundle"
    assert [
        line.endswith("  verified")
        for line in explain(gate, verify=True).splitlines()
        if ") " in line
    ] == [
        True,
        True,
    ]


def test_another_policy_whose_hash_was_written_into_the_manifest_is_refused(gate: Path) -> None:
    bundle = gate.parent / "bundle"
    (bundle / "policy.onnx").write_bytes(b"EVIL")
    rewrite(bundle, note_hash(bundle))
    refused(gate, r"bundle: 'digest' in artifact.json is")


def test_another_policy_that_was_taken_out_of_the_manifest_is_refused(gate: Path) -> None:
    replace_policy(gate.parent / "bundle", lambda manifest: manifest["files"].pop("policy.onnx"))
    refused(gate, r"bundle: 'digest' in artifact.json is")


@pytest.mark.parametrize("name", ["inside.bin", "weights/artifact.json"])
def test_a_file_beside_the_policy_is_refused(gate: Path, name: str) -> None:
    added = gate.parent / "bundle" / name
    added.parent.mkdir(exist_ok=True)
    added.write_bytes(b"weights of another policy")
    refused(gate, f"bundle: 1 files are not in its manifest, e.g. {name}")


def test_a_policy_that_is_a_link_is_refused(gate: Path) -> None:
    policy = gate.parent / "bundle" / "policy.onnx"
    policy.rename(gate.parent / "elsewhere.onnx")
    policy.symlink_to(gate.parent / "elsewhere.onnx")
    refused(gate, "policy.onnx is a link")


def test_a_verdict_that_was_written_into_the_manifest_is_refused(
    gate: Path, tmp_path: Path
) -> None:
    digest = json.loads((gate / "artifact.json").read_text())["inputs"]["bundle"]
    gate.rename(tmp_path / "passed")
    failed = gated(tmp_path, digest, passed=False)
    with pytest.raises(HandoffError, match="expected that of a passed gate"):
        released_bundle(failed)
    rewrite(failed, lambda manifest: manifest["metrics"].update(passed=True))
    refused(failed, "gate: 'manifest_digest' in artifact.json is")


def test_a_gate_whose_files_changed_is_refused(gate: Path) -> None:
    (gate / "gate.json").write_text('{"passed": true }')
    refused(gate, "gate.json has sha256")


def test_another_bundle_with_digests_of_its_own_is_refused(gate: Path) -> None:
    bundle = gate.parent / "bundle"
    (bundle / "policy.onnx").write_bytes(b"EVIL")
    rewrite(bundle, note_hash(bundle))
    rewrite(bundle, recompute_digests)
    refused(gate, "is not the bundle that passed")


@pytest.mark.parametrize("older", ["gate", "bundle"])
def test_what_an_older_version_sealed_is_not_deployed_and_not_called_verified(
    gate: Path, older: str
) -> None:
    rewrite(gate.parent / older, lambda manifest: manifest.pop("manifest_digest"))
    with pytest.raises(
        HandoffError,
        match=f"{older}: its manifest has no digest.* run the recipe again",
    ):
        released_bundle(gate)
    text = explain(gate, verify=True)
    assert text.count("  verified") == 1
    assert text.count("  files verified; an older manifest, which has no digest") == 1


@pytest.mark.parametrize(
    ("metrics", "message"),
    [
        ({}, "older version, which played no episodes"),
        (
            {"conditions": [], "looser": ["min_success is 0.1, default 0.5", "twin is waived"]},
            r"simulated arms only, .*: min_success is 0.1, default 0.5; twin is waived\. A real arm",
        ),
    ],
)
def test_a_real_arm_refuses_a_gate_with_looser_limits(
    metrics: dict[str, Any], message: str
) -> None:
    with pytest.raises(HandoffError, match=f"release lab: .*{message}"):
        check_limits("release lab", metrics)


def test_a_real_arm_takes_a_gate_with_the_default_limits() -> None:
    check_limits("release lab", {"conditions": [], "looser": []})


def test_what_is_no_release_is_named_before_the_options_of_its_session(gate: Path) -> None:
    said: list[str] = []
    with pytest.raises(HandoffError, match="is the artifact of stage 'export', expected that of a"):
        session_options(
            gate.parent / "bundle",
            ["constants.goal=[0.5,0,0.3]"],
            arm=None,
            trackers=(),
            cameras=(),
            instruction=None,
            mode="live",
            recording=None,
            warn=said.append,
        )
    assert said == []
