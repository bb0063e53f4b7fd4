"""Sends stages to a Ray cluster: the pool `ray`.

Ray chooses a node that has what the stage asks for by `resources`, and starts an actor there, in
which `flows.orchestration.ray_worker` computes the stage. The run waits here, shows its progress,
and takes its artifact from the folder or the storage that both have.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

from flows.config.resources import Resources, suffices
from flows.orchestration.ray_worker import (
    Failed,
    Finished,
    Running,
    StageJob,
    StageWorker,
    versions,
)
from flows.runner.artifact import Artifact, load_artifact
from flows.runner.isolate import StageProcessError
from flows.runner.run_end import stop_if_ended
from flows.runner.stage import Stage, StageOutcome
from flows.storage.shared_runs import Runs
from robots import errors
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.processes import END_SECONDS
from robots.storage.durable import explain_write_errors
from sim.processes.cluster import connect

RAY = "ray"
"""Name of the pool."""
WAIT_SECONDS = 0.2
"""Interval at which the end of the run is checked [s]."""
STOP_SECONDS = 3 * END_SECONDS
"""Time limit for a node to end the processes of a stage [s]."""
MOST_NODES = 4
"""Number of nodes that an error describes."""
_CONNECTING = threading.Lock()


def check_cluster(sent: Sequence[Stage]) -> None:
    """Connects to the cluster of `RAY_ADDRESS`, or else of this computer, and checks that each
    stage has a node that suffices for it.

    Args:
        sent: stages of the pool `ray`.

    Raises:
        HandoffError: Ray is not installed, there is no cluster, or no node suffices.
    """
    for stage in sent:
        _connect(stage)
        _check_nodes(stage, _nodes())


def run_on_ray(
    stage: Stage,
    inputs: Mapping[str, Artifact],
    runs: Runs,
    progress: Progress,
    *,
    redo: bool = False,
) -> StageOutcome:
    """Computes a stage on a node of the cluster; arguments as those of `run_stage`.

    Raises:
        HandoffError: the stage failed, or its artifact is not here; says on which node.
        StageProcessError: its process died or the node was lost; the stage can be started again.
    """
    import ray

    started = time.time()
    _connect(stage)
    actor: Any = ray.remote(StageWorker)
    worker = actor.options(**ray_options(stage.resources), max_restarts=0).remote(
        [place for place in sys.path if place], os.getcwd()
    )
    job = StageJob(stage, inputs, _address(runs), versions(stage), redo)
    host = ""
    try:
        progress(0, 1, "waiting for a Ray node")
        host = _await_host(stage, worker)
        if runs.store is None:
            _check_folder(stage, host, worker, runs.folder)
        progress(0, 1, f"on {host}")
        worker.start.remote(pickle.dumps(job))
        finished = _follow(stage, host, worker, progress)
    finally:
        _end(worker, running=bool(host))
    artifact = _arrived(stage, host, finished, runs)
    return StageOutcome(artifact, finished.cached, finished.seconds, started)


def ray_options(resources: Resources) -> dict[str, Any]:
    """Returns the resources of a stage as options of a Ray actor: cores, GPUs, memory [bytes]."""
    memory = {"memory": int(resources.memory_gb * 1e9)} if resources.memory_gb else {}
    return {"num_cpus": resources.cores, "num_gpus": resources.gpus, **memory}


def _connect(stage: Stage) -> None:
    address = os.environ.get("RAY_ADDRESS") or "auto"
    # Stages run in threads.
    with _CONNECTING:
        connect(address, f"stage {stage.name} (pool: ray)", logs=False)


def _nodes() -> dict[str, Resources]:
    """What the living nodes have, whatever runs there, by their names."""
    import ray

    return {
        f"{node['NodeManagerHostname']} ({node['NodeID'][:6]})": Resources(
            cores=int(node["Resources"].get("CPU", 0)),
            memory_gb=node["Resources"].get("memory", 0.0) / 1e9,
            gpus=int(node["Resources"].get("GPU", 0)),
        )
        for node in ray.nodes()
        if node["Alive"]
    }


def _check_nodes(stage: Stage, nodes: Mapping[str, Resources]) -> None:
    """Checks that a node suffices for a stage; without one, Ray would wait for ever."""
    if any(suffices(node, [stage.resources]) for node in nodes.values()):
        return
    described = [f"{name} has {_text(node)}" for name, node in nodes.items()]
    more = f"; and {len(nodes) - MOST_NODES} more" if len(nodes) > MOST_NODES else ""
    raise HandoffError(
        f"stage {stage.name}: its resources are {_text(stage.resources)}, and no node of the Ray cluster has "
        f"them: {'; '.join(described[:MOST_NODES])}{more}. Add a node, or ask for less."
    )


def _text(resources: Resources) -> str:
    memory = f"{round(resources.memory_gb, 1):g}"
    return f"cores={resources.cores} gpus={resources.gpus} memory_gb={memory}"


def _address(runs: Runs) -> str:
    return str(runs.folder.resolve() if runs.store is None else runs.store.address)


def _await_host(stage: Stage, worker: Any) -> str:
    """Waits until a node has room for a stage; returns the name of its host."""
    import ray.exceptions

    try:
        return _reply(stage, worker.host.remote())
    except ray.exceptions.RayActorError as error:
        raise HandoffError(
            f"stage {stage.name}: its Ray worker did not start: {_reason(error)}. Do all nodes have "
            "this version of Handoff?"
        ) from None


def _check_folder(stage: Stage, host: str, worker: Any, folder: Path) -> None:
    """Checks that a node has the folder of artifacts, not another one of that name."""
    artifacts = folder.resolve() / "artifacts"
    with explain_write_errors(artifacts, "no stage can be sent to Ray"):
        artifacts.mkdir(parents=True, exist_ok=True)
        mark = artifacts / f".sent-{uuid4().hex}"
        mark.touch()
    try:
        shared = _reply(stage, worker.sees.remote(str(mark)))
    finally:
        mark.unlink()
    if not shared:
        raise HandoffError(
            f"stage {stage.name}: {artifacts} on {host} is not that of the run. Take a folder that all nodes share "
            "under this path, or a storage, runs=s3://BUCKET/PREFIX."
        )


def _follow(stage: Stage, host: str, worker: Any, progress: Progress) -> Finished:
    """Shows the progress of a stage until it has finished."""
    import ray.exceptions

    known = 0
    while True:
        try:
            known, news = _reply(stage, worker.news.remote(known))
        except ray.exceptions.ActorUnavailableError:
            # Ray finds out whether the node is lost or only the connection was.
            progress(0, 1, f"{host} does not answer")
            time.sleep(WAIT_SECONDS)
            continue
        except ray.exceptions.RayActorError as error:
            raise StageProcessError(
                f"stage {stage.name}: its Ray worker on {host} was lost: {_reason(error)}. Run again: "
                "finished stages are kept."
            ) from None
        match news:
            case Running():
                progress(*news)
            case Finished():
                return news
            case Failed():
                raise _error(stage, host, news)


def _reply(stage: Stage, reference: Any) -> Any:
    """Waits for the reply of an actor, or for the end of the run."""
    import ray

    stop_if_ended(stage.name)
    while not ray.wait([reference], timeout=WAIT_SECONDS)[0]:
        stop_if_ended(stage.name)
    return ray.get(reference)


def _reason(error: Exception) -> str:
    """What happened to an actor: the first sentence of the last line of Ray's error."""
    return str(error).strip().splitlines()[-1].strip().partition(". ")[0].rstrip(".")


