"""Writes a run to MLflow, of which it is a parent run with one child run per stage.

Everything comes from the record and the manifests, after the run. Of each stage there are its
options as parameters, its metrics, its training curve, its times, and as tags the digests of its
artifact and of its inputs. The manifest is the only file that is sent: artifacts stay in the runs
folder or in the storage, where their digests name them.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.explain import find_subject
from flows.reports.run_records.reading import RecordedRun
from flows.runner.artifact import MANIFEST, read_manifest
from robots.errors import HandoffError

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "handoff/{}"
"""Name of the experiment, by the name of the run."""
RUN_TAG = "handoff.run"
"""Tag with the run's own identity, by which a run that was written before is found."""
PARENT = "mlflow.parentRunId"
STATES = {"finished": "FINISHED", "failed": "FAILED", "stopped": "KILLED", "waiting": "KILLED"}
"""State of the run in MLflow by that in its record; others are still `RUNNING`."""
CURVE = "loss.jsonl"
TIMES = ("step", "seconds", "cpu_seconds")
"""Entries of a curve that are no metrics."""
MOST_TEXT = 5000
"""Longest text of a parameter or tag that MLflow's servers take [characters]."""
BATCH = 500
"""Metrics in one request; a server takes 1,000."""


def write_mlflow(subject: Path, address: str, *, runs: Path = Path("runs")) -> str:
    """Writes a run to an MLflow server or database. A run that was written before is left as it is.

    Args:
        subject: a run; see `flows.reports.explain.find_subject`.
        address: an MLflow tracking address, e.g. `http://127.0.0.1:5000` or `sqlite:///mlflow.db`.
        runs: folder in which a run is looked for by name.

    Returns:
        The identity of the run in MLflow, behind the name of its experiment.

    Raises:
        HandoffError: no such run, no stage of it has finished, or MLflow does not answer.
        ModuleNotFoundError: MLflow is not installed.
    """
    run = find_subject(subject, runs)
    if not isinstance(run, RecordedRun):
        raise HandoffError(f"mlflow: {subject} is an artifact, expected a run, such as demo.")
    if not run.present:
        raise HandoffError(
            f"run {run.folder}: no stage has finished, so there is nothing to write."
        )
    client = _client(address)
    from mlflow.exceptions import MlflowException

    try:
        return _write(client, run)
    except MlflowException as error:
        first = str(error).partition("\n")[0]
        raise HandoffError(f"mlflow: {address} refused the run: {first}") from error


def _client(address: str) -> MlflowClient:
    # It reports its use to its makers otherwise, and tries an absent server for minutes.
    os.environ["MLFLOW_DISABLE_TELEMETRY"] = "true"
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "1")
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    try:
        client = MlflowClient(tracking_uri=address)
        client.get_experiment_by_name(EXPERIMENT)
    except MlflowException as error:
        first = str(error).partition("\n")[0]
        raise HandoffError(f"mlflow: {address} cannot be used: {first}") from error
    return client


def _write(client: MlflowClient, run: RecordedRun) -> str:
    name = EXPERIMENT.format(run.name)
    found = client.get_experiment_by_name(name)
    experiment = client.create_experiment(name) if found is None else found.experiment_id
    identity = str(run.record.get("id", ""))
    if identity:
        earlier = client.search_runs([experiment], f"tags.`{RUN_TAG}` = '{identity}'")
        if earlier:
            return f"{name} {earlier[0].info.run_id} (written before)"
    manifests = {stage: read_manifest(path) for stage, path in run.present.items()}
    times = [_times(run, stage, manifest) for stage, manifest in manifests.items()]
    begin, end = min(first for first, _ in times), max(last for _, last in times)
    parent = client.create_run(experiment, start_time=begin, run_name=run.name).info.run_id
    for stage, (first, last) in zip(manifests, times, strict=True):
        child = client.create_run(experiment, first, {PARENT: parent}, stage).info.run_id
        _write_stage(client, child, run.present[stage], manifests[stage])
        client.set_terminated(child, "FINISHED", last)
    _log(client, parent, tags=_run_tags(run))
    state = STATES.get(str(run.record.get("state", "finished")), "RUNNING")
    if state != "RUNNING":
        client.set_terminated(parent, state, end)
    # The identity comes last, so that a run that was written in part is written anew.
    client.set_tag(parent, RUN_TAG, identity)
    return f"{name} {parent}"


