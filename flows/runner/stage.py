"""Runs stages and caches their artifacts by content.

A stage is a plain function with its configuration and inputs; it runs once, in a separate process.
Its cache key is sha256(resolved configuration + input digests + versions of the stage's code and of
the libraries that decide numbers), nothing else; `flows.runner.stage_code` finds artifacts of other
code that are still valid.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any

from flows.config.resources import Resources
from flows.runner.artifact import (
    MANIFEST,
    Artifact,
    ArtifactStore,
    json_digest,
    load_artifact,
    read_manifest,
    seal,
    write_json,
)
from flows.runner.content import check_content, remember_content
from flows.runner.lock import WriteLock, exclusive_lock, free_locks, run_lock, write_lock
from flows.runner.memory import peak_memory
from flows.runner.outside_code import outside_code
from flows.runner.provenance import (
    by_person,
    environment,
    nested_seeds,
    package_lock,
    person_of,
)
from flows.runner.stage_code import LIBRARY_VERSIONS, StageCode, changes, library_versions
from robots.code_version import code_version
from robots.config import to_plain
from robots.interfaces import Progress
from robots.storage.durable import whole_folder

IDENTITY_WITHOUT_CODE = ("stage", "config", "inputs")
"""Entries of the cache key other than code and libraries."""

PARTIAL = ".partial"
"""Ending of the folder of a stage that has not finished."""


@dataclass(frozen=True, eq=False)
class Stage:
    """One node of a recipe's graph."""

    name: str
    kind: str
    """Kind of the artifact that the stage writes."""
    module: str
    """Module whose function is called; `flows.runner.signature` describes it."""
    config: Any
    inputs: Mapping[str, Stage] = field(default_factory=dict)
    """Stages whose artifacts the function takes, by the name of the input; `policy.0`, `policy.1`
    for an input that takes several."""
    external: Mapping[str, str] = field(default_factory=dict)
    """Digests of inputs from outside the recipe, by name."""
    exclusive: bool = False
    """No other stage may run at the same time: the stage measures latency or needs every core."""
    telemetry: tuple[str, ...] = ()
    """Patterns of files that are not part of the artifact's digest."""
    function: str = "run"
    uses: str = ""
    """Kind of stage under which the recipe uses it."""
    grows: str = ""
    """Option that counts what the stage records; with more of it, the stage goes on from the
    artifact with less. Empty for a stage that always begins anew."""
    pool: str = ""
    """Work pool of a Prefect server in which it runs, or `ray` for a Ray cluster; empty for that of
    the run."""
    resources: Resources = field(default_factory=Resources)
    """What it needs of the computer that runs it."""


@dataclass(frozen=True)
class StageOutcome:
    """Result of a stage in one run."""

    artifact: Artifact
    cached: bool
    seconds: float
    started: float
    """Wall-clock time of the start [s since the epoch]."""


def identity(stage: Stage, digests: Mapping[str, str]) -> dict[str, Any]:
    """Returns everything that enters the cache key; the manifest contains it as well.

    Args:
        stage: the stage.
        digests: content digest of each input artifact.
    """
    record = {
        "stage": stage.name,
        "config": to_plain(stage.config),
        "inputs": {**stage.external, **digests},
        "code": code_version(stage.module),
        LIBRARY_VERSIONS: library_versions(),
    }
    outside = outside_code([entry.config for entry in with_inputs(stage)])
    return {**record, "outside_code": outside} if outside else record


def with_inputs(stage: Stage) -> Iterator[Stage]:
    """Yields the stage and all stages that it needs. A policy of a family outside Handoff is loaded
    by stages whose own options do not name the family."""
    yield stage
    for source in stage.inputs.values():
        yield from with_inputs(source)


def artifact_path(root: Path, stage: Stage, key: str) -> Path:
    """Returns the path of the stage's artifact with that cache key."""
    return root / "artifacts" / f"{stage.name}-{key[:12]}"


def find_cached(root: Path, stage: Stage, digests: Mapping[str, str]) -> Artifact | None:
    """Returns the finished artifact of exactly this stage with these inputs, or None.

    It may have been made by another version of the code, if nothing that its processes imported has
    changed since.
    """
    record = identity(stage, digests)
    path = artifact_path(root, stage, json_digest(record))
    if path.exists():
        return load_artifact(path)
    for other in finished(root, stage):
        manifest = read_manifest(other)
        if _agree(manifest, record) and not any(changes(manifest)):
            return load_artifact(other)
    return None


