"""Reads, verifies and seals artifacts, the directories that stages exchange.

An artifact is a directory with a manifest; it is complete or absent, never half-written.

    runs/artifacts/teacher-3f9c0a1b2c4d/
        artifact.json    inputs, resolved options, code version, seeds, person, metrics,
                         environment with a lock of all packages, memory, digests
        ...              files written by the stage
    runs/artifacts/teacher-3f9c0a1b2c4d.partial/    the same while the stage runs;
                                                    a killed stage resumes from it

In the working copy of a storage (`flows.storage`), an artifact whose files have not been fetched is
a link to a hidden folder with its manifest alone.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePath
from typing import Any, Protocol

from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.storage.durable import (
    entries_below,
    remove_temporary,
    sync_path,
    sync_tree,
    write_atomically,
)

MANIFEST = "artifact.json"
MANIFEST_DIGEST = "manifest_digest"
"""Manifest entry: sha256 of all other entries. Artifacts of older versions do not have it."""
TELEMETRY = "telemetry"
"""Manifest entry: names of the files that are not part of the artifact's digest."""
LOCK = ".lock"
"""Name of the lock files of stores."""
_NEEDED = {"kind": str, "stage": str, "digest": str, "inputs": dict, "metrics": dict, "files": dict}
MANIFEST_ALONE = ".manifest"
"""Ending of the folder of an artifact whose files have not been fetched."""
REPLACED = ".replaced"
"""Ending of the folder of an artifact that was computed again, until it is deleted."""
NAMED = 8
"""Files that an error about damage names."""
_SPOILT = "Was it edited? Delete the directory, or run with --redo STAGE, to compute it again."


@dataclass(frozen=True)
class Artifact:
    """A finished artifact: its kind, its path and the digest of its content."""

    kind: str
    path: Path
    digest: str
    """sha256 over the names and digests of all files except the manifest and telemetry."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest, as written when the artifact was sealed."""
        return read_manifest(self.path)


class ArtifactStore(Protocol):
    """Storage that shares artifacts with other computers; the runs folder is its working copy."""

    def check(self, path: Path) -> None:
        """Checks that the storage has all files of an artifact whose manifest alone is here.

        Raises:
            HandoffError: files are missing or have another size, or the storage cannot be reached.
        """
        ...

    def fetch(self, path: Path, progress: Progress) -> None:
        """Completes an artifact whose manifest alone is here; any other is left as it is.

        Raises:
            HandoffError: files are not those of the manifest, or the storage cannot be reached.
        """
        ...

    def publish(self, artifact: Artifact, progress: Progress) -> Artifact:
        """Copies a finished artifact to the storage; returns the one that is there, another
        computer's if that was first. A storage that cannot be reached leaves the artifact here."""
        ...


def is_fetched(path: Path) -> bool:
    """Whether the files of an artifact are here, not its manifest alone."""
    return not path.resolve().name.endswith(MANIFEST_ALONE)


