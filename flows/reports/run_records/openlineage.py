"""Writes a run as events of OpenLineage 2-0-2 (openlineage.io/spec), one JSON object a line.

Everything comes from the record and the manifests, after the run; no client is needed. The run is
the parent of its stages. An artifact is a dataset, whose version is its digest:

    parent     job RECIPE         START, and COMPLETE, FAIL or ABORT
    stage      job RECIPE.STAGE   START, COMPLETE; a stage without an artifact has no events
    dataset    RECIPE.STAGE       data from outside the recipe: RECIPE.STAGE.LABEL
"""

from __future__ import annotations

import json
import math
import uuid
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flows.reports.explain import find_subject
from flows.reports.run_records.reading import RecordedRun
from flows.runner.artifact import json_digest, read_manifest
from flows.runner.provenance import DIRTY
from flows.runner.signature import shipped_kinds
from robots.code_version import ROOT
from robots.errors import HandoffError
from robots.storage.durable import write_atomically

NAMESPACE = "handoff"
"""Namespace of the jobs and of the datasets."""
SPEC = "https://openlineage.io/spec"
EVENT = f"{SPEC}/2-0-2/OpenLineage.json#/$defs"
VERSIONS = {
    "DatasetVersionDatasetFacet": "1-0-1",
    "DocumentationDatasetFacet": "1-1-0",
    "ErrorMessageRunFacet": "1-0-1",
    "JobTypeJobFacet": "2-0-4",
    "OutputStatisticsOutputDatasetFacet": "1-0-2",
    "ParentRunFacet": "1-2-0",
    "ProcessingEngineRunFacet": "1-1-1",
    "SourceCodeLocationJobFacet": "1-1-0",
}
"""Versions of the facets' schemas."""
ENDS = {"finished": "COMPLETE", "failed": "FAIL", "stopped": "ABORT", "waiting": "ABORT"}
"""Type of the event that ends a run, by its state; a run that still goes on has none."""


def write_events(subject: Path, out: Path, *, runs: Path = Path("runs")) -> Path:
    """Writes the events of a run, in the order of their times.

    Args:
        subject: a run; see `flows.reports.explain.find_subject`.
        out: file to write.
        runs: folder in which a run is looked for by name.

    Returns:
        `out`.

    Raises:
        HandoffError: no such run, or an artifact of it was deleted.
    """
    run = find_subject(subject, runs)
    if not isinstance(run, RecordedRun):
        raise HandoffError(f"openlineage: {subject} is an artifact, expected a run, such as demo.")
    lines = [json.dumps(_finite(event), allow_nan=False) for event in events(run)]
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(out, ("\n".join(lines) + "\n").encode())
    return out


def events(run: RecordedRun) -> list[dict[str, Any]]:
    """Returns the events of a run, in the order of their times.

    Raises:
        HandoffError: an artifact of the run was deleted, or no stage has finished.
    """
    if not run.artifacts:
        raise HandoffError(f"run {run.folder}: no stage has finished, so it has no events.")
    manifests = {name: read_manifest(path) for name, path in run.artifacts.items()}
    stages = [
        event for name in manifests for event in _stage_events(run, name, manifests, _run_id(run))
    ]
    stages.sort(key=lambda event: event["eventTime"])
    times = [event["eventTime"] for event in stages]
    begin, *end = _run_events(run, times[0], times[-1])
    return [begin, *stages, *end]


def _run_events(run: RecordedRun, first: str, last: str) -> Iterator[dict[str, Any]]:
    """Yields the events of the parent; a run of an older version began with its first stage."""
    record = run.record
    state = record.get("state", "finished")
    about = {key: value for key, value in record.items() if key not in ("stages", "process")}
    facets = {"handoff_run": _own("RunFacet", about), **_engine()}
    job = _job(run.name, "DAG", {})
    started = min(record.get("started", first), first)
    yield _event("START", started, _run_id(run), facets, job)
    if state == "failed":
        facets["errorMessage"] = _facet(
            "ErrorMessageRunFacet",
            {"message": record["reason"], "programmingLanguage": "Python"},
        )
    if state in ENDS:
        ended = max(record.get("ended") or last, last)
        yield _event(ENDS[state], ended, _run_id(run), facets, job)


def _stage_events(
    run: RecordedRun, name: str, manifests: Mapping[str, Mapping[str, Any]], parent: str
) -> Iterator[dict[str, Any]]:
    manifest = manifests[name]
    entry = run.record.get("stages", {}).get(name, {})
    started, ended = _times(entry, manifest)
    identity = str(uuid.uuid5(uuid.UUID(parent), name))
    parent_run = _facet(
        "ParentRunFacet",
        {"run": {"runId": parent}, "job": {"namespace": NAMESPACE, "name": run.name}},
    )
    facets = {"parent": parent_run, "handoff_stage": _stage_facet(entry, manifest), **_engine()}
    job = _job(f"{run.name}.{name}", "TASK", _source(run, manifest))
    inputs = list(_inputs(run, name, manifests))
    written = {"size": manifest.get("written_bytes", 0), "fileCount": len(manifest["files"])}
    statistics = _facet("OutputStatisticsOutputDatasetFacet", written)
    output = {
        **_dataset(f"{run.name}.{name}", manifest["digest"]),
        "outputFacets": {"outputStatistics": statistics},
    }
    for kind, time in (("START", started), ("COMPLETE", ended)):
        yield {**_event(kind, time, identity, facets, job), "inputs": inputs, "outputs": [output]}


