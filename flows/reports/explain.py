"""Prints the lineage of an artifact, back to the demonstrations."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flows.reports.provenance_text import (
    NOT_RECORDED,
    computer_text,
    resources_text,
    seeds_text,
)
from flows.reports.results import describe
from flows.runner.artifact import MANIFEST_DIGEST, read_manifest, verify_files
from robots.errors import HandoffError


def find_artifact(path: Path) -> Path:
    """Returns the artifact directory that is `path` or contains it.

    Raises:
        HandoffError: the path does not exist, or is not part of an artifact.
    """
    if not path.exists():
        raise HandoffError(
            f"{path} does not exist. Artifacts are in runs/artifacts, links to them in e.g. runs/demo."
        )
    resolved = path.resolve()
    for candidate in (resolved, *resolved.parents):
        if (candidate / "manifest.json").exists():
            return candidate
    raise HandoffError(f"{path} is not part of an artifact: no manifest.json in it or above it.")


def explain(path: Path, *, verify: bool = False) -> str:
    """Returns the lineage of an artifact as indented text, newest first, the demonstrations last.

    Args:
        path: an artifact directory, or any file inside one.
        verify: also re-hashes every file in the lineage and compares all digests. An artifact of an
            older version has no digest of its manifest; its line states that.

    Raises:
        HandoffError: no such artifact, or with `verify`, an artifact in the lineage was changed
            after it was sealed.
    """
    return "\n".join(_lines(find_artifact(path), "", verify, set()))


def _lines(path: Path, indent: str, verify: bool, visited: set[Path]) -> Iterator[str]:
    manifest = read_manifest(path)
    name = f"{manifest['stage']} ({manifest['kind']}) {manifest['digest'][:12]}"
    if path in visited:
        yield f"{indent}{name}  (as above)"
        return
    visited.add(path)
    yield f"{indent}{name}{_verified(path) if verify else ''}"
    for fact in _facts(path, manifest):
        yield f"{indent}    {fact}"
    for label, link in manifest["input_paths"].items():
        source = (path / link).resolve()
        if verify:
            _check_input(path, label, manifest["inputs"][label], source)
        yield f"{indent}  └ {label}:"
        yield from _lines(source, indent + "    ", verify, visited)


def _verified(path: Path) -> str:
    manifest = verify_files(path)
    return (
        "  verified"
        if MANIFEST_DIGEST in manifest
        else "  files verified; an older manifest, which has no digest"
    )


def _check_input(path: Path, label: str, digest: str, source: Path) -> None:
    current = read_manifest(source)["digest"]
    if current != digest:
        raise HandoffError(
            f"artifact {path}: its input '{label}' had the digest {digest[:12]}, {source} now has {current[:12]}. "
            "Was it rebuilt? Run the recipe again."
        )


def _facts(path: Path, manifest: dict[str, Any]) -> Iterator[str]:
    yield f"path    {path}"
    yield f"result  {describe(manifest.get('uses', ''), manifest['metrics'])}"
    environment = manifest["environment"]
    yield f"made    {manifest['finished']} in {manifest['seconds']:.1f} s, commit {environment['commit']}"
    yield f"code    {manifest['code'][:12]}, seeds {seeds_text(manifest)}"
    yield f"person  {manifest.get('person', NOT_RECORDED)}"
    yield f"on      {computer_text(manifest)}"
    yield f"used    {resources_text(manifest)}"
    for label, digest in manifest["inputs"].items():
        if label not in manifest["input_paths"]:
            line = manifest["metrics"].get("source_line", "")
            yield f"{label:<7} sha256 {digest[:12]}  {line}".rstrip()