def check_fetched(path: Path) -> None:
    """Refuses an artifact whose manifest alone is here.

    Raises:
        HandoffError: its files are in a storage.
    """
    if not is_fetched(path):
        raise HandoffError(
            f"artifact {path}: only its manifest is here, its files are in the storage. Fetch them: "
            f"handoff fetch {path}"
        )


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads an artifact's manifest.

    Raises:
        HandoffError: no manifest, not JSON, or a required entry is missing or has another type.
    """
    try:
        data = (path / MANIFEST).read_bytes()
    except FileNotFoundError:
        raise HandoffError(
            f"artifact {path}: no {MANIFEST}. Is this a finished artifact directory?"
        ) from None
    return _parse_manifest(path, data)


def verify_manifest(path: Path, data: bytes) -> dict[str, Any]:
    """Reads a manifest that may be away from the files of its artifact, and compares it with its
    own digests.

    Args:
        path: what it is called in an error.
        data: content of the manifest.

    Raises:
        HandoffError: as `read_manifest`, or the manifest was changed, or an older version sealed it
            without `manifest_digest`.
    """
    manifest = _parse_manifest(path, data)
    _check_digests(path, manifest)
    _check_has_digest(path, manifest)
    return manifest


def _parse_manifest(path: Path, data: bytes) -> dict[str, Any]:
    try:
        manifest = json.loads(data.decode())
    except UnicodeDecodeError as error:
        raise HandoffError(
            f"artifact {path}: {MANIFEST} is not UTF-8 ({error}). {_SPOILT}"
        ) from None
    except (ValueError, RecursionError) as error:
        raise HandoffError(
            f"artifact {path}: {MANIFEST} is not JSON ({error}). {_SPOILT}"
        ) from None
    _check_manifest(path, manifest)
    return manifest


def load_artifact(path: Path) -> Artifact:
    """Opens a finished artifact after the checks that need no file but the manifest (milliseconds).

    The directory must contain exactly the files of the manifest, with their sizes, and the manifest
    must match its own digests. File contents are not read; `verify_artifact` does that. Of an
    artifact whose files have not been fetched, the manifest alone is checked.

    Raises:
        HandoffError: a check failed.
    """
    manifest = read_manifest(path)
    _check_digests(path, manifest)
    if is_fetched(path):
        _check_listing(path, manifest)
    return Artifact(manifest["kind"], path, manifest["digest"])


def verify_artifact(path: Path) -> dict[str, Any]:
    """Re-hashes every file of an artifact and compares all digests, including the manifest's.

    This detects damage and accidental edits. It does not protect against a person with write
    access, who can recompute all digests as `seal` does; a signed release does (`robots.signing`).

    Returns:
        The verified manifest.

    Raises:
        HandoffError: the artifact was changed after it was sealed, or an older version sealed it
            without `manifest_digest`.
    """
    manifest = verify_files(path)
    _check_has_digest(path, manifest)
    return manifest


def _check_has_digest(path: Path, manifest: Mapping[str, Any]) -> None:
    if MANIFEST_DIGEST not in manifest:
        raise HandoffError(
            f"artifact {path}: its manifest has no digest, so an older version of Handoff made it. Delete the "
            "directory and run the recipe again."
        )


def verify_files(path: Path) -> dict[str, Any]:
    """Makes the same checks as `verify_artifact`, but accepts a manifest without a digest.

    Returns:
        The manifest.

    Raises:
        HandoffError: the artifact was changed after it was sealed; names all files that were.
    """
    check_fetched(path)
    manifest = read_manifest(path)
    _check_digests(path, manifest)
    _check_listing(path, manifest)
    differing = [
        f"{name} has sha256 {digest[:12]}, the manifest says {entry['sha256'][:12]}"
        for name, entry in manifest["files"].items()
        if (digest := file_digest(path / name)) != entry["sha256"]
    ]
    if differing:
        raise HandoffError(
            f"artifact {path}: {len(differing)} of {len(manifest['files'])} files are not those of its manifest: "
            f"{_named(differing)}. Was it edited after it was built, or is the disk damaged? Delete "
            "the directory, or run with --redo STAGE, to compute it again."
        )
    return manifest


def seal(
    partial: Path,
    final: Path,
    kind: str,
    record: Mapping[str, Any],
    telemetry: Sequence[str] = (),
) -> Artifact:
    """Turns the directory of a finished stage into an artifact: hashes, manifest, fsync, one atomic
    rename. Its files are read-only from then on, so that an accident does not change them.

    Args:
        partial: directory that the stage wrote.
        final: path of the artifact; an older artifact there is replaced.
        kind: e.g. "episodes", "policy", "bundle".
        record: entries of the manifest other than `kind`, `digest`, `files`, `telemetry`,
            `written_bytes` and `manifest_digest`; at least `stage`, `inputs` and `metrics`.
        telemetry: patterns of files that say how the computation went, such as times; they are
            listed with their digests, and are not part of the digest of the artifact.

    Raises:
        HandoffError: the stage left a link, or another entry that is neither a file nor a folder.
    """
    # Such as those of an attempt that was killed in the middle of a file.
    remove_temporary(partial)
    sizes = _sizes(partial)
    files = {
        name: {"size": sizes[name], "sha256": file_digest(partial / name)} for name in sorted(sizes)
    }
    beside = [name for name in files if _is_telemetry(name, telemetry)]
    digest = _content_digest(files, beside)
    # Digest of the manifest as it will be read from JSON: keys are strings, tuples are lists.
    entries = {**record, "written_bytes": sum(sizes.values()), "files": files, TELEMETRY: beside}
    manifest = json.loads(json.dumps({"kind": kind, "digest": digest, **entries}))
    write_json(partial / MANIFEST, {**manifest, MANIFEST_DIGEST: json_digest(manifest)})
    make_read_only(partial, [*files, MANIFEST])
    sync_tree(partial)
    older = final.with_name(f".{final.name}{REPLACED}")
    if final.exists():
        shutil.rmtree(older, ignore_errors=True)
        os.rename(final, older)
    os.rename(partial, final)
    sync_path(final.parent)
    shutil.rmtree(older, ignore_errors=True)
    return Artifact(kind, final, digest)


def withdraw(final: Path) -> None:
    """Takes an artifact out of the cache, if there is one: its stage runs again, and links to it
    lead nowhere."""
    if final.exists():
        older = final.with_name(f".{final.name}{REPLACED}")
        shutil.rmtree(older, ignore_errors=True)
        os.rename(final, older)
        sync_path(final.parent)


def make_read_only(root: Path, names: Sequence[str]) -> None:
    """Makes files of a folder read-only, so that an accident does not change them."""
    for name in names:
        file = root / name
        file.chmod(file.stat().st_mode & ~0o222)


def _check_manifest(path: Path, manifest: Any) -> None:
    if not isinstance(manifest, dict):
        raise HandoffError(
            f"artifact {path}: {MANIFEST} holds a {type(manifest).__name__}, expected a map. {_SPOILT}"
        )
    for key, kind in _NEEDED.items():
        if not isinstance(manifest.get(key), kind):
            problem = f"is {manifest[key]!r:.40}" if key in manifest else "is missing"
            raise HandoffError(
                f"artifact {path}: '{key}' {problem} in {MANIFEST}, expected a {kind.__name__}. {_SPOILT}"
            )
    for name, entry in manifest["files"].items():
        if not (
            isinstance(entry, dict)
            and isinstance(entry.get("size"), int)
            and isinstance(entry.get("sha256"), str)
        ):
            raise HandoffError(
                f"artifact {path}: the entry of file {name} is {entry!r:.40} in {MANIFEST}, expected its size and "
                f"sha256. {_SPOILT}"
            )


def _check_digests(path: Path, manifest: Mapping[str, Any]) -> None:
    """Compares the manifest with its own digests."""
    computed = _content_digest(manifest["files"], manifest.get(TELEMETRY, ()))
    _check_digest(path, "digest", computed, manifest["digest"])
    if MANIFEST_DIGEST in manifest:
        rest = {key: value for key, value in manifest.items() if key != MANIFEST_DIGEST}
        _check_digest(path, MANIFEST_DIGEST, json_digest(rest), manifest[MANIFEST_DIGEST])


def _check_listing(path: Path, manifest: Mapping[str, Any]) -> None:
    """Compares the manifest's files with those of the directory: every listed one, no others."""
    listed = manifest["files"]
    sizes = _sizes(path)
    differing = [
        f"{name} is {'missing' if name not in sizes else f'{sizes[name]} bytes'}, the manifest says "
        f"{entry['size']} bytes"
        for name, entry in listed.items()
        if sizes.get(name) != entry["size"]
    ]
    if differing:
        raise HandoffError(f"artifact {path}: {_named(differing)}. {_SPOILT}")
    added = sorted(sizes.keys() - listed.keys())
    if added:
        raise HandoffError(
            f"artifact {path}: {len(added)} files are not in its manifest, e.g. {added[0]}. Were they added after it "
            "was built? Remove them, or delete the directory to rebuild it."
        )