def _agree(manifest: Mapping[str, Any], record: Mapping[str, Any]) -> bool:
    """Whether an artifact is of the same stage, options and inputs, whatever its code."""
    return all(manifest.get(key) == record.get(key) for key in IDENTITY_WITHOUT_CODE)


def run_stage(
    stage: Stage,
    inputs: Mapping[str, Artifact],
    root: Path,
    progress: Progress,
    *,
    isolate: bool = True,
    redo: bool = False,
    store: ArtifactStore | None = None,
) -> StageOutcome:
    """Returns the stage's artifact and computes it only if it is not cached.

    Args:
        stage: the stage to run.
        inputs: finished artifacts, by the names of the stage's inputs.
        root: the runs folder.
        progress: called with the progress of the stage.
        isolate: runs the stage in a spawned process, with its own threads and memory, instead of in
            this one.
        redo: computes the artifact although it is cached, and replaces it.
        store: storage whose working copy the runs folder is: inputs are fetched from it, and the
            artifact is published there.

    Raises:
        HandoffError: the stage failed; its partial directory is kept and the next attempt resumes
            from it. Or files of the artifact or of an input were damaged.
    """
    # Return the cached artifact, if there is one.
    started = time.time()
    digests = {name: artifact.digest for name, artifact in inputs.items()}
    record = identity(stage, digests)
    final = artifact_path(root, stage, json_digest(record))
    cached = None if redo else _cached(root, stage, digests, started, store)
    if cached is not None:
        return cached
    with run_lock(final, stage.name, progress):
        # Another run may have finished it meanwhile.
        cached = None if redo else _cached(root, stage, digests, started, store)
        if cached is not None:
            return cached
        if store is not None:
            for artifact in inputs.values():
                store.fetch(artifact.path, progress)
        with write_lock(final, progress) as lock, _alone(stage, progress):
            for artifact in inputs.values():
                check_content(artifact.path)
            _begin(stage, record, final, progress, store, redo)
            outcome = _compute(stage, record, inputs, final, progress, lock, isolate)
        if store is None:
            return outcome
        return replace(outcome, artifact=store.publish(outcome.artifact, progress))


def _cached(
    root: Path,
    stage: Stage,
    digests: Mapping[str, str],
    started: float,
    store: ArtifactStore | None,
) -> StageOutcome | None:
    cached = find_cached(root, stage, digests)
    if cached is None:
        return None
    check_content(cached.path, store)
    return StageOutcome(cached, True, time.time() - started, started)


def _alone(stage: Stage, progress: Progress) -> AbstractContextManager[None]:
    return exclusive_lock(stage.name, progress) if stage.exclusive else nullcontext()


def person_record(final: Path) -> Path:
    """Returns the file beside the partial directory of a stage that tells that a person records in
    it, and with which options."""
    return final.with_name(f".{final.name}.person")


def _begin(
    stage: Stage,
    record: Mapping[str, Any],
    final: Path,
    progress: Progress,
    store: ArtifactStore | None,
    redo: bool,
) -> None:
    """Creates the partial directory; that of a stage that grows begins with what was recorded."""
    partial = final.with_name(final.name + PARTIAL)
    if stage.grows and not redo and not partial.exists():
        earlier = _earlier(stage, record, final)
        if earlier is not None and earlier.suffix == PARTIAL:
            with free_locks(earlier.with_suffix("")) as free:
                if free:
                    os.rename(earlier, partial)
                    person_record(earlier.with_suffix("")).unlink()
        elif earlier is not None:
            if store is not None:
                store.fetch(earlier, progress)
            check_content(earlier)
            with whole_folder(partial, f"stage {stage.name} cannot go on") as folder:
                for name in read_manifest(earlier)["files"]:
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    # The copy is not read-only, as the artifact is.
                    shutil.copyfile(earlier / name, folder / name)
    partial.mkdir(parents=True, exist_ok=True)
    if by_person(record["config"]):
        write_json(person_record(final), {key: record[key] for key in IDENTITY_WITHOUT_CODE})


