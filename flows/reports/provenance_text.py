"""Describes the provenance that a manifest holds, for text and pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from flows.reports.results import describe

NOT_RECORDED = "not recorded"
"""Text for what manifests of older versions lack."""


def provenance_rows(manifest: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yields the entries of a manifest that a reader looks for, as name and text."""
    environment = manifest.get("environment", {})
    yield "stage", f"{manifest['stage']} (uses {manifest.get('uses') or NOT_RECORDED})"
    yield "kind", str(manifest["kind"])
    yield "digest", str(manifest["digest"])
    yield "result", describe(manifest.get("uses", ""), manifest["metrics"])
    if protocol := protocol_text(manifest):
        yield "protocol", protocol
    yield "person", str(manifest.get("person", NOT_RECORDED))
    yield "seeds", seeds_text(manifest)
    for label, digest in manifest["inputs"].items():
        inside = label in manifest.get("input_paths", {})
        yield ("input" if inside else "data") + f" {label}", str(digest)
    spent = f"{manifest['seconds']:.1f} s" if "seconds" in manifest else NOT_RECORDED
    yield "made", f"{manifest.get('finished', NOT_RECORDED)} in {spent}"
    yield "memory and disk", resources_text(manifest)
    yield "code", str(manifest.get("code", NOT_RECORDED))
    yield "commit", str(environment.get("commit", NOT_RECORDED))
    yield "computer", computer_text(manifest)


def seeds_text(manifest: Mapping[str, Any]) -> str:
    """The seeds of a stage, `path value`, or `none`."""
    seeds = manifest.get("seeds") or {}
    return ", ".join(f"{path} {value}" for path, value in seeds.items()) or "none"


def protocol_text(manifest: Mapping[str, Any]) -> str:
    """Name and digest of the protocol of an evaluation; empty for other artifacts."""
    metrics = manifest["metrics"]
    if "protocol_digest" not in metrics:
        return ""
    protocol = metrics.get("protocol")
    name = protocol.get("name", "") if isinstance(protocol, Mapping) else ""
    return f"{name} sha256 {metrics['protocol_digest']}".strip()


def resources_text(manifest: Mapping[str, Any]) -> str:
    """Peak memory of a stage and the size of its artifact."""
    if "peak_memory_bytes" not in manifest:
        return NOT_RECORDED
    memory = manifest["peak_memory_bytes"] / 1e9
    written = manifest["written_bytes"] / 1e6
    return f"{memory:.2f} GB memory, {written:.1f} MB written"


def computer_text(manifest: Mapping[str, Any]) -> str:
    """Computer, Python and number of installed packages."""
    environment = manifest.get("environment", {})
    names = [environment[key] for key in ("host", "machine", "system") if environment.get(key)]
    if "python" in environment:
        names.append(f"Python {environment['python']}")
    lock = manifest.get("lock")
    if lock:
        names.append(f"{len(lock['packages'].split())} packages {lock['digest'][:12]}")
    return ", ".join(names) or NOT_RECORDED
