"""Compares the artifacts of a run with those of its repetition, and writes the comparison as text,
JSON and a page."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from flows.runner.artifact import TELEMETRY, read_manifest, write_json
from robots.html_page import FOOT, head, table
from robots.storage.durable import write_atomically

MEASURED = re.compile(
    r"cpu_|latency|speedup|realtime|per_s(econd)?\b|lost_packets|repeated_starts|wall_"
)
"""Metrics that measure the computer and therefore differ in every run."""
NUMBER = re.compile(r"\d+(?:\.\d+)?")
MOST_FILES = 8
"""Number of differing files that the text names."""


@dataclass(frozen=True)
class MetricDifference:
    """A metric that is not the same in both runs."""

    name: str
    """Dotted path of the metric."""
    before: Any
    after: Any
    relative: float | None
    """Difference relative to the larger magnitude; None if one of them is no number."""
    measured: bool
    """Whether the metric measures the computer; it is then not bounded."""


@dataclass(frozen=True)
class StageComparison:
    """One stage of a run and its repetition."""

    name: str
    status: str
    """`same` (equal digests), `close` (metrics within the tolerance), `differs`, or `kept` (a
    person took part, so the artifact of the run was used)."""
    before: str
    """Digest of the run's artifact."""
    after: str
    """Digest of the repetition's."""
    files: Sequence[str]
    """Files that differ, are missing, or are new."""
    metrics: Sequence[MetricDifference]
    seconds_before: float
    """Time of the computation [s]."""
    seconds_after: float
    """Time of the repeated computation [s]."""


@dataclass(frozen=True)
class Reproduction:
    """Result of a repeated run."""

    run: str
    """Folder of the run."""
    folder: str
    """Folder of the repetition, a folder of artifacts and results."""
    tolerance: float
    """Largest relative difference of a metric."""
    differences: Sequence[str]
    """Differences of code and environment; empty in an exact repetition."""
    stages: Sequence[StageComparison]
    unfinished: Sequence[str] = ()
    """Stages that the run began without finishing them, or never began; they are not repeated."""

    @property
    def ok(self) -> bool:
        """Whether every stage is the same, close, or kept."""
        return all(stage.status != "differs" for stage in self.stages)

    @property
    def same(self) -> bool:
        """Whether every repeated stage has the same digest."""
        return all(stage.status in ("same", "kept") for stage in self.stages)

    @property
    def text(self) -> str:
        """The comparison as lines of text."""
        return "\n".join(_lines(self))


def compare_artifacts(
    name: str, before: Path, after: Path, tolerance: float, *, kept: bool = False
) -> StageComparison:
    """Compares the artifact of a stage with its repetition.

    Args:
        name: name of the stage.
        before: folder of the run's artifact.
        after: folder of the repetition's.
        tolerance: largest relative difference of a metric.
        kept: whether the repetition took the run's artifact.
    """
    old, new = read_manifest(before), read_manifest(after)
    metrics = metric_differences(old["metrics"], new["metrics"])
    bounded = [entry for entry in metrics if not entry.measured]
    if kept:
        status = "kept"
    elif old["digest"] == new["digest"]:
        status = "same"
    elif all(entry.relative is not None and entry.relative <= tolerance for entry in bounded):
        status = "close"
    else:
        status = "differs"
    return StageComparison(
        name=name,
        status=status,
        before=old["digest"],
        after=new["digest"],
        files=_file_differences(_declared(old), _declared(new)),
        metrics=metrics,
        seconds_before=float(old.get("seconds", 0.0)),
        seconds_after=float(new.get("seconds", 0.0)),
    )