def _earlier(stage: Stage, record: Mapping[str, Any], final: Path) -> Path | None:
    """The newest artifact that differs in the number of what it records alone. What a person has
    recorded counts under any version of the code, and so does an interrupted attempt."""

    def fixed(entries: Mapping[str, Any]) -> dict[str, Any]:
        config = {**entries["config"], stage.grows: None}
        return {**{key: entries.get(key) for key in IDENTITY_WITHOUT_CODE}, "config": config}

    wanted, number = fixed(record), record["config"][stage.grows]
    person = by_person(record["config"])
    found = []
    for path in finished(final.parent.parent, stage):
        manifest = read_manifest(path)
        if fixed(manifest) == wanted and (
            person or (manifest["config"][stage.grows] < number and not any(changes(manifest)))
        ):
            found.append((path / MANIFEST, path))
    for file in final.parent.glob(f".{stage.name}-*.person"):
        partial = final.with_name(file.stem[1:] + PARTIAL)
        if partial.is_dir() and fixed(json.loads(file.read_bytes())) == wanted:
            found.append((file, partial))
    newest = max(found, key=lambda entry: entry[0].stat().st_mtime, default=None)
    return None if newest is None else newest[1]


def _compute(
    stage: Stage,
    record: Mapping[str, Any],
    inputs: Mapping[str, Artifact],
    final: Path,
    progress: Progress,
    lock: WriteLock,
    isolate: bool,
) -> StageOutcome:
    """Computes the artifact in a partial directory, which an atomic rename turns into the
    artifact."""
    started = time.time()
    partial = final.with_name(final.name + PARTIAL)
    paths = {name: artifact.path.resolve() for name, artifact in inputs.items()}
    job = (f"{stage.module}:{stage.function}", stage.config, paths, partial.resolve())
    code = StageCode(
        {stage.module: record["code"], **record.get("outside_code", {})},
        final.with_name(f".{final.name}.imports").resolve(),
    )
    if isolate:
        from flows.runner.isolate import run_isolated

        metrics, peak = run_isolated(stage.name, call_stage, job, progress, lock, code)
    else:
        with lock.held():
            metrics = call_stage(*job, progress)
        peak = peak_memory()
    seconds = time.time() - started
    spent = {"seconds": round(seconds, 3), "peak_memory_bytes": peak}
    provenance = _provenance(stage, record, inputs, final, metrics)
    manifest = {**record, "uses": stage.uses, **code.used(), **provenance, **spent}
    artifact = seal(partial, final, stage.kind, manifest, stage.telemetry)
    remember_content(final)
    code.record.unlink(missing_ok=True)
    person_record(final).unlink(missing_ok=True)
    return StageOutcome(artifact, False, seconds, started)


def _provenance(
    stage: Stage,
    record: Mapping[str, Any],
    inputs: Mapping[str, Artifact],
    final: Path,
    metrics: dict[str, Any],
) -> dict[str, Any]:
    """Entries of the manifest about the computation, in addition to those of the cache key."""
    return {
        "input_paths": {
            name: os.path.relpath(artifact.path, final) for name, artifact in inputs.items()
        },
        "data": dict(stage.external),
        "seeds": nested_seeds(record["config"]),
        "person": person_of(record["config"]),
        "metrics": metrics,
        "finished": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "environment": environment(),
        "lock": package_lock(),
    }


def call_stage(
    target: str, config: Any, inputs: Mapping[str, Path], out: Path, progress: Progress
) -> dict[str, Any]:
    """Calls a stage's function in this process.

    Args:
        target: `module:function`.
        config: options of the stage.
        inputs: folders of the artifacts; `policy.0`, `policy.1` are passed as one tuple.
        out: folder that the stage writes.
        progress: called with the progress of the stage.

    Returns:
        The metrics.
    """
    module, _, function = target.partition(":")
    given: dict[str, Any] = {}
    for name, path in inputs.items():
        base, numbered, _ = name.partition(".")
        given[base] = (*given.get(base, ()), path) if numbered else path
    output = getattr(import_module(module), function)(config, out, progress, **given)
    return output.metrics


def is_partial(root: Path, stage: Stage, digests: Mapping[str, str]) -> bool:
    """Whether there is an interrupted attempt to resume."""
    return partial_path(root, stage, digests).exists()


def partial_path(root: Path, stage: Stage, digests: Mapping[str, str]) -> Path:
    """Returns the folder that the stage writes while it runs."""
    path = artifact_path(root, stage, json_digest(identity(stage, digests)))
    return path.with_name(path.name + PARTIAL)


def finished(root: Path, stage: Stage) -> Iterator[Path]:
    """Yields the artifacts of the stage, whatever their options."""
    for path in (root / "artifacts").glob(f"{stage.name}-*"):
        if path.suffix == "" and (path / MANIFEST).exists():
            yield path