def _error(stage: Stage, host: str, failed: Failed) -> HandoffError:
    """The error of a stage that failed on a node; its log is printed where a stage of this computer
    prints it."""
    if failed.log:
        print(failed.log, file=sys.stderr)  # noqa: T201
    died = failed.kind == StageProcessError.__name__
    kind = StageProcessError if died else getattr(errors, failed.kind, HandoffError)
    text = failed.text.removeprefix(f"stage {stage.name}: ")
    error = kind(f"stage {stage.name} on {host}: {text}")
    for note in failed.notes:
        error.add_note(note)
    if died and failed.log:
        error.add_note(f"The last line of its log: {failed.log.splitlines()[-1]}")
    return error


def _end(worker: Any, *, running: bool) -> None:
    """Ends an actor, and first the processes of its stage, which thereby end cleanly."""
    import ray
    import ray.exceptions

    if running:
        with suppress(ray.exceptions.RayError):
            ray.get(worker.stop.remote(), timeout=STOP_SECONDS)
    ray.kill(worker)


def _arrived(stage: Stage, host: str, finished: Finished, runs: Runs) -> Artifact:
    """The artifact that a node has made, as it is here."""
    if runs.store is not None:
        runs.store.mirror([stage.name.partition("@")[0]])
    path = runs.folder / "artifacts" / finished.name
    if not path.exists():
        raise HandoffError(
            f"stage {stage.name}: its artifact {finished.name} was made on {host}, but is not in "
            f"{_address(runs)}. Was it deleted?"
        )
    artifact = load_artifact(path)
    if artifact.digest != finished.digest:
        raise HandoffError(
            f"stage {stage.name}: its artifact {finished.name} has the digest {finished.digest[:12]} on {host}, "
            f"{artifact.digest[:12]} here. Run again: the one here is used."
        )
    return artifact