def _declared(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """The files of an artifact without telemetry."""
    beside = manifest.get(TELEMETRY, ())
    return {name: entry for name, entry in manifest["files"].items() if name not in beside}


def metric_differences(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> list[MetricDifference]:
    """Lists the metrics that are not the same, by dotted path."""
    old, new = dict(_flat(before, "")), dict(_flat(after, ""))
    differing = []
    for name in sorted({*old, *new}):
        first, second = old.get(name), new.get(name)
        if first == second or _both_nan(first, second):
            continue
        measured = MEASURED.search(name) is not None
        relative = relative_difference(first, second)
        differing.append(MetricDifference(name, first, second, relative, measured))
    return differing


def relative_difference(first: Any, second: Any) -> float | None:
    """Returns |a - b| / max(|a|, |b|), 0 to 2, of two texts that differ in their numbers alone the
    largest of these; None if that cannot be said."""
    if isinstance(first, str) and isinstance(second, str):
        return _difference_of_texts(first, second)
    return _difference_of_numbers(first, second)


def _difference_of_numbers(first: Any, second: Any) -> float | None:
    for value in (first, second):
        if (
            isinstance(value, bool)
            or not isinstance(value, int | float)
            or not math.isfinite(value)
        ):
            return None
    largest = max(abs(first), abs(second))
    return abs(first - second) / largest if largest else 0.0


def _difference_of_texts(first: str, second: str) -> float | None:
    if NUMBER.sub("", first) != NUMBER.sub("", second):
        return None
    pairs = zip(NUMBER.findall(first), NUMBER.findall(second), strict=True)
    return max((relative_difference(float(a), float(b)) or 0.0 for a, b in pairs), default=0.0)


def write_comparison(result: Reproduction, folder: Path) -> None:
    """Writes `reproduction.json` and `reproduction.html` to a folder."""
    write_json(
        folder / "reproduction.json", {**asdict(result), "ok": result.ok, "same": result.same}
    )
    write_atomically(folder / "reproduction.html", "\n".join(_page(result)).encode())


def _both_nan(first: Any, second: Any) -> bool:
    values = (first, second)
    return all(isinstance(value, float) and math.isnan(value) for value in values)


def _flat(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield from _flat(entry, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list):
        for i, entry in enumerate(value):
            yield from _flat(entry, f"{path}.{i}")
    else:
        yield path, value


def _file_differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    differing = []
    for name in sorted({*before, *after}):
        if name not in after:
            differing.append(f"{name} is missing")
        elif name not in before:
            differing.append(f"{name} is new")
        elif before[name]["sha256"] != after[name]["sha256"]:
            differing.append(f"{name} differs")
    return differing


def _lines(result: Reproduction) -> Iterator[str]:
    for phrase in result.differences:
        yield f"differs  {phrase}"
    for stage in result.stages:
        digest = stage.before[:12]
        change = digest if stage.before == stage.after else f"{digest} → {stage.after[:12]}"
        yield f"{stage.status:<8} {stage.name}  {change}"
        for entry in stage.metrics:
            yield f"           {metric_text(entry)}"
        for file in stage.files[:MOST_FILES]:
            yield f"           {file}"
        if len(stage.files) > MOST_FILES:
            yield f"           and {len(stage.files) - MOST_FILES} more files"
    yield verdict(result)


def metric_text(entry: MetricDifference) -> str:
    """A metric before and after, with the relative difference."""
    measured = ", measures the computer" if entry.measured else ""
    relative = "" if entry.relative is None else f" ({entry.relative:.2%}{measured})"
    return f"{entry.name} {_number(entry.before)} → {_number(entry.after)}{relative}"


def verdict(result: Reproduction) -> str:
    """The outcome in one sentence, and the stages without one in another."""
    missing = result.unfinished
    left = f" Not finished in the run, so not repeated: {', '.join(missing)}." if missing else ""
    return _outcome(result) + left


def _outcome(result: Reproduction) -> str:
    if result.same:
        return "reproduced: every repeated stage has the same digest."
    failed = [stage.name for stage in result.stages if stage.status == "differs"]
    bound = f"{result.tolerance:.0%}"
    if failed:
        return f"not reproduced: {', '.join(failed)} differ by more than {bound}."
    return f"reproduced: digests differ, all metrics are within {bound}."


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _page(result: Reproduction) -> Iterator[str]:
    name = Path(result.run).name
    yield head(f"Reproduction of {name}")
    yield f"<h1>Reproduction of {html.escape(name)}</h1>"
    yield f"<p>{html.escape(verdict(result))}</p>"
    if result.differences:
        rows = [(phrase,) for phrase in result.differences]
        yield table(("differences of code and environment",), rows)
    rows = [
        (
            stage.name,
            stage.status,
            stage.before[:12],
            stage.after[:12],
            f"{stage.seconds_before:.1f} s",
            f"{stage.seconds_after:.1f} s",
        )
        for stage in result.stages
    ]
    yield table(("stage", "result", "digest", "repeated", "time", "repeated"), rows)
    for stage in result.stages:
        if stage.metrics or stage.files:
            yield f"<h2>{html.escape(stage.name)}</h2>"
        if stage.metrics:
            yield table(
                ("metric", "run", "repetition", "relative difference"),
                [_metric_row(entry) for entry in stage.metrics],
            )
        if stage.files:
            yield table(("files",), [(file,) for file in stage.files])
    yield FOOT


def _metric_row(entry: MetricDifference) -> tuple[str, ...]:
    relative = "" if entry.relative is None else f"{entry.relative:.2%}"
    if entry.measured:
        relative += " (measures the computer)"
    return entry.name, _number(entry.before), _number(entry.after), relative
