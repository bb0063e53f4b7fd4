"""Computes a stage on a node of a Ray cluster.

The node does what the computer of the run would do: it takes the inputs from the same artifacts,
runs the stage in a process of its own, and leaves the artifact there.
"""

from __future__ import annotations

import os
import pickle
import platform
import stat
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from flows.runner.artifact import Artifact, load_artifact
from flows.runner.run_end import RUN_ENDED
from flows.runner.stage import Stage, identity, run_stage
from flows.runner.stage_code import LIBRARY_VERSIONS
from flows.storage.shared_runs import Runs, open_runs
from robots.errors import HandoffError, describe
from robots.interfaces import Progress
from robots.outside import add_place
from robots.processes import END_SECONDS

NEWS_SECONDS = 0.5
"""Longest time for which `StageWorker.news` waits for something new [s]."""
LOG_LINES = 20
"""Number of lines of the log that are sent after a failure."""
LOG_BYTES = 8192
"""Largest size of these lines [bytes]."""
COPIES = "thirdparty_files"
"""Folder of Ray's own copies of packages."""


class StageJob(NamedTuple):
    """A stage for a node, and all that the node must have for it."""

    stage: Stage
    inputs: Mapping[str, Artifact]
    """Finished artifacts, by the names of the stage's inputs; their paths are those of the sender,
    their names those of every computer."""
    runs: str
    """Address of a storage, or absolute path of the folder of artifacts and results."""
    versions: Mapping[str, str]
    """Versions that the sender has; see `versions`."""
    redo: bool
    """Computes the artifact although it is cached."""


class Running(NamedTuple):
    """Progress of a stage."""

    done: int
    total: int
    note: str


class Finished(NamedTuple):
    """End of a stage that has its artifact."""

    name: str
    """Name of the artifact's folder."""
    digest: str
    cached: bool
    seconds: float


class Failed(NamedTuple):
    """End of a stage that has no artifact."""

    kind: str
    """Name of the class of the error."""
    text: str
    notes: tuple[str, ...]
    log: str
    """Last lines that the processes of the stage wrote to the standard error; may be empty."""


News = Running | Finished | Failed


