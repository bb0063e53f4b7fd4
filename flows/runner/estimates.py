"""Estimates time, memory and disk of stages from earlier artifacts."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from flows.runner.artifact import MANIFEST, read_manifest
from flows.runner.stage import Stage, with_inputs
from robots.errors import HandoffError

MOST_MANIFESTS = 300
"""Maximum number of manifests that are read, newest first."""


@dataclass(frozen=True)
class Cost:
    """Time, memory and disk of one stage."""

    seconds: float
    memory_bytes: int | None
    """Peak memory; None if no earlier artifact states it."""
    disk_bytes: int
    """Size of the artifact."""
    same_stage: bool
    """Whether stages of the same name were measured, not only of the same kind."""
    same_data: bool
    """Whether they were computed from the same data from outside the recipe."""


@dataclass(frozen=True)
class Record:
    """Cost of an artifact that was made earlier."""

    stage: str
    uses: str
    seconds: float
    memory_bytes: int | None
    disk_bytes: int
    data: frozenset[str]
    """Digests of the data from outside the recipe from which it was computed."""


def earlier_records(root: Path) -> list[Record]:
    """Returns the costs of the newest artifacts in `root` that this machine made; artifacts that
    cannot be read are left out."""
    manifests = sorted(
        (root / "artifacts").glob(f"[!.]*/{MANIFEST}"),
        key=lambda file: file.stat().st_mtime,
        reverse=True,
    )
    return list(_records(manifests[:MOST_MANIFESTS]))


def estimate(stage: Stage, records: Sequence[Record]) -> Cost | None:
    """Returns the median cost of earlier artifacts of the stage, otherwise of its kind; None if
    there is none. Those that were computed from the same data come first."""
    data = frozenset(digest for entry in with_inputs(stage) for digest in entry.external.values())
    kind = [record for record in records if record.uses == stage.uses]
    same = [record for record in kind if record.stage == stage.name]
    chosen = same or kind
    of_data = [record for record in chosen if record.data == data]
    chosen = of_data or chosen
    if not chosen:
        return None
    memory = [record.memory_bytes for record in chosen if record.memory_bytes is not None]
    return Cost(
        seconds=median(record.seconds for record in chosen),
        memory_bytes=round(median(memory)) if memory else None,
        disk_bytes=round(median(record.disk_bytes for record in chosen)),
        same_stage=bool(same),
        same_data=bool(of_data),
    )


def _records(manifests: Sequence[Path]) -> Iterator[Record]:
    # The kind of the machine, as manifests state it.
    here = f"{platform.machine()}, {os.cpu_count()} cores"
    found: dict[str, dict[str, Any]] = {}
    for file in manifests:
        with suppress(HandoffError):
            found[file.parent.name] = read_manifest(file.parent)
    for name, manifest in found.items():
        if _machine_of(manifest) == here and isinstance(manifest.get("seconds"), float | int):
            yield Record(
                stage=manifest["stage"],
                uses=manifest.get("uses", ""),
                seconds=float(manifest["seconds"]),
                memory_bytes=manifest.get("peak_memory_bytes"),
                disk_bytes=sum(entry["size"] for entry in manifest["files"].values()),
                data=frozenset(_data_of(name, found)),
            )


def _data_of(name: str, manifests: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Digests of the data of an artifact and of those that it was computed from."""
    manifest = manifests.get(name, {})
    yield from manifest.get("data", {}).values()
    for path in manifest.get("input_paths", {}).values():
        yield from _data_of(Path(path).name, manifests)


def _machine_of(manifest: dict[str, Any]) -> str:
    environment = manifest.get("environment")
    return str(environment.get("machine")) if isinstance(environment, dict) else ""
