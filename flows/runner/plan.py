"""Plans a run, stage by stage, with the reason for each, without doing any of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flows.runner.artifact import Artifact
from flows.runner.stage import Stage, explain_miss, find_cached, is_partial


@dataclass(frozen=True)
class Planned:
    """One stage's fate in the next run."""

    stage: str
    fate: str
    """cached, resume, run, or wait (an input has to be made first)."""
    why: str
    artifact: Artifact | None


def plan(stages: Sequence[Stage], root: Path) -> list[Planned]:
    """The fate of every stage, in order. `stages` must list inputs before what needs them."""
    fates: dict[str, Planned] = {}
    for stage in stages:
        fates[stage.name] = _plan_one(stage, root, fates)
    return list(fates.values())


def cached_artifacts(stages: Sequence[Stage], root: Path) -> dict[str, Artifact | None]:
    """By stage name: the artifact that a run would take from the cache, or None."""
    return {planned.stage: planned.artifact for planned in plan(stages, root)}


def _plan_one(stage: Stage, root: Path, fates: dict[str, Planned]) -> Planned:
    digests: dict[str, str] = {}
    for name, upstream in stage.inputs.items():
        artifact = fates[upstream.name].artifact
        if artifact is None:
            return Planned(
                stage.name,
                "wait",
                f"its input {name} comes from {upstream.name}, which runs first",
                None,
            )
        digests[name] = artifact.digest
    found = find_cached(root, stage, digests)
    if found is not None:
        return Planned(
            stage.name, "cached", f"{found.path.name}, made {found.manifest['finished']}", found
        )
    if is_partial(root, stage, digests):
        return Planned(stage.name, "resume", "an interrupted attempt lies there", None)
    return Planned(stage.name, "run", explain_miss(root, stage, digests), None)