class StageWorker:
    """The actor in which a node runs one stage."""

    def __init__(self, places: Sequence[str], folder: str) -> None:
        """Prepares the process.

        Args:
            places: folders in which the sender finds modules, such as a stage beside its recipe.
            folder: folder of the sender, to which paths in options refer; a node that has no such
                folder keeps its own.
        """
        # The processes of a stage would import Ray's program, which is the main module here.
        vars(sys.modules["__main__"]).pop("__file__", None)
        # The record of the artifact names the packages of this environment.
        sys.path[:] = [place for place in sys.path if Path(place).name != COPIES]
        for place in places:
            if Path(place).is_dir() and Path(place).name != COPIES:
                add_place(Path(place))
        if Path(folder).is_dir():
            os.chdir(folder)
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._reports = 0
        self._latest: Running | None = None
        self._ended: Finished | Failed | None = None

    def host(self) -> str:
        """Returns the name of the host."""
        return platform.node()

    def sees(self, file: str) -> bool:
        """Returns whether the node has a file of the sender's."""
        return Path(file).exists()

    def start(self, job: bytes) -> None:
        """Starts a pickled `StageJob`, which can be read only after the constructor has found
        modules."""
        self._thread = threading.Thread(target=self._run, args=(job,), name="stage", daemon=True)
        self._thread.start()

    def news(self, known: int) -> tuple[int, News | None]:
        """Returns the latest progress with its number if that is larger than `known`, else the end
        of the stage, or None while it runs; the same call may be repeated after a lost reply."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._reports > known or self._ended is not None, NEWS_SECONDS
            )
            if self._reports > known:
                return self._reports, self._latest
            return known, self._ended

    def stop(self) -> None:
        """Ends the processes of the stage and waits for their end."""
        RUN_ENDED.set()
        if self._thread is not None:
            self._thread.join(2 * END_SECONDS)

    def _run(self, job: bytes) -> None:
        log = _log_size()
        ended: Finished | Failed
        try:
            ended = compute(pickle.loads(job), self._progress)
        except HandoffError as error:
            notes = tuple(getattr(error, "__notes__", ()))
            ended = Failed(type(error).__name__, str(error), notes, _log_end(log))
        except Exception as error:  # noqa: BLE001  sent to the run
            notes = (traceback.format_exc(),)
            ended = Failed(HandoffError.__name__, describe(error), notes, _log_end(log))
        with self._changed:
            self._ended = ended
            self._changed.notify()

    def _progress(self, done: int, total: int, note: str = "") -> None:
        with self._changed:
            self._latest = Running(done, total, note)
            self._reports += 1
            self._changed.notify()


def versions(stage: Stage) -> dict[str, str]:
    """Returns the versions that decide the result of a stage: of its code, by module, and of the
    libraries, by name."""
    record = identity(stage, {})
    outside: Mapping[str, str] = record.get("outside_code", {})
    return {stage.module: record["code"], **outside, **record[LIBRARY_VERSIONS]}


def compute(job: StageJob, progress: Progress) -> Finished:
    """Computes the stage of a job, or takes it from the cache.

    Args:
        job: the stage.
        progress: called with the progress of the stage.

    Raises:
        HandoffError: this node cannot compute what the sender asks for, or the stage failed.
    """
    stage = job.stage
    check_versions(job)
    check_data(stage)
    needed = [stage, *stage.inputs.values()]
    runs = open_runs(job.runs, {each.name.partition("@")[0] for each in needed})
    inputs = {label: _input(label, sent, runs) for label, sent in job.inputs.items()}
    outcome = run_stage(stage, inputs, runs.folder, progress, redo=job.redo, store=runs.store)
    artifact = outcome.artifact
    if runs.store is not None:
        # The sender cannot publish what is here only.
        artifact = runs.store.deliver(artifact, progress)
    return Finished(artifact.path.name, artifact.digest, outcome.cached, outcome.seconds)


def check_versions(job: StageJob) -> None:
    """Checks that this node has the code and the libraries of the sender.

    Raises:
        HandoffError: names those that differ.
    """
    here = versions(job.stage)
    differ = [
        f"{name} is {here.get(name, 'missing')[:12]} there, {expected[:12]} here"
        for name, expected in job.versions.items()
        if here.get(name) != expected
    ]
    if differ:
        raise HandoffError(
            f"{'; '.join(differ)}. Its result would not be that of this computer: install the same "
            "versions on all nodes."
        )


def check_data(stage: Stage) -> None:
    """Checks that this node finds the data from outside the recipe that the sender has found.

    Raises:
        HandoffError: it finds none, or other data.
    """
    function = getattr(import_module(stage.module), "external", None)
    found: Mapping[str, str] = {} if function is None else function(stage.config, True)
    for name, expected in stage.external.items():
        digest = found.get(name, "missing")
        if digest != expected:
            raise HandoffError(
                f"its data '{name}' is {digest[:12]} there, {expected[:12]} here. Does HANDOFF_DATA of the "
                "node name other data?"
            )


def _input(label: str, sent: Artifact, runs: Runs) -> Artifact:
    """The artifact of an input, as this node has it."""
    path = runs.folder / "artifacts" / sent.path.name
    place = runs.folder if runs.store is None else runs.store.address
    if not path.exists():
        raise HandoffError(f"its input '{label}', {path.name}, is not in {place}. Was it deleted?")
    artifact = load_artifact(path)
    if artifact.digest != sent.digest:
        raise HandoffError(
            f"its input '{label}', {path.name}, has the digest {artifact.digest[:12]} in {place}, "
            f"{sent.digest[:12]} here. Run again: the one there is used."
        )
    return artifact


def _log_size() -> int:
    """Size of this process's log, which Ray keeps in a file; -1 where it does not."""
    status = os.fstat(sys.__stderr__.fileno()) if sys.__stderr__ is not None else None
    return status.st_size if status is not None and stat.S_ISREG(status.st_mode) else -1


def _log_end(start: int) -> str:
    """Last lines of this process's log behind a position."""
    end = _log_size()
    if start < 0 or end <= start:
        return ""
    with open("/proc/self/fd/2", "rb") as file:
        file.seek(max(start, end - LOG_BYTES))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-LOG_LINES:])
