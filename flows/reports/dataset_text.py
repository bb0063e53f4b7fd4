"""Describes data sets, findings and statistics in lines for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from robots.spec import describe

if TYPE_CHECKING:
    from robots.episodes.curation.dataset_quality import DatasetQuality
    from robots.episodes.curation.dataset_statistics import StoreStatistics
    from robots.episodes.curation.examination import StoreExamination
    from robots.episodes.schema import EpisodeSchema
    from robots.spec import FieldSpec

MOST_NAMES = 8
"""Largest number of entries that are named."""


def counted(number: int, noun: str) -> str:
    """A number with its noun, such as `1 error` and `2 errors`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def field_lines(
    fields: Mapping[str, FieldSpec], remarks: Mapping[str, str] | None = None
) -> Iterator[str]:
    """Yields a line per field: name, number type, shape, unit, role, names of the entries, and what
    `remarks` say about it."""
    width = max((len(name) for name in fields), default=0)
    for name, spec in fields.items():
        remark = (remarks or {}).get(name, "")
        yield f"  {name:<{width}}  {describe(spec)}{f', {remark}' if remark else ''}{_entries(spec)}"


def _entries(spec: FieldSpec) -> str:
    """Names of the entries of a field, as many as fit in a line."""
    if not spec.names:
        return ""
    names, rest = spec.names[-1][:MOST_NAMES], len(spec.names[-1]) - MOST_NAMES
    return f": {', '.join(names)}" + (f" and {rest} more" if rest > 0 else "")


def video_remarks(schema: EpisodeSchema, stream: str) -> dict[str, str]:
    """How the pictures of a stream of a store are kept, by field: by which codec, with or without
    loss."""
    return {
        name: _kept(schema.videos.get(f"{stream}/{name}"))
        for name, spec in schema.streams[stream].fields.items()
        if spec.unit == "u8" or f"{stream}/{name}" in schema.videos
    }


def _kept(codec: Any) -> str:
    if codec is None:
        return "kept without loss"
    loss = "without loss" if codec.kind == "ffv1" else f"with loss (crf {codec.crf})"
    return f"kept as {codec.kind} video {loss}"


def examination_lines(examination: StoreExamination) -> Iterator[str]:
    """Yields a line per finding and per note."""
    for finding in examination.findings:
        yield f"{finding.severity:<8} {finding.check.replace('_', ' ')}: {finding.sentence}"
    for note in examination.notes:
        yield f"note     {note}"


def counts_line(examination: StoreExamination) -> str:
    """Says in a line how much was examined and found."""
    from robots.episodes.curation.examination import count_findings

    counts = count_findings(examination)
    return (
        f"{counted(examination.episodes, 'episode')}, {counted(examination.steps, 'step')}: "
        f"{counted(counts['error'], 'error')}, {counted(counts['warning'], 'warning')}"
    )


def statistics_lines(found: StoreStatistics, quality: DatasetQuality) -> Iterator[str]:
    """Yields sizes, values per field, returns, trajectory quality and coverage."""
    yield f"task      {found.name}"
    yield f"episodes  {found.episodes}, {found.shortest} to {found.longest} steps, median {found.median_steps:g}"
    yield f"steps     {found.steps:,} at {found.rate_hz:g} Hz, {found.seconds / 60:.1f} min"
    yield "fields    smallest, mean, largest, standard deviation"
    width = max((len(entry) for field in found.fields for entry in field.entries), default=0)
    for field in found.fields:
        yield f"  {field.name}  {field.about}"
        for entry, *values in zip(
            field.entries, field.low, field.mean, field.high, field.std, strict=True
        ):
            yield f"    {entry:<{width}}  " + "  ".join(f"{value:>10.4g}" for value in values)
    if quality.mean_return is not None:
        yield f"return    {quality.mean_return:.4g} on average"
    if quality.quality is not None:
        of = ", relative to the worst and best episode of the set" if quality.relative else ""
        yield f"quality   {quality.quality:.3f}{of}"
    pairs = f"{quality.pairs:,} distinct pairs of state and action in {quality.steps:,} steps"
    yield f"coverage  {pairs}, {quality.bins} bins per entry"
    yield from (f"advice    {sentence}" for sentence in quality.advice)


def figure_lines(figures: Mapping[str, Any]) -> Iterator[str]:
    """Yields a line per figure of a store that was written, and one per note."""
    for name, value in figures.items():
        title = name.replace("_", " ")
        if name in ("assumed", "left_out", "notes"):
            for sentence in value:
                yield f"{title.removesuffix('s'):<16} {sentence}"
        elif words := _words(value):
            yield f"{title:<16} {words}"


def _words(value: Any) -> str:
    """A figure as text; empty if there is nothing to say."""
    if isinstance(value, Mapping):
        parts = {key: _words(about) for key, about in value.items()}
        return ", ".join(f"{key} ({about})" for key, about in parts.items() if about)
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    return "" if value is None else str(value)
