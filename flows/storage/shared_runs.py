"""Opens the runs of a recipe: the local folder, and the storage whose working copy it is."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

from flows.runner.artifact import MANIFEST, MANIFEST_ALONE, read_manifest, write_json
from flows.storage.address import StorageAddress, runs_folder, storage_address
from flows.storage.objects import Objects
from flows.storage.working_copy import WorkingCopy
from robots.errors import HandoffError
from robots.interfaces import Progress, no_progress

STORAGE = "storage.json"
"""File of a working copy with the address of its storage."""


@dataclass(frozen=True)
class Runs:
    """Artifacts and results of a recipe."""

    folder: Path
    """Local folder."""
    store: WorkingCopy | None = None
    """Storage whose working copy the folder is; None for a folder of its own."""

    def check_writable(self) -> None:
        """Checks that results can be written, before anything is computed.

        Raises:
            HandoffError: the folder cannot be made or written.
        """
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with TemporaryFile(dir=self.folder):
                pass
        except OSError as error:
            raise HandoffError(
                f"runs={self.folder}: cannot be written: {error.strerror}. Name another folder with runs=PATH."
            ) from None

    def publish(self, name: str) -> None:
        """Publishes what the storage lacks of a finished run, whose results are in the folder
        `name`; without a storage, does nothing.

        Raises:
            HandoffError: see `WorkingCopy.finish`.
        """
        if self.store is None:
            return
        self.store.finish(self.folder / name, no_progress)
        for note in self.store.notes:
            _print(note)
        _print(f"published  {self.store.address}/{name}")


def open_runs(runs: str, stages: Collection[str], redo: Collection[str] = ()) -> Runs:
    """Opens the runs of a recipe; of a storage, reads the manifests of the stages' artifacts.

    Args:
        runs: local folder, or address of a storage.
        stages: names of the recipe's stages.
        redo: names of stages that are to be computed again although they are cached.

    Raises:
        HandoffError: not an address, the storage cannot be reached, or `redo` for a storage, whose
            artifacts are never replaced.
    """
    address = storage_address(runs)
    folder = runs_folder(runs)
    if address is None:
        existing = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        if not existing.is_dir():
            raise HandoffError(f"runs={runs}: {existing} is a file, expected a folder.")
        return Runs(folder)
    if redo:
        raise HandoffError(
            f"redo: {', '.join(redo)} cannot be computed again in {address}, whose artifacts other "
            "computers may use. Delete the artifact there, or take another prefix."
        )
    store = WorkingCopy(folder, Objects(address))
    store.mirror(stages)
    write_json(folder / STORAGE, {"address": str(address)})
    return Runs(folder, store)


def fetch_lineage(place: str, progress: Progress) -> Path:
    """Fetches an artifact of a storage and all artifacts that it was computed from.

    Args:
        place: `s3://BUCKET/PREFIX/RUN/STAGE`, or a path in the working copy, such as the link of a
            run's stage.
        progress: called with the progress of every artifact.

    Returns:
        The folder of the artifact.

    Raises:
        HandoffError: no such artifact, or the storage has not all of it.
    """
    runs, name = _located(place)
    opened = open_runs(runs, [_stage_of(name)])
    assert opened.store is not None
    artifact = opened.folder / "artifacts" / name
    pending, fetched = [artifact], set[Path]()
    while pending:
        current = pending.pop()
        if current in fetched:
            continue
        fetched.add(current)
        links = read_manifest(current).get("input_paths", {}).values()
        inputs = [current.parent / Path(link).name for link in links]
        if not all(source.exists() for source in inputs):
            opened.store.mirror([_stage_of(source.name) for source in inputs])
        opened.store.fetch(current, progress)
        pending += inputs
    return artifact


def _located(place: str) -> tuple[str, str]:
    """Address of the storage, and name of the artifact, from the address of a run's stage or a path
    in a working copy."""
    address = storage_address(place)
    if address is not None:
        return _located_there(place, address)
    resolved = Path(place).resolve()
    root = resolved.parent.parent
    try:
        runs = json.loads((root / STORAGE).read_bytes())["address"]
    except (FileNotFoundError, NotADirectoryError):
        raise HandoffError(
            f"{place} is not an artifact of a storage's working copy: no {STORAGE} in {root}."
        ) from None
    if runs_folder(runs).resolve() != root:
        raise HandoffError(
            f"{place} is of {runs}, whose folder is now {runs_folder(runs)}. Is AWS_ENDPOINT_URL "
            "that of its run?"
        )
    return runs, resolved.name.removeprefix(".").removesuffix(MANIFEST_ALONE)


def _located_there(place: str, address: StorageAddress) -> tuple[str, str]:
    bucket = Objects(StorageAddress(address.bucket, ""))
    *above, stage = address.prefix.split("/")
    found = bucket.read("/".join([*above, "summary.json"]))
    rows = {} if found is None else json.loads(found)["stages"]
    if stage not in rows:
        raise HandoffError(
            f"{place}: no published run with a stage '{stage}', expected "
            "s3://BUCKET/PREFIX/RUN/STAGE."
        )
    # The name of a run may have several parts, as that of hil/reach has.
    for length in reversed(range(len(above))):
        key = "/".join([*above[:length], rows[stage]["artifact"], MANIFEST])
        if bucket.read(key) is not None:
            runs = StorageAddress(address.bucket, "/".join(above[:length]))
            return str(runs), Path(rows[stage]["artifact"]).name
    raise HandoffError(
        f"{place}: its artifact {rows[stage]['artifact']} is missing. Was it deleted?"
    )


def _stage_of(name: str) -> str:
    return name.rpartition("-")[0].partition("@")[0]


def _print(text: str) -> None:
    from rich.console import Console

    Console().print(text, highlight=False, soft_wrap=True, markup=False)
