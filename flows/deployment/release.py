"""Finds the bundle that passed a gate, and makes sure that it is still the same."""

from __future__ import annotations

from pathlib import Path

from flows.reports.explain import find_artifact
from flows.runner.artifact import verify_artifact
from robots.errors import HandoffError


def released_bundle(gate: Path) -> Path:
    """The bundle that passed the gate whose artifact `gate` is; all files and digests of both are
    worked out anew.

    See `flows.runner.artifact.verify_artifact` for what that is good for, and what not.

    Raises:
        HandoffError: not a gate's artifact, the bundle is gone or another by now, or either is not
            as it was sealed.
    """
    found = find_artifact(gate)
    manifest = verify_artifact(found)
    if manifest["kind"] != "gate" or manifest["metrics"].get("passed") is not True:
        raise HandoffError(
            f"{gate}: is the artifact of stage '{manifest['stage']}', expected one of a gate that was passed, such as "
            "runs/demo/gate. An arm runs nothing else."
        )
    bundle = (found / manifest["input_paths"]["bundle"]).resolve()
    if verify_artifact(bundle)["digest"] != manifest["inputs"]["bundle"]:
        raise HandoffError(
            f"{bundle}: is not the bundle that passed {gate}. Run the pipeline again."
        )
    return bundle
