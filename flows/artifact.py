"""Artifacts: all that passes between stages. A directory with a manifest, complete or absent, never half-written.

runs/artifacts/pretrain-3f9c0a1b2c4d/
    manifest.json    inputs, resolved configuration, code version, seeds, metrics, a digest per file
    ...              what the stage wrote
runs/artifacts/pretrain-3f9c0a1b2c4d.partial/    the same while the stage runs; a killed stage resumes from it
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from robots.durable import sync_path, sync_tree, write_atomically
from robots.errors import HandoffError

MANIFEST = "manifest.json"


@dataclass(frozen=True)
class Artifact:
    """A finished stage output: what it is, where it lies, and the digest of its content."""

    kind: str
    path: Path
    digest: str
    """sha256 over the names and sha256 of all files but the manifest."""

    @property
    def manifest(self) -> dict[str, Any]:
        """The manifest as written when the artifact was finished."""
        return read_manifest(self.path)


def read_manifest(path: Path) -> dict[str, Any]:
    """Reads an artifact's manifest.

    Raises:
        HandoffError: there is none, or it is not JSON.
    """
    file = path / MANIFEST
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        raise HandoffError(f"artifact {path}: no {MANIFEST}. Is this a finished artifact directory?") from None
    except json.JSONDecodeError as error:
        raise HandoffError(f"artifact {path}: {MANIFEST} is not JSON ({error}). Delete it to rebuild.") from None


def load_artifact(path: Path) -> Artifact:
    """Opens a finished artifact, checking that every file of the manifest is there with its size (milliseconds).

    Raises:
        HandoffError: a file is missing or has another size.
    """
    manifest = read_manifest(path)
    for name, entry in manifest["files"].items():
        file = path / name
        size = file.stat().st_size if file.exists() else None
        if size != entry["size"]:
            state = "missing" if size is None else f"{size} bytes"
            raise HandoffError(
                f"artifact {path}: {name} is {state}, the manifest says {entry['size']} bytes. "
                "Was it edited? Delete the directory to rebuild it."
            )
    return Artifact(manifest["kind"], path, manifest["digest"])


def verify_artifact(path: Path) -> None:
    """Re-hashes every file of an artifact.

    Raises:
        HandoffError: a file's content is not what the manifest recorded.
    """
    manifest = read_manifest(path)
    for name, entry in manifest["files"].items():
        found = file_digest(path / name)
        if found != entry["sha256"]:
            raise HandoffError(
                f"artifact {path}: {name} has sha256 {found[:12]}, the manifest says {entry['sha256'][:12]}. "
                "Was it edited after it was built?"
            )


def seal(partial: Path, final: Path, kind: str, record: Mapping[str, Any]) -> Artifact:
    """Turns a finished stage's directory into an artifact: hashes, manifest, fsync, one atomic rename.

    Args:
        partial: what the stage wrote.
        final: the artifact's place; must not exist.
        kind: e.g. "episodes", "policy", "bundle".
        record: what the manifest says beside `kind`, `digest` and `files`.
    """
    files = {
        str(file.relative_to(partial)): {"size": file.stat().st_size, "sha256": file_digest(file)}
        for file in sorted(partial.rglob("*"))
        if file.is_file() and file.name != MANIFEST
    }
    digest = json_digest({name: entry["sha256"] for name, entry in files.items()})
    write_json(partial / MANIFEST, {"kind": kind, "digest": digest, **record, "files": files})
    sync_tree(partial)
    os.rename(partial, final)
    sync_path(final.parent)
    return Artifact(kind, final, digest)


def file_digest(file: Path) -> str:
    """sha256 of a file's bytes, hex."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def json_digest(value: Any) -> str:
    """sha256 of a value's canonical JSON, hex."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def write_json(file: Path, value: Any) -> None:
    """Writes JSON so that the file is always whole."""
    write_atomically(file, (json.dumps(value, indent=1) + "\n").encode())
