"""Estimates time, memory and disk of stages from earlier artifacts."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from flows.runner.artifact import MANIFEST, read_manifest
from flows.runner.plan import linked
from flows.runner.provenance import leaves
from flows.runner.stage import Stage, with_inputs
from robots.config import repetitions, to_plain
from robots.errors import HandoffError

MOST_MANIFESTS = 300
"""Maximum number of manifests that are read, newest first."""
CHOICES = ("kind", "uses", "task")
"""Options that choose an algorithm, a policy family or a task."""


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
    same_length: bool = True
    """Whether they made as many updates, so that the time is not scaled."""


@dataclass(frozen=True)
class Record:
    """Cost of an artifact that was made earlier."""

    stage: str
    uses: str
    seconds: float
    memory_bytes: int | None
    disk_bytes: int
    data: frozenset[str]
    """Digests of the data from outside the recipe from which it was computed, and the tasks in
    which data were recorded for it."""
    options: Mapping[str, Any]
    """Options of the stage."""
    training_seconds: float
    """Part of the time that depends on the number of updates [s]."""
    same_run: bool
    """Whether it belongs to the latest run of the recipe."""


def earlier_records(root: Path, run: str = "") -> list[Record]:
    """Returns the costs of the newest artifacts in `root` that this machine made; artifacts that
    cannot be read are left out.

    Args:
        root: the runs folder.
        run: name of the run that is estimated.
    """
    manifests = sorted(
        (root / "artifacts").glob(f"[!.]*/{MANIFEST}"),
        key=lambda file: file.stat().st_mtime,
        reverse=True,
    )
    own = {path.name for path in linked(root, run).values()}
    return list(_records(manifests[:MOST_MANIFESTS], own))


def estimate(stage: Stage, records: Sequence[Record]) -> Cost | None:
    """Returns the median cost of earlier artifacts of the stage, otherwise of its kind; None if
    there is none.

    Artifacts of the same kind count if they agree in every option that chooses an algorithm, a
    policy family or a task, and in the data that they were computed from; the previous run of the
    recipe counts on other data as well. The time of a training is scaled to its number of updates,
    from those artifacts whose number is nearest.
    """
    options = to_plain(stage.config) if stage.config is not None else {}
    data = frozenset(
        entry
        for source in with_inputs(stage)
        for entry in (*source.external.values(), *_tasks(source))
    )
    comparable = [
        record
        for record in records
        if record.uses == stage.uses and _choices(record.options) == _choices(options)
    ]
    of_data = [record for record in comparable if record.data == data]
    of_run = [record for record in comparable if record.same_run and record.stage == stage.name]
    same = [record for record in of_data if record.stage == stage.name] or of_run
    chosen, factor = _nearest(repetitions(stage.config), same or of_data)
    if not chosen:
        return None
    memory = [record.memory_bytes for record in chosen if record.memory_bytes is not None]
    return Cost(
        seconds=median(
            record.seconds + (factor - 1.0) * record.training_seconds for record in chosen
        ),
        memory_bytes=round(median(memory)) if memory else None,
        disk_bytes=round(median(record.disk_bytes for record in chosen)),
        same_stage=bool(same),
        same_data=any(record.data == data for record in chosen),
        same_length=factor == 1.0,
    )


def _nearest(counts: Mapping[str, int], records: Sequence[Record]) -> tuple[list[Record], float]:
    """The records with the number of repetitions that is nearest by ratio, and the ratio of
    `counts` to it."""
    ratios = [(_ratio(counts, record.options), record) for record in records]
    known = [(ratio, record) for ratio, record in ratios if ratio is not None]
    if not known:
        return [], 1.0
    best = min((ratio for ratio, _ in known), key=lambda ratio: abs(math.log(ratio)))
    return [record for ratio, record in known if ratio == best], best


def _ratio(counts: Mapping[str, int], options: Mapping[str, Any]) -> float | None:
    """Repetitions of `counts` per repetition of `options`; None if those state no number."""
    stated = dict(leaves(options, ""))
    numbers = [(count, stated.get(path)) for path, count in counts.items()]
    ratios = [
        count / number
        for count, number in numbers
        if isinstance(number, int) and count * number > 0
    ]
    return math.prod(ratios) if len(ratios) == len(numbers) else None


def _choices(options: Mapping[str, Any]) -> dict[str, Any]:
    return {
        path: value
        for path, value in leaves(options, "")
        if path.rpartition(".")[2] in CHOICES and value is not None
    }


def _tasks(stage: Stage) -> Iterator[str]:
    """Tasks in which a stage that begins a recipe records data."""
    if not stage.inputs and stage.config is not None:
        yield from _tasks_of(to_plain(stage.config))


def _tasks_of(options: Mapping[str, Any]) -> Iterator[str]:
    yield from (
        f"task {value}"
        for path, value in leaves(options, "")
        if path.rpartition(".")[2] == "task" and isinstance(value, str)
    )


def _records(manifests: Sequence[Path], own: Collection[str]) -> Iterator[Record]:
    # The kind of the machine, as manifests state it.
    here = f"{platform.machine()}, {os.cpu_count()} cores"
    found: dict[str, dict[str, Any]] = {}
    for file in manifests:
        with suppress(HandoffError):
            found[file.parent.name] = read_manifest(file.parent)
    for name, manifest in found.items():
        if _machine_of(manifest) == here and isinstance(manifest.get("seconds"), float | int):
            seconds = float(manifest["seconds"])
            # Learners state the time of their updates apart from that of reading data.
            training = manifest["metrics"].get("cpu_seconds")
            yield Record(
                stage=manifest["stage"],
                uses=manifest.get("uses", ""),
                seconds=seconds,
                memory_bytes=manifest.get("peak_memory_bytes"),
                disk_bytes=sum(entry["size"] for entry in manifest["files"].values()),
                data=frozenset(_data_of(name, found)),
                options=manifest.get("config") or {},
                training_seconds=min(float(training), seconds) if training else seconds,
                same_run=name in own,
            )


def _data_of(name: str, manifests: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Digests of the data of an artifact and of those that it was computed from, and the tasks in
    which these were recorded."""
    manifest = manifests.get(name, {})
    yield from manifest.get("data", {}).values()
    sources = manifest.get("input_paths", {}).values()
    if not sources:
        yield from _tasks_of(manifest.get("config") or {})
    for path in sources:
        yield from _data_of(Path(path).name, manifests)


def _machine_of(manifest: dict[str, Any]) -> str:
    environment = manifest.get("environment")
    return str(environment.get("machine")) if isinstance(environment, dict) else ""