def _write_stage(
    client: MlflowClient, run: str, artifact: Path, manifest: Mapping[str, Any]
) -> None:
    tags = {"stage": manifest["stage"], "kind": manifest["kind"], "digest": manifest["digest"]}
    tags |= {key: str(manifest[key]) for key in ("uses", "code", "person") if manifest.get(key)}
    tags |= {f"input.{label}": digest for label, digest in manifest["inputs"].items()}
    metrics = [(name, value, 0) for name, value in _numbers(manifest["metrics"])]
    _log(client, run, tags, dict(_options(manifest["config"])), [*metrics, *_curve(artifact)])
    client.log_dict(run, dict(manifest), MANIFEST)


def _log(
    client: MlflowClient,
    run: str,
    tags: Mapping[str, str],
    params: Mapping[str, str] | None = None,
    metrics: list[tuple[str, float, int]] | None = None,
) -> None:
    """Sends tags, parameters, and metrics as `(name, value, step)`, in requests of a size that
    servers take."""
    from mlflow.entities import Metric, Param, RunTag

    labels = [RunTag(f"handoff.{name}", text[:MOST_TEXT]) for name, text in tags.items()]
    client.log_batch(run, tags=labels)
    options = [Param(name, text[:MOST_TEXT]) for name, text in (params or {}).items()]
    for at in range(0, len(options), 100):
        client.log_batch(run, params=options[at : at + 100])
    numbers = [Metric(name, value, 0, step) for name, value, step in metrics or []]
    for at in range(0, len(numbers), BATCH):
        client.log_batch(run, metrics=numbers[at : at + BATCH])


def _run_tags(run: RecordedRun) -> dict[str, str]:
    record = run.record
    checkout, computer = record.get("checkout", {}), record.get("computer", {})
    tags = {
        "command": " ".join(record.get("command", [])),
        "overrides": json.dumps(run.request.get("overrides", [])),
        "commit": f"{checkout.get('commit', '')}{' and changes' if checkout.get('dirty') else ''}",
        "people": ", ".join(record.get("people", [])),
        "processor": str(computer.get("processor", "")),
        "packages": str(record.get("packages", {}).get("digest", "")),
        "prefect_run": str((record.get("prefect") or {}).get("id", "")),
        "state": str(record.get("state", "")),
        "reason": str(record.get("reason", "")),
    }
    return {name: text for name, text in tags.items() if text}


def _times(run: RecordedRun, stage: str, manifest: Mapping[str, Any]) -> tuple[int, int]:
    """Start and end of a stage's computation, or of its part in the run [ms since 1970]."""
    entry = run.record.get("stages", {}).get(stage)
    if entry:
        started = datetime.fromisoformat(entry["started"]).timestamp()
        ended = started + entry["seconds"]
    else:
        ended = datetime.fromisoformat(manifest["finished"]).timestamp()
        started = ended - manifest["seconds"]
    return int(started * 1000), int(ended * 1000)


def _options(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Options by their paths in the recipe, e.g. `training.steps`."""
    for key, value in config.items():
        if isinstance(value, Mapping) and value:
            yield from _options(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value if isinstance(value, str) else json.dumps(value)


def _numbers(metrics: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Finite numbers by their paths; truth values count as 0 and 1."""
    for key, value in metrics.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{key}.")
        elif isinstance(value, int | float) and math.isfinite(value):
            yield f"{prefix}{key}", float(value)


def _curve(artifact: Path) -> Iterator[tuple[str, float, int]]:
    """Values of the stage's training curve with their steps."""
    file = artifact / CURVE
    for line in file.read_text().splitlines() if file.is_file() else []:
        values = json.loads(line)
        for name, value in _numbers({k: v for k, v in values.items() if k not in TIMES}):
            yield f"curve.{name}", value, int(values.get("step", 0))
