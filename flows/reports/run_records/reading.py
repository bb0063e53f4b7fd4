"""Finds runs and reads their records."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from flows.reports.run_records.places import read_path
from flows.reports.run_records.process_mark import has_ended
from flows.reports.run_records.record import HISTORY, RUN
from flows.runner.artifact import MANIFEST
from robots.errors import HandoffError

SUMMARY = "summary.json"


@dataclass(frozen=True)
class RecordedRun:
    """A run as it was recorded."""

    folder: Path
    """Folder of the run, e.g. `runs/demo`."""
    record: Mapping[str, Any]
    """Content of `run.json`; empty for a run of an older version, which has none."""
    artifacts: Mapping[str, Path]
    """Folder of the artifact of every finished stage, by the name of the stage."""
    request: Mapping[str, Any]
    """Recipe and overrides as they were given; of an older version, those in `summary.json`."""

    @property
    def name(self) -> str:
        """Name of the run."""
        return str(self.record.get("name", self.folder.name))

    @property
    def present(self) -> dict[str, Path]:
        """The artifacts that have not been deleted."""
        return {name: path for name, path in self.artifacts.items() if (path / MANIFEST).is_file()}

    @cached_property
    def working_directory(self) -> Path | None:
        """Folder in which the run was started; None if it is not recorded."""
        written = self.record.get("working_directory")
        return None if written is None else read_path(written, self.folder)

    @property
    def recipe_folder(self) -> Path | None:
        """Folder of the recipe, beside which stages of one's own may lie; None if it is not
        recorded."""
        written = self.request.get("folder")
        return None if not written else read_path(written, self.working_directory or Path.cwd())

    @property
    def earlier(self) -> list[Path]:
        """Records of earlier runs of the same name, the oldest first."""
        return sorted((self.folder / HISTORY).glob("*.json"))


def find_run(
    run: Path | str, runs: Path = Path("runs"), files: Sequence[str] = (RUN, SUMMARY)
) -> Path:
    """Returns the folder of a run.

    Args:
        run: name of the run, or the path of its folder, of a file in it, or of a record in its
            history.
        runs: folder in which it is looked for by name.
        files: names of files of which the folder has at least one.

    Raises:
        HandoffError: no such run.
    """
    given = Path(run)
    for folder in (_folder_of(given), runs / given):
        if any((folder / name).is_file() for name in files):
            return folder
    patterns = [f"{place}/{name}" for place in ("*", "hil/*") for name in files]
    known = {str(path.parent.relative_to(runs)) for each in patterns for path in runs.glob(each)}
    raise HandoffError(
        f"run '{run}' does not exist; runs in {runs.absolute()}: "
        f"{', '.join(sorted(known)) or 'none'}."
    )


def _folder_of(given: Path) -> Path:
    """The folder of a run, of a file in it, or of a record in its history."""
    if not given.is_file():
        return given
    return given.parents[1] if given.parent.name == HISTORY else given.parent


def is_run(path: Path) -> bool:
    """Whether a path is the folder of a run, or a record in one."""
    recorded = path.name in (RUN, SUMMARY) or path.parent.name == HISTORY
    if path.is_file() and not recorded:
        return False
    folder = _folder_of(path)
    has_record = any((folder / name).is_file() for name in (RUN, SUMMARY))
    return has_record and not (folder / MANIFEST).exists()


def read_run(run: Path | str, runs: Path = Path("runs")) -> RecordedRun:
    """Reads the record of a run: the latest of its name, or the one in the history that `run` is
    the path of.

    Args:
        run: see `find_run`.
        runs: see `find_run`.

    Raises:
        HandoffError: no such run, or a file that is no record.
    """
    folder = find_run(run, runs)
    given = Path(run)
    file = given if given.is_file() and given.parent.name == HISTORY else folder / RUN
    if not file.is_file():
        return _older(folder)
    record = _mapping(file)
    try:
        artifacts = {
            name: Path(os.path.normpath(folder.resolve() / entry["artifact"]))
            for name, entry in record["stages"].items()
            if entry["artifact"] is not None
        }
        return RecordedRun(folder, record, artifacts, record["recipe"])
    except (KeyError, TypeError, AttributeError) as error:
        raise HandoffError(f"{file}: not the record of a run ({error!r}). Was it edited?") from None


def run_state(record: Mapping[str, Any]) -> str:
    """Returns the state of a run; `killed` for one that says `running` and whose process on this
    computer is gone."""
    state = str(record["state"])
    if state != "running" or record["computer"]["host"] != platform.node():
        return state
    return "killed" if has_ended(record["process"]) else state


def _older(folder: Path) -> RecordedRun:
    """A run of an older version, from its summary and the links to its artifacts."""
    summary = _mapping(folder / SUMMARY)
    try:
        artifacts = {name: (folder / name).resolve() for name in summary["stages"]}
    except (KeyError, TypeError) as error:
        raise HandoffError(
            f"{folder / SUMMARY}: not the summary of a run ({error!r}). Was it edited?"
        ) from None
    return RecordedRun(folder, {}, artifacts, summary.get("request", {}))


def _mapping(file: Path) -> dict[str, Any]:
    try:
        values = json.loads(file.read_bytes())
    except (OSError, ValueError) as error:
        raise HandoffError(f"{file} cannot be read as JSON ({error}). Was it edited?") from None
    if not isinstance(values, dict):
        raise HandoffError(f"{file} holds a {type(values).__name__}, expected a map.")
    return values
