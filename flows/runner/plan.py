"""Plans a run: which stages are needed, whether each would run or is cached, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.runner.artifact import MANIFEST, Artifact, read_manifest
from flows.runner.lock import is_locked
from flows.runner.stage import (
    PARTIAL,
    Stage,
    find_cached,
    finished,
    identity,
    is_partial,
    partial_path,
)
from flows.runner.stage_code import changes
from robots.errors import HandoffError, suggest


@dataclass(frozen=True)
class Planned:
    """What the next run would do with one stage."""

    stage: str
    action: str
    """`cached`, `resume`, `run`, or `wait` (an input must be computed first)."""
    reason: str
    artifact: Artifact | None


def plan(stages: Sequence[Stage], root: Path, run: str | None = None) -> list[Planned]:
    """Plans every stage, in order.

    Args:
        stages: stages of a recipe; inputs before the stages that need them.
        root: the runs folder.
        run: name of the run, whose latest artifacts a stage is compared with, so that a stage
            without one is new; None compares with the newest artifact of the stage's name.
    """
    latest = None if run is None else linked(root, run)
    planned: dict[str, Planned] = {}
    for stage in stages:
        planned[stage.name] = _plan_one(stage, root, planned, latest)
    return list(planned.values())


def linked(root: Path, run: str) -> dict[str, Path]:
    """Returns the artifacts of the latest run of a name, by stage, as its folder links them."""
    folder = root / run
    if not run or not folder.is_dir():
        return {}
    links = [link for link in folder.iterdir() if link.is_symlink()]
    return {link.name: link.resolve() for link in links if (link / MANIFEST).exists()}


def cached_artifacts(stages: Sequence[Stage], root: Path) -> dict[str, Artifact | None]:
    """Returns, by stage name, the artifact that a run would take from the cache, or None."""
    return {planned.stage: planned.artifact for planned in plan(stages, root)}


def begun_attempt(stage: Stage, inputs: Mapping[str, Artifact], root: Path) -> str:
    """Returns a phrase if the stage goes on with what an earlier attempt left; empty otherwise."""
    digests = {name: artifact.digest for name, artifact in inputs.items()}
    return _why_partial(root, stage, digests) if is_partial(root, stage, digests) else ""


def up_to(declared: Sequence[Stage], last: str | None) -> list[Stage]:
    """Returns the stage called `last` (all its copies) and the stages that it needs, in order.

    Raises:
        HandoffError: there is no such stage.
    """
    if last is None:
        return list(declared)
    needed = [stage for stage in declared if last in (stage.name, stage.name.partition("@")[0])]
    if not needed:
        copies = [stage.name for stage in declared]
        names = dict.fromkeys([*(copy.partition("@")[0] for copy in copies), *copies])
        raise HandoffError(f"stage '{last}' is not in the recipe, {suggest(last, names)}")
    chosen = {stage.name for stage in needed}
    while needed:
        found = [source for stage in needed for source in stage.inputs.values()]
        needed = [stage for stage in found if stage.name not in chosen]
        chosen |= {stage.name for stage in needed}
    return [stage for stage in declared if stage.name in chosen]


def _plan_one(
    stage: Stage, root: Path, planned: dict[str, Planned], latest: Mapping[str, Path] | None
) -> Planned:
    digests: dict[str, str] = {}
    awaited: dict[str, None] = {}
    for name, upstream in stage.inputs.items():
        artifact = planned[upstream.name].artifact
        if artifact is None:
            awaited[upstream.name] = None
        else:
            digests[name] = artifact.digest
    if awaited:
        return Planned(stage.name, "wait", f"after {', '.join(awaited)}", None)
    cached = find_cached(root, stage, digests)
    if cached is not None:
        return Planned(
            stage.name, "cached", f"{cached.path.name}, made {cached.manifest['finished']}", cached
        )
    if is_partial(root, stage, digests):
        return Planned(stage.name, "resume", _why_partial(root, stage, digests), None)
    return Planned(stage.name, "run", explain_miss(root, stage, digests, latest), None)


def explain_miss(
    root: Path,
    stage: Stage,
    digests: Mapping[str, str],
    latest_of_run: Mapping[str, Path] | None = None,
) -> str:
    """Explains a cache miss: what changed since the newest artifact of the same stage.

    Args:
        root: the runs folder.
        stage: the stage.
        digests: content digest of each input artifact.
        latest_of_run: artifacts of the latest run of the name, see `linked`; None compares with the
            newest artifact of the stage's name, of whatever run.
    """
    current = identity(stage, digests)
    if latest_of_run is None:
        paths = list(finished(root, stage))
    else:
        paths = [latest_of_run[stage.name]] if stage.name in latest_of_run else []
    older = [read_manifest(path) for path in paths]
    if not older:
        return "new"
    latest = max(older, key=lambda manifest: manifest["finished"])
    found = [
        *_differences("", latest["config"], current["config"]),
        *_differences("", latest["inputs"], current["inputs"]),
    ]
    found += [f"{name} changed" if " " not in name else name for name in changes(latest)]
    return ", ".join(found[:4]) + (f" and {len(found) - 4} more" if len(found) > 4 else "")


def _differences(prefix: str, old: Any, new: Any) -> list[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return [
            change
            for key in sorted({*old, *new})
            for change in _differences(
                f"{prefix}.{key}" if prefix else key, old.get(key), new.get(key)
            )
        ]
    return [] if old == new else [f"{prefix} {_short(old)} → {_short(new)}"]


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 14 else text[:12] + "…"


def _why_partial(root: Path, stage: Stage, digests: Mapping[str, str]) -> str:
    """Why a stage has begun and not finished."""
    partial = partial_path(root, stage, digests)
    if is_locked(partial.with_name(partial.name.removesuffix(PARTIAL))):
        return "a run is computing it"
    if stage.uses == "approve":
        return "it waits for a person's approval"
    return "an interrupted attempt was found"