def _inputs(
    run: RecordedRun, name: str, manifests: Mapping[str, Mapping[str, Any]]
) -> Iterator[dict[str, Any]]:
    """Yields the artifacts and the outside data that a stage took."""
    manifest = manifests[name]
    paths = {path.resolve(): stage for stage, path in run.artifacts.items()}
    contents = {other["digest"]: stage for stage, other in manifests.items()}
    for label, digest in manifest["inputs"].items():
        link = manifest["input_paths"].get(label)
        if link is None:
            line = manifest["metrics"].get("source_line")
            documented = {
                "documentation": _facet("DocumentationDatasetFacet", {"description": line})
            }
            found = _dataset(f"{run.name}.{name}.{label}", digest)
            found["facets"] |= documented if line else {}
            yield found
        else:
            made_from = (run.artifacts[name].resolve() / link).resolve()
            yield _dataset(f"{run.name}.{paths.get(made_from) or contents[digest]}", digest)


def _stage_facet(entry: Mapping[str, Any], manifest: Mapping[str, Any]) -> dict[str, Any]:
    keys = ("uses", "kind", "config", "metrics", "seeds", "person", "code", "environment")
    about = {key: manifest[key] for key in keys if key in manifest}
    lock = manifest.get("lock", {}).get("digest")
    computed = {"computed_seconds": manifest.get("seconds"), "finished": manifest.get("finished")}
    return _own(
        "RunFacet", {**about, "packages": lock, "cached": entry.get("cached", False), **computed}
    )


def _times(entry: Mapping[str, Any], manifest: Mapping[str, Any]) -> tuple[str, str]:
    """Start and end of a stage in the run; of an older version, those of its computation."""
    if entry:
        started = datetime.fromisoformat(entry["started"])
        return entry["started"], _text(started + timedelta(seconds=entry["seconds"]))
    ended = datetime.fromisoformat(manifest["finished"])
    return _text(ended - timedelta(seconds=manifest["seconds"])), _text(ended)


def _text(time: datetime) -> str:
    return time.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _source(run: RecordedRun, manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The facet with the file and the commit of the stage's code; none for code that is outside
    Handoff's checkout. The commit is the computation's, which may be older than the run."""
    uses = str(manifest.get("uses", ""))
    module = shipped_kinds().get(uses, uses.partition(":")[0])
    path = f"{module.replace('.', '/')}.py"
    commit = str(manifest.get("environment", {}).get("commit", "")).removesuffix(DIRTY)
    if not (ROOT / path).is_file() or not commit or " " in commit:
        return {}
    recorded = run.record.get("checkout", {})
    # A manifest has the first digits of the commit, the record all of them.
    whole = str(recorded.get("commit", ""))
    commit = whole if whole.startswith(commit) else commit
    # Git commits have a standard address of their own (SWHID, ISO/IEC 18670).
    url = f"swh:1:rev:{commit};path=/{path}" if len(commit) == 40 else f"git:{commit}/{path}"
    location = {"type": "git", "url": url, "path": path, "version": commit}
    if recorded.get("origin"):
        location["repoUrl"] = recorded["origin"]
    return {"sourceCodeLocation": _facet("SourceCodeLocationJobFacet", location)}


def _event(
    kind: str, time: str, run: str, facets: Mapping[str, Any], job: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "eventType": kind,
        "eventTime": time,
        "producer": _producer(),
        "schemaURL": f"{EVENT}/RunEvent",
        "run": {"runId": run, "facets": dict(facets)},
        "job": dict(job),
    }


def _job(name: str, kind: str, facets: Mapping[str, Any]) -> dict[str, Any]:
    about = {"processingType": "BATCH", "integration": "HANDOFF", "jobType": kind}
    made = _facet("JobTypeJobFacet", about)
    return {"namespace": NAMESPACE, "name": name, "facets": {"jobType": made, **facets}}


def _dataset(name: str, digest: str) -> dict[str, Any]:
    facet = _facet("DatasetVersionDatasetFacet", {"datasetVersion": digest})
    return {"namespace": NAMESPACE, "name": name, "facets": {"version": facet}}


def _engine() -> dict[str, Any]:
    engine = {"name": "handoff", "version": _handoff_version()}
    return {"processing_engine": _facet("ProcessingEngineRunFacet", engine)}


def _facet(name: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    schema = f"{SPEC}/facets/{VERSIONS[name]}/{name}.json#/$defs/{name}"
    return {"_producer": _producer(), "_schemaURL": schema, **entries}


def _own(base: str, entries: Mapping[str, Any]) -> dict[str, Any]:
    """A facet of Handoff's own, which has the schema of all facets of its base."""
    return {"_producer": _producer(), "_schemaURL": f"{EVENT}/{base}", **entries}


def _producer() -> str:
    """Address of this version of Handoff, a package URL."""
    return f"pkg:generic/handoff@{_handoff_version()}"


def _handoff_version() -> str:
    try:
        return version("handoff")
    except PackageNotFoundError:
        return "0"


def _run_id(run: RecordedRun) -> str:
    """The run's own identity; of an older version, one that follows from its artifacts."""
    digests = [path.name for path in run.artifacts.values()]
    return run.record.get("id") or str(
        uuid.uuid5(uuid.NAMESPACE_URL, f"handoff:{json_digest(digests)}")
    )


def _finite(value: Any) -> Any:
    """The value with null for numbers that JSON does not have."""
    if isinstance(value, Mapping):
        return {str(key): _finite(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
