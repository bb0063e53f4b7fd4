"""Writes `run.json`, the record of a run, beside `summary.json`.

    runs/demo/run.json                  the latest run, and whether it is running, has finished,
                                        failed or stopped, or waits for a person
    runs/demo/diff.patch                uncommitted changes of the code that it ran
    runs/demo/history/TIME.json         the records of earlier runs, by the time of their start
    runs/demo/history/TIME.patch        the changes that belong to them

Paths in a record are relative to the folder of the run where they can be. Resolved options and the
list of all packages are in the manifests of the artifacts, to which the record refers; it holds the
options of stages that have no artifact.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flows.reports.resolved_recipe import RECIPE
from flows.reports.run_records.checkout import DIFF, record_checkout
from flows.reports.run_records.computer import computer, settings, threads
from flows.reports.run_records.places import written_folder, written_path
from flows.reports.run_records.process_mark import process_mark
from flows.runner.artifact import write_json
from flows.runner.provenance import login, package_lock, person_of
from flows.runner.stage import Stage, StageOutcome
from robots.config import to_plain
from robots.errors import ApprovalNeededError, error_text

RUN = "run.json"
HISTORY = "history"
"""Folder of the records of earlier runs, in the folder of a run."""
FORMAT = 1
"""Version of the record's layout."""


class RunRecord:
    """Record of one run; a context that lasts as long as the run.

    The state is `running` inside the context. Behind it, it is `finished`, `failed` after an
    error, `stopped` after Ctrl-C or a signal, or `waiting` for a person's approval, with the
    reason. A run whose process is killed stays `running`, which `reading.run_state` notices.
    """

    def __init__(
        self, runs: Path, name: str, request: Mapping[str, Any], declared: Sequence[Stage] = ()
    ) -> None:
        """Describes the run.

        Args:
            runs: folder of artifacts and results.
            name: subfolder of the run.
            request: recipe and overrides as they were given (`Recipe.request`).
            declared: stages of the run; may be left out if all outcomes are known.
        """
        self._folder = runs / name
        self._name = name
        self._request = request
        self._declared = declared
        self._outcomes: dict[str, StageOutcome] = {}
        self._entries: dict[str, Any] = {}

    def __enter__(self) -> RunRecord:
        self._folder.mkdir(parents=True, exist_ok=True)
        archive_record(self._folder)
        self._entries = _described(self._folder, self._name, self._request)
        self._write()
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: object) -> None:
        if error is None:
            state, reason = "finished", ""
        else:
            state = "failed" if isinstance(error, Exception) else "stopped"
            state = "waiting" if isinstance(error, ApprovalNeededError) else state
            reason = _reason(error)
        ended = time.time()
        self._entries |= {"state": state, "reason": reason, "ended": time_text(ended)}
        try:
            self._write()
        except OSError as problem:
            if error is None:
                raise
            # The error that ended the run says more than that its record could not be written.
            error.add_note(f"{self._folder / RUN} was not written: {problem}")

    def add(self, outcomes: Mapping[str, StageOutcome]) -> None:
        """Adds the outcomes of stages that have ended without an error, and writes the record."""
        self._outcomes |= outcomes
        self._write()

    def _write(self) -> None:
        self._entries["threads"] = threads()
        self._entries["people"] = list(dict.fromkeys(self._people()))
        self._entries["stages"] = {stage.name: _pending(stage) for stage in self._declared} | {
            name: _ended(self._folder, outcome) for name, outcome in self._outcomes.items()
        }
        file = self._folder / RUN
        current = _read(file)
        if current is not None and current.get("id") != self._entries["id"]:
            # A later run of this name has begun, and has moved this record to the history.
            _write_archived(self._folder, self._entries)
        else:
            write_json(file, self._entries)

    def _people(self) -> Iterator[str]:
        for stage in self._declared:
            if stage.name not in self._outcomes:
                yield person_of(to_plain(stage.config))
        for outcome in self._outcomes.values():
            manifest = outcome.artifact.manifest
            yield str(manifest.get("person", login()))
            if manifest.get("uses") == "approve":
                yield manifest["metrics"]["by"]


def archive_record(folder: Path) -> None:
    """Moves the record of a run and its diff to the history; does nothing without a record."""
    file = folder / RUN
    if not file.exists():
        return
    entries = _read(file)
    (folder / HISTORY).mkdir(exist_ok=True)
    if entries is None or not isinstance(entries.get("started"), str):
        modified = time_text(file.stat().st_mtime).replace(":", "")
        os.replace(file, folder / HISTORY / f"{modified}.unreadable")
        return
    if (folder / DIFF).exists():
        os.replace(folder / DIFF, folder / HISTORY / f"{_stem(entries)}.patch")
    _write_archived(folder, entries)
    file.unlink()


