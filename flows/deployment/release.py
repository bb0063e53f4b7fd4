"""Finds the bundle that passed a gate, and verifies that it is unchanged."""

from __future__ import annotations

from pathlib import Path

from flows.reports.explain import find_artifact
from flows.runner.artifact import verify_artifact
from robots.errors import HandoffError


def released_bundle(gate: Path) -> Path:
    """Returns the bundle that passed the gate with the artifact `gate`, after re-hashing all files
    of both.

    `flows.runner.artifact.verify_artifact` states what this detects.

    Raises:
        HandoffError: not a gate artifact, the bundle is missing or was replaced, or either was
            changed after it was sealed.
    """
    artifact = find_artifact(gate)
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