def _named(differing: Sequence[str]) -> str:
    """Joins what is wrong with the files of an artifact; of many, the first ones."""
    more = f"; and {len(differing) - NAMED} more" if len(differing) > NAMED else ""
    return "; ".join(differing[:NAMED]) + more


def _check_digest(path: Path, key: str, computed: str, stated: Any) -> None:
    if computed != stated:
        raise HandoffError(
            f"artifact {path}: '{key}' in {MANIFEST} is {stated!s:.12}, computed from the other entries "
            f"{computed[:12]}. {_SPOILT}"
        )


def _sizes(root: Path) -> dict[str, int]:
    """Sizes of all files below `root` except the manifest, by path relative to `root`.

    Raises:
        HandoffError: there is a link, or another entry that is neither a file nor a folder.
    """
    sizes: dict[str, int] = {}
    for name, entry, kind in entries_below(root):
        if kind:
            raise HandoffError(
                f"artifact {root}: {name} is {kind}, expected files and folders only. Was it added "
                "afterwards?"
            )
        sizes[name] = entry.stat(follow_symlinks=False).st_size
    sizes.pop(MANIFEST, None)
    return sizes


def _content_digest(files: Mapping[str, Mapping[str, Any]], telemetry: Sequence[str]) -> str:
    return json_digest(
        {name: entry["sha256"] for name, entry in files.items() if name not in telemetry}
    )


def _is_telemetry(name: str, patterns: Sequence[str]) -> bool:
    """Whether a file matches a pattern, or is the lock of a store, which holds a process id."""
    return PurePath(name).name == LOCK or any(fnmatch(name, pattern) for pattern in patterns)


def tree_digest(folder: Path) -> str:
    """Returns the sha256 (hex) over the names and digests of all files of a folder, such as a store
    from outside the pipeline."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return json_digest({str(path.relative_to(folder)): file_digest(path) for path in files})


def file_digest(file: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def json_digest(value: Any) -> str:
    """sha256 of a value's canonical JSON, hex."""
    return hashlib.sha256(
        json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
    ).hexdigest()


def write_json(file: Path, value: Any) -> None:
    """Writes JSON atomically: the file is always complete."""
    write_atomically(file, (json.dumps(value, indent=1) + "\n").encode())