def time_text(seconds: float) -> str:
    """Returns a time [s since the epoch] as UTC, `2026-11-25T13:21:58.123456Z`."""
    text = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="microseconds")
    return text.replace("+00:00", "Z")


def _stem(entries: Mapping[str, Any]) -> str:
    return entries["started"].replace(":", "")


def _write_archived(folder: Path, entries: Mapping[str, Any]) -> None:
    checkout = dict(entries.get("checkout", {}))
    if checkout.get("diff"):
        checkout["diff"] = {**checkout["diff"], "file": f"{HISTORY}/{_stem(entries)}.patch"}
    archived = {**entries, "checkout": checkout, "resolved_recipe": None}
    write_json(folder / HISTORY / f"{_stem(entries)}.json", archived)


def _reason(error: BaseException) -> str:
    """The reason why a run ended; Prefect's exception for a signal has its number and no text."""
    number = getattr(error, "signal", None)
    if isinstance(number, int):
        return f"ended by {signal.Signals(number).name}"
    return error_text(error)


def _read(file: Path) -> dict[str, Any] | None:
    try:
        entries = json.loads(file.read_bytes())
    except (OSError, ValueError):
        return None
    return entries if isinstance(entries, dict) else None


def _described(folder: Path, name: str, request: Mapping[str, Any]) -> dict[str, Any]:
    """Entries that are known when the run starts."""
    here = Path.cwd()
    return {
        "format": FORMAT,
        "id": str(uuid.uuid4()),
        "name": name,
        "state": "running",
        "reason": "",
        "started": time_text(time.time()),
        "ended": None,
        "command": _command(),
        "working_directory": written_folder(here, folder),
        "recipe": _recipe(request, here),
        # The resolved recipe is written with the results; it holds every option.
        "resolved_recipe": RECIPE,
        "started_by": login(),
        "checkout": record_checkout(folder),
        "computer": computer(),
        "threads": threads(),
        "settings": settings(here),
        "packages": {"digest": package_lock()["digest"], "list": "lock in every manifest"},
        "process": process_mark(),
        "prefect": _prefect(),
    }


def _command() -> list[str]:
    """The command line; the program without its folder."""
    program = Path(sys.argv[0])
    if program.parts[-2:] == ("flows", "__main__.py"):
        return ["handoff", *sys.argv[1:]]
    if program.suffix == ".py" and "-m" in sys.orig_argv:
        # A Prefect worker runs a module, whose file says less than its name.
        module = sys.orig_argv[sys.orig_argv.index("-m") + 1]
        return ["python", "-m", module, *sys.argv[1:]]
    return [program.name, *sys.argv[1:]]


def _recipe(request: Mapping[str, Any], here: Path) -> dict[str, Any]:
    folder = request.get("folder")
    return {
        "name": request.get("recipe"),
        "overrides": list(request.get("overrides", ())),
        "folder": None if folder is None else written_path(Path(folder), here),
        "files": {
            written_path(Path(path), here): digest
            for path, digest in request.get("files", {}).items()
        },
    }


def _prefect() -> dict[str, Any] | None:
    """Identity of the Prefect flow run in which this code runs, with its parameters; None outside
    of one."""
    if "prefect" not in sys.modules:
        return None
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    if context is None or context.flow_run is None:
        return None
    run = context.flow_run
    return {"id": str(run.id), "name": run.name, "parameters": dict(context.parameters or {})}


def _pending(stage: Stage) -> dict[str, Any]:
    """Entry of a stage that has no artifact, with the options that no manifest holds yet."""
    return {
        "uses": stage.uses,
        "inputs": {label: source.name for label, source in stage.inputs.items()},
        "artifact": None,
        "options": to_plain(stage.config),
    }


def _ended(folder: Path, outcome: StageOutcome) -> dict[str, Any]:
    """Entry of a stage with an artifact; its path is relative to the folder of the run."""
    artifact = outcome.artifact
    return {
        "uses": artifact.manifest.get("uses", ""),
        "artifact": os.path.relpath(artifact.path, folder),
        "digest": artifact.digest,
        "cached": outcome.cached,
        "started": time_text(outcome.started),
        "seconds": round(outcome.seconds, 3),
    }
