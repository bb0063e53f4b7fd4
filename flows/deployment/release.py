"""Finds the bundle that passed a gate, and verifies that it is unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flows.deployment.approval import AUDIT, KIND, approved_gate
from flows.reports.explain import find_artifact
from flows.runner.artifact import read_manifest, verify_artifact
from robots.errors import HandoffError


def approved_bundle(approval: Path) -> Path:
    """Returns the bundle of a valid approval, whose gate it passed; the artifact of a gate is
    refused.

    Raises:
        HandoffError: see `released_bundle`; or no approval, or an expired one.
    """
    artifact = _linked(approval)
    manifest = read_manifest(artifact)
    gate = approved_gate(artifact)
    bundle = released_bundle(gate)
    if read_manifest(gate)["digest"] != manifest["inputs"]["gate"]:
        raise HandoffError(f"{gate}: is not the gate that {approval} names. Run the recipe again.")
    return bundle


def check_limits(where: str, metrics: Mapping[str, Any]) -> None:
    """Refuses a gate for a real arm if its limits were looser than the defaults.

    Args:
        where: what has the gate, for the message of an error.
        metrics: metrics of the gate.

    Raises:
        HandoffError: names the limits; or a gate of an older version, which did not play episodes.
    """
    if "conditions" not in metrics or "looser" not in metrics:
        raise HandoffError(
            f"{where}: its gate was of an older version, which played no episodes. Run the recipe again."
        )
    if metrics["looser"]:
        raise HandoffError(
            f"{where}: released for simulated arms only, because limits were looser than the defaults: "
            f"{'; '.join(map(str, metrics['looser']))}. A real arm takes what passes the defaults."
        )


def released_bundle(gate: Path) -> Path:
    """Returns the bundle that passed the gate with the artifact `gate`, after re-hashing all files
    of both; an approval may be given in place of its gate.

    `flows.runner.artifact.verify_artifact` states what this detects.

    Raises:
        HandoffError: not a gate artifact, the bundle is missing or was replaced, or either was
            changed after it was sealed.
    """
    artifact = _linked(gate)
    if read_manifest(artifact)["kind"] == KIND:
        return approved_bundle(artifact)
    manifest = verify_artifact(artifact)
    if manifest["kind"] != "gate" or manifest["metrics"].get("passed") is not True:
        raise HandoffError(
            f"{gate}: is the artifact of stage '{manifest['stage']}', expected that of a passed gate, such as "
            "runs/demo/gate. An arm runs released policies only."
        )
    bundle = (artifact / manifest["input_paths"]["bundle"]).resolve()
    if verify_artifact(bundle)["digest"] != manifest["inputs"]["bundle"]:
        raise HandoffError(f"{bundle}: is not the bundle that passed {gate}. Run the recipe again.")
    return bundle


def gate_of(path: Path) -> Path:
    """Returns the artifact of the gate that a gate or a valid approval means.

    Raises:
        HandoffError: no approval, or an expired or rejected one.
    """
    artifact = _linked(path)
    return approved_gate(artifact) if read_manifest(artifact)["kind"] == KIND else artifact


def _linked(path: Path) -> Path:
    """The artifact that a path is part of, or that a run links to; a link to an approval that was
    withdrawn is explained."""
    if path.is_symlink() and not path.exists():
        raise HandoffError(
            f"{path}: leads to no artifact; a rejection withdraws an approval ({AUDIT} in the folder of the runs says "
            "by whom). Run the recipe again, which waits for another one."
        )
    return find_artifact(path)
