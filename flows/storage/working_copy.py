"""Keeps the local folder of a storage: the manifests of its artifacts, the files of those that this
computer uses, and the artifacts that it made.

    FOLDER/artifacts/teacher-3f9c0a1b2c4d/             an artifact with its files
    FOLDER/artifacts/demos-81b2c4d3f9c0 -> .demos-81b2c4d3f9c0.manifest
                                                       an artifact whose files are in the storage

In the storage, the manifest is written last and never replaced, so an artifact is complete or
absent. Its files lie below a digest of the manifest: two computers that compute one artifact at the
same time do not mix their files, and the one that is first decides.

    PREFIX/artifacts/teacher-3f9c0a1b2c4d/artifact.json
    PREFIX/artifacts/teacher-3f9c0a1b2c4d/5be1a2f2cc91/policy.safetensors
    PREFIX/demo/summary.json
"""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath

from flows.runner.artifact import (
    MANIFEST,
    MANIFEST_ALONE,
    NAMED,
    Artifact,
    file_digest,
    is_fetched,
    load_artifact,
    make_read_only,
    read_manifest,
)
from flows.runner.content import check_content, remember_content
from flows.runner.lock import free_locks, run_lock
from flows.storage.objects import PARALLEL, Objects, StorageError
from flows.storage.published_results import SUMMARY, files_folder, publish_results
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.storage.durable import remove_tree, sync_path, sync_tree, write_atomically

ARTIFACTS = "artifacts"
"""Folder of the artifacts, here and in the storage."""
PUBLISHED = ".published"
"""Ending of the empty file that says that an artifact is in the storage."""
SUPERSEDED = ".superseded"
"""Ending of an artifact that another computer had published before."""
FETCHING = ".fetching"
"""Ending of the folder into which files are fetched."""
_NAME = re.compile(r"[^./][^/]*-[0-9a-f]{12}")


