"""Deletes the artifacts that no run refers to, and what interrupted stages and killed writers have
left.

An artifact is kept if a link or a `summary.json` of a run names it, or if such an artifact was
computed from it. What a person has recorded is kept in any case, interrupted recordings as well,
because no computation makes it again; it is deleted by its name alone. While a run computes a
stage, all finished artifacts are kept, because it may use some that nothing names yet.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from flows.reports.dataset_text import counted
from flows.runner.artifact import MANIFEST, REPLACED, read_manifest
from flows.runner.lock import free_locks, is_locked
from flows.runner.provenance import by_person
from flows.runner.stage import person_record
from flows.storage.shared_runs import STORAGE
from flows.storage.working_copy import ARTIFACTS, FETCHING, PUBLISHED, SUPERSEDED
from robots.errors import HandoffError, suggest
from robots.storage.durable import explain_write_errors, is_temporary, remove_tree
from robots.storage.parsed_sources import cache_folder

DAY = 86400.0
"""Length of a day [s]."""
LOCK = ".lock"
"""Ending of the file that a run locks while it computes an artifact."""
PARTIAL = ".partial"
"""Ending of the folder that a stage writes."""
DELETING = ".deleting"
"""Ending of a folder whose deletion was interrupted."""
REASONS = {
    PARTIAL: "a stage was interrupted",
    SUPERSEDED: "another computer published it before",
    REPLACED: "it was computed again",
    FETCHING: "a fetch was interrupted",
    DELETING: "a deletion was interrupted",
}
"""Phrases for folders that are no artifacts, by their ending."""
IMPORTS = ".imports"
"""Ending of the file in which the processes of a stage record what they import."""
TEMPORARY = "a writer was killed"
"""Phrase for files and folders with a name by `robots.storage.durable.temporary_beside`."""
LONGEST_WRITE = 1.0
"""Age below which a temporary file is kept in any case, because a process of another computer may
be writing it [days]."""
_FINISHED = re.compile(r"(?P<stage>[^.].*)-[0-9a-f]{12}")
_LEFT = re.compile(rf"\.?(?P<name>.+?-[0-9a-f]{{12}})({'|'.join(REASONS)})")


@dataclass(frozen=True)
class Unused:
    """A folder, or a temporary file, that may be deleted."""

    path: Path
    reason: str
    size_bytes: int
    days: float
    """Time since it was finished or last written [days]."""

    @property
    def artifact(self) -> Path:
        """Path of the artifact, whose locks tell whether a run is writing it."""
        left = _LEFT.fullmatch(self.path.name)
        return self.path.with_name(left["name"]) if left else self.path

    @property
    def line(self) -> str:
        """Name, size, age and reason."""
        size = f"{self.size_bytes / 1e6:.1f} MB"
        return f"{self.path.name}  {size}, {self.days:.0f} days old: {self.reason}"


def collect(
    root: Path,
    report: Callable[[str], None],
    *,
    older_than: float,
    keep_last: int = 0,
    recordings: Collection[str] = (),
    dry_run: bool = False,
) -> None:
    """Deletes what is unused in a folder of runs, and temporary files in the user's cache, each
    after a line that names it.

    Args:
        root: the folder of runs.
        report: prints a line.
        older_than: smallest age of what is deleted [days].
        keep_last: number of the newest artifacts of every stage that are kept in any case.
        recordings: names of artifacts, or of interrupted ones, that are not kept although a person
            recorded them.
        dry_run: deletes nothing.

    Raises:
        HandoffError: no such folder of runs, no such recording, or the folder cannot be written.
    """
    if not (root / ARTIFACTS).is_dir():
        raise HandoffError(f"gc: {root} is not a folder of runs: it has no folder '{ARTIFACTS}'.")
    recorded = by_people(root)
    for name in recordings:
        if root / ARTIFACTS / name not in recorded:
            known = [path.name for path in recorded]
            raise HandoffError(f"gc: {name} is no recording by a person, {suggest(name, known)}")
    named = {root / ARTIFACTS / name for name in recordings}
    unused = find_unused(
        root, time.time(), older_than=older_than, keep_last=keep_last, kept=recorded - named
    )
    busy = _computed(root)
    if busy is not None:
        report(f"kept    all finished artifacts: a run computes {busy} and may use them")
        unused = [entry for entry in unused if _FINISHED.fullmatch(entry.path.name) is None]
    for path in sorted(recorded - named - _with_inputs(root, referred(root))):
        report(f"kept    {path.name}: recorded by a person; gc --recording {path.name} deletes it")
    deleted = []
    for entry in unused:
        report(f"{'unused' if dry_run else 'delete'}  {entry.line}")
        if dry_run or _delete(entry, report):
            deleted.append(entry)
    temporary = _temporary(root, time.time(), older_than)
    for entry in temporary:
        report(f"{'unused' if dry_run else 'delete'}  {entry.line}")
        if not dry_run:
            _delete_temporary(entry)
    megabytes = sum(entry.size_bytes for entry in [*deleted, *temporary]) / 1e6
    verb = "would be deleted" if dry_run else "deleted"
    files = f" and {counted(len(temporary), 'temporary file')}" if temporary else ""
    report(f"{counted(len(deleted), 'folder')}{files} {verb}, {megabytes:.1f} MB")


def _computed(root: Path) -> str | None:
    """Name of an artifact that a run is writing; None if there is none."""
    names = (file.name[1:].removesuffix(LOCK) for file in (root / ARTIFACTS).glob(f".*{LOCK}"))
    return next((name for name in names if is_locked(root / ARTIFACTS / name)), None)


def by_people(root: Path) -> set[Path]:
    """Returns the artifacts in which a person demonstrated or corrected, and the folders of such
    stages that were interrupted."""
    found: set[Path] = set()
    for path in (root / ARTIFACTS).iterdir():
        if path.name.endswith(PARTIAL):
            recorded = person_record(path.with_suffix("")).exists()
        elif _FINISHED.fullmatch(path.name) or path.name.endswith(SUPERSEDED):
            recorded = False
            with suppress(HandoffError):
                recorded = by_person(read_manifest(path).get("config"))
        else:
            recorded = False
        found |= {path} if recorded else set()
    return found


def find_unused(
    root: Path,
    now: float,
    *,
    older_than: float,
    keep_last: int = 0,
    kept: Collection[Path] = (),
) -> list[Unused]:
    """Returns the artifacts that no run refers to, and what interrupted stages have left.

    Args:
        root: the folder of runs.
        now: present time [s since the epoch].
        older_than: smallest age [days].
        keep_last: number of the newest artifacts of every stage that are left out.
        kept: folders that are left out, with all that they were computed from.
    """
    used = _with_inputs(root, {*referred(root), *kept})
    used |= _newest(root, keep_last)
    copied = (root / STORAGE).exists()
    found = []
    for path in _finished(root):
        if path in used or (copied and not path.with_name(f".{path.name}{PUBLISHED}").exists()):
            continue
        days = (now - (path / MANIFEST).stat().st_mtime) / DAY
        found.append(Unused(path, "no run refers to it", _size(path), days))
    found += [entry for entry in _left(root, now) if entry.path not in used]
    return sorted(
        (entry for entry in found if entry.days >= older_than), key=lambda entry: entry.path.name
    )


def referred(root: Path) -> set[Path]:
    """Returns the artifacts that runs link to, or name in a `summary.json`."""
    artifacts = root / ARTIFACTS
    home = artifacts.resolve()
    found: set[Path] = set()
    for folder, folders, files in os.walk(root):
        place = Path(folder)
        if place == artifacts:
            folders.clear()
            continue
        for name in (*folders, *files):
            target = (place / name).resolve() if (place / name).is_symlink() else None
            if target is not None and home in target.parents:
                found.add(artifacts / target.relative_to(home).parts[0])
        if "summary.json" in files:
            found |= {artifacts / name for name in _named(place / "summary.json")}
        if place.name == ARTIFACTS:
            # Those of a repetition, which may be links to those of the run.
            folders.clear()
    return found


def _named(summary: Path) -> Iterator[str]:
    with suppress(ValueError, KeyError, TypeError, AttributeError):
        for row in json.loads(summary.read_bytes())["stages"].values():
            yield Path(row["artifact"]).name


def _with_inputs(root: Path, artifacts: set[Path]) -> set[Path]:
    """The artifacts, and all that they were computed from."""
    found: set[Path] = set()
    pending = list(artifacts)
    while pending:
        path = pending.pop()
        if path in found:
            continue
        found.add(path)
        with suppress(HandoffError):
            links: Mapping[str, str] = read_manifest(path).get("input_paths", {})
            pending += [root / ARTIFACTS / Path(link).name for link in links.values()]
    return found


def _newest(root: Path, number: int) -> set[Path]:
    """The newest artifacts of every stage."""
    stages: dict[str, list[Path]] = {}
    for path in _finished(root):
        stages.setdefault(path.name.rpartition("-")[0], []).append(path)
    return {
        path
        for paths in stages.values()
        for path in sorted(paths, key=lambda path: -(path / MANIFEST).stat().st_mtime)[:number]
    }


def _finished(root: Path) -> Iterator[Path]:
    """Yields the artifacts whose files are here."""
    for path in sorted((root / ARTIFACTS).iterdir()):
        if _FINISHED.fullmatch(path.name) and not path.is_symlink() and (path / MANIFEST).is_file():
            yield path


def _left(root: Path, now: float) -> Iterator[Unused]:
    """Yields the folders that interrupted stages, fetches and deletions have left."""
    for path in sorted((root / ARTIFACTS).iterdir()):
        left = _LEFT.fullmatch(path.name)
        if left is not None and path.is_dir() and not path.is_symlink():
            newest = max(_times(path))
            yield Unused(path, REASONS[left[2]], _size(path), (now - newest) / DAY)


def _temporary(root: Path, now: float, older_than: float) -> list[Unused]:
    """What killed writers have left in the folder of runs and in the user's cache, and no process
    of this computer has open. What lies in the folder of a stage goes with it, or with its next
    attempt."""
    found = []
    for folder, folders, files in os.walk(root):
        if Path(folder) == root / ARTIFACTS:
            found += [Path(folder) / name for name in (*folders, *files) if is_temporary(name)]
            folders.clear()
            continue
        found += [Path(folder) / name for name in (*folders, *files) if is_temporary(name)]
    cache = cache_folder()
    if cache.is_dir():
        found += [path for path in cache.iterdir() if is_temporary(path.name)]
    entries = []
    for path in sorted(found):
        with suppress(FileNotFoundError):
            days = (now - max(_times(path))) / DAY
            if days >= max(older_than, LONGEST_WRITE):
                size = _size(path) if path.is_dir() else path.lstat().st_size
                entries.append(Unused(path, TEMPORARY, size, days))
    open_files = _open_files() if entries else set()
    return [
        entry
        for entry in entries
        if not any(entry.path == file or entry.path in file.parents for file in open_files)
    ]


def _open_files() -> set[Path]:
    """Files that processes of this computer have open, as far as this user may know."""
    import psutil

    found: set[Path] = set()
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found |= {Path(file.path) for file in process.open_files()}
    return found


def _delete_temporary(entry: Unused) -> None:
    with explain_write_errors(entry.path, "it cannot be deleted"):
        if entry.path.is_dir() and not entry.path.is_symlink():
            remove_tree(entry.path)
        else:
            entry.path.unlink(missing_ok=True)


def _delete(entry: Unused, report: Callable[[str], None]) -> bool:
    """Deletes a folder under its locks: first its name, at once, then its files."""
    path = entry.path
    with (
        explain_write_errors(path, "it cannot be deleted"),
        free_locks(entry.artifact) as free,
    ):
        if not free:
            report(f"kept    {path.name}: a run is writing it")
            return False
        doomed = path
        if not path.name.endswith(DELETING):
            doomed = path.with_name(f".{entry.artifact.name}{DELETING}")
            if doomed.exists():
                remove_tree(doomed)
            os.rename(path, doomed)
        remove_tree(doomed)
        if not entry.artifact.exists():
            path.with_name(f".{entry.artifact.name}{IMPORTS}").unlink(missing_ok=True)
            person_record(entry.artifact).unlink(missing_ok=True)
    return True


def _size(path: Path) -> int:
    return sum(file.lstat().st_size for file in path.rglob("*") if not file.is_dir())


def _times(path: Path) -> Iterator[float]:
    yield path.lstat().st_mtime
    for file in path.rglob("*"):
        yield file.lstat().st_mtime