class WorkingCopy:
    """The local folder of a storage; an `ArtifactStore` of `flows.runner.artifact`."""

    def __init__(self, folder: Path, objects: Objects) -> None:
        """`folder` is this computer's, `objects` are those of the storage."""
        self.folder = folder
        self.notes: list[str] = []
        """Sentences about artifacts that another computer had published before."""
        self.address = objects.address
        self._objects = objects
        self._failure: StorageError | None = None

    def mirror(self, stages: Collection[str]) -> None:
        """Reads the manifests of the storage's artifacts of these stages, of all copies, that are
        not here yet.

        Raises:
            HandoffError: a manifest was changed, or the storage cannot be reached.
        """
        (self.folder / ARTIFACTS).mkdir(parents=True, exist_ok=True)
        # Before the listing, because another thread may take a later manifest meanwhile.
        before = list((self.folder / ARTIFACTS).iterdir())
        listed = [
            name for name in self._objects.folders(ARTIFACTS) if _NAME.fullmatch(name) is not None
        ]
        self._forget_deleted(before, listed)
        unknown = [
            name
            for name in listed
            if name.rpartition("-")[0].partition("@")[0] in stages and not self._is_known(name)
        ]
        with ThreadPoolExecutor(PARALLEL) as pool:
            found = list(pool.map(self._objects.read, map(_manifest_key, unknown)))
        for name, data in zip(unknown, found, strict=True):
            # Without a manifest, it is being published, or its publication was interrupted.
            if data is not None:
                self._take_manifest(name, data)

    def check(self, path: Path) -> None:
        """Compares the names and sizes of an artifact's files in the storage with its manifest, if
        the manifest alone is here; contents are compared when they are fetched.

        Raises:
            HandoffError: a file is missing or has another size; names it.
        """
        if is_fetched(path):
            return
        manifest = read_manifest(path)
        sizes = self._objects.sizes(f"{ARTIFACTS}/{path.name}")
        if MANIFEST not in sizes:
            raise self._damaged(path.name, f"{MANIFEST} is missing")
        for name, entry in manifest["files"].items():
            size = sizes.get(f"{files_folder(manifest)}/{name}")
            if size != entry["size"]:
                state = "is missing" if size is None else f"has {size} bytes"
                raise self._damaged(
                    path.name, f"{name} {state}, the manifest says {entry['size']} bytes"
                )

    def fetch(self, path: Path, progress: Progress) -> None:
        """Fetches the files of an artifact whose manifest alone is here: into a folder beside it,
        which is renamed after all files have been compared with their digests.

        Raises:
            HandoffError: a file differs or is missing; names it.
        """
        if is_fetched(path):
            return
        with run_lock(path, path.name, progress):
            if is_fetched(path):
                return
            hidden, aside = _beside(path, MANIFEST_ALONE), _beside(path, FETCHING)
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            try:
                self._download(path, aside, progress)
                shutil.copyfile(hidden / MANIFEST, aside / MANIFEST)
                make_read_only(aside, [*read_manifest(path)["files"], MANIFEST])
                sync_tree(aside)
            except HandoffError:
                shutil.rmtree(aside)
                raise
            path.unlink()
            os.rename(aside, path)
            sync_path(path.parent)
            shutil.rmtree(hidden)
            _beside(path, PUBLISHED).touch()
            remember_content(path)

    def publish(self, artifact: Artifact, progress: Progress) -> Artifact:
        """Copies a finished artifact to the storage, the manifest last; the caller holds its lock.

        If the storage cannot be reached, the artifact stays here and `finish` tries again.

        Returns:
            The artifact in the storage: another computer's, if that was first.

        Raises:
            HandoffError: files were changed after the artifact was sealed.
        """
        if self._failure is not None:
            return artifact
        try:
            return self._publish(artifact, progress)
        except StorageError as error:
            self._failure = error
            return artifact

    def deliver(self, artifact: Artifact, progress: Progress) -> Artifact:
        """Publishes a finished artifact unless the storage has it; unlike `publish`, it takes the
        lock of the artifact and fails if the storage cannot be reached.

        Returns:
            The artifact in the storage: another computer's, if that was first.

        Raises:
            HandoffError: the storage cannot be reached, or files were changed after the artifact
                was sealed.
        """
        with run_lock(artifact.path, artifact.path.name, progress):
            return self._publish(artifact, progress)

    def finish(self, run: Path, progress: Progress) -> None:
        """Publishes the artifacts of a run that the storage lacks, and the results of the run.

        Args:
            run: folder of the run's results, whose summary names the artifacts.
            progress: called with the progress of every artifact.

        Raises:
            HandoffError: the storage cannot be reached, or another computer has published another
                artifact meanwhile; says what to do.
        """
        self._failure = None
        rows = json.loads((run / SUMMARY).read_bytes())["stages"].values()
        waiting = [load_artifact(self.folder / row["artifact"]) for row in rows]
        try:
            while waiting:
                artifact = waiting[0]
                if self.deliver(artifact, progress).digest != artifact.digest:
                    raise HandoffError(f"{self.notes[-1]} Run again: later stages depend on it.")
                waiting.pop(0)
            publish_results(self._objects, run, self.folder)
        except StorageError as error:
            names = ", ".join([artifact.path.name for artifact in waiting if self._lacks(artifact)])
            left = f"{names} and the results" if names else "The results"
            raise StorageError(
                f"{error} {left} are in {self.folder} only: run the same command again to publish "
                "them."
            ) from None

    def _publish(self, artifact: Artifact, progress: Progress) -> Artifact:
        if not self._lacks(artifact):
            return artifact
        path = artifact.path
        data = (path / MANIFEST).read_bytes()
        theirs = self._objects.read(_manifest_key(path.name))
        if theirs is None:
            # Nothing damaged leaves this computer.
            check_content(path)
            self._upload(path, progress)
            if not self._objects.create(_manifest_key(path.name), data):
                theirs = self._objects.read(_manifest_key(path.name))
        if theirs is not None and theirs != data:
            return self._yield_to(artifact, theirs)
        _beside(path, PUBLISHED).touch()
        return artifact

    def _upload(self, path: Path, progress: Progress) -> None:
        manifest = read_manifest(path)
        prefix = f"{ARTIFACTS}/{path.name}/{files_folder(manifest)}"
        # An interrupted publication left complete objects, whose names contain the digest.
        present = self._objects.sizes(prefix)
        files = manifest["files"]
        missing = [name for name, entry in files.items() if present.get(name) != entry["size"]]
        counted = _Bytes(progress, sum(files[name]["size"] for name in missing), "publishing")
        self._objects.upload({f"{prefix}/{name}": path / name for name in missing}, counted.add)

    def _download(self, path: Path, aside: Path, progress: Progress) -> None:
        manifest = read_manifest(path)
        prefix = f"{ARTIFACTS}/{path.name}/{files_folder(manifest)}"
        files = manifest["files"]
        counted = _Bytes(progress, sum(entry["size"] for entry in files.values()), "fetching")
        self._objects.download({f"{prefix}/{name}": aside / name for name in files}, counted.add)
        differing = [
            f"{name} has sha256 {digest[:12]}, the manifest says {entry['sha256'][:12]}"
            for name, entry in files.items()
            if (digest := file_digest(aside / name)) != entry["sha256"]
        ]
        if differing:
            more = f"; and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
            raise self._damaged(path.name, "; ".join(differing[:NAMED]) + more)

    def _yield_to(self, artifact: Artifact, theirs: bytes) -> Artifact:
        """Takes the artifact that another computer had published before; the own one is kept under
        another name, unless its content is the same."""
        path = artifact.path
        self._check_manifest(path.name, theirs)
        own = f"{ARTIFACTS}/{path.name}/{files_folder(read_manifest(path))}"
        if not own.endswith(f"/{files_folder(json.loads(theirs))}"):
            with suppress(StorageError):
                self._objects.delete([f"{own}/{name}" for name in self._objects.sizes(own)])
        if json.loads(theirs)["digest"] == artifact.digest:
            _beside(path, PUBLISHED).touch()
            return artifact
        kept = path.with_name(path.name + SUPERSEDED)
        if kept.exists():
            remove_tree(kept)
        os.rename(path, kept)
        self._place_manifest(path, theirs)
        self.notes.append(
            f"{path.name}: another computer published it before; its result is used, the one of "
            f"this computer is kept as {kept.name}."
        )
        return load_artifact(path)

    def _take_manifest(self, name: str, data: bytes) -> None:
        path = self._path(name)
        with free_locks(path) as free:
            # A run that is writing it finds the published one when it publishes its own.
            if not free:
                return
            if path.exists() and not path.is_symlink():
                if data != (path / MANIFEST).read_bytes():
                    self._yield_to(load_artifact(path), data)
                else:
                    _beside(path, PUBLISHED).touch()
            elif not path.is_symlink():
                self._check_manifest(name, data)
                self._place_manifest(path, data)

    def _place_manifest(self, path: Path, data: bytes) -> None:
        hidden = _beside(path, MANIFEST_ALONE)
        hidden.mkdir(exist_ok=True)
        write_atomically(hidden / MANIFEST, data)
        path.symlink_to(hidden.name)

    def _check_manifest(self, name: str, data: bytes) -> None:
        """Checks a manifest before anything refers to it; the names of files become paths here."""
        aside = _beside(self._path(name), f".checked{MANIFEST_ALONE}")
        aside.mkdir(exist_ok=True)
        try:
            (aside / MANIFEST).write_bytes(data)
            load_artifact(aside)
            files = read_manifest(aside)["files"]
        except HandoffError as error:
            reason = str(error).partition(": ")[2]
            raise self._damaged(name, f"the manifest was changed ({reason})") from None
        finally:
            shutil.rmtree(aside)
        for file in files:
            parts = PurePosixPath(file).parts
            if ".." in parts or file.startswith("/") or parts in ((), (MANIFEST,)):
                raise self._damaged(name, f"the manifest names the file '{file}'")

    def _forget_deleted(self, before: Collection[Path], listed: Collection[str]) -> None:
        """Removes what says that artifacts are in the storage that were deleted there; `before` was
        here before the storage was listed."""
        for path in before:
            if path.name.endswith(PUBLISHED) and path.name[1 : -len(PUBLISHED)] not in listed:
                path.unlink(missing_ok=True)
            elif path.is_symlink() and path.name not in listed:
                path.unlink(missing_ok=True)
                shutil.rmtree(_beside(path, MANIFEST_ALONE), ignore_errors=True)

    def _lacks(self, artifact: Artifact) -> bool:
        """Whether the storage may lack an artifact."""
        path = artifact.path
        return is_fetched(path) and not _beside(path, PUBLISHED).exists()

    def _is_known(self, name: str) -> bool:
        """Whether the artifact or its manifest is here, and is that of the storage."""
        path = self._path(name)
        return path.is_symlink() or (path.exists() and _beside(path, PUBLISHED).exists())

    def _path(self, name: str) -> Path:
        return self.folder / ARTIFACTS / name

    def _damaged(self, name: str, problem: str) -> HandoffError:
        place = f"{self._objects.address}/{ARTIFACTS}/{name}"
        return HandoffError(
            f"artifact {place}: {problem}. Was it damaged, edited or deleted there? Delete all of it "
            "there to compute it again."
        )


class _Bytes:
    """Progress of the transfers of one artifact [kB]."""

    def __init__(self, progress: Progress, total: int, note: str) -> None:
        self._progress = progress
        self._total = total
        self._note = note
        self._done = 0

    def add(self, size: int) -> None:
        self._done += size
        total = max(1, self._total // 1000)
        self._progress(min(self._done // 1000, total), total, f"{self._note}, kB")


def _beside(path: Path, ending: str) -> Path:
    """Hidden file or folder beside an artifact."""
    return path.with_name(f".{path.name}{ending}")


def _manifest_key(name: str) -> str:
    return f"{ARTIFACTS}/{name}/{MANIFEST}"
