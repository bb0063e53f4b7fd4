"""Implements `handoff episodes`: looks at data sets of any format, imports, edits and exports
them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.reports.dataset_text import (
    counted,
    counts_line,
    examination_lines,
    field_lines,
    statistics_lines,
    video_remarks,
)
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.storage.location import bucket_of

if TYPE_CHECKING:
    from robots.episodes.curation.choose import SplitConfig
    from robots.episodes.curation.edit import Edits
    from robots.episodes.formats.source import EpisodeSource
    from robots.episodes.merge import MergeSource

STORE = "store.zarr"
MOST_ENTRIES = 3
"""Largest number of other entries of the metadata that are listed per episode."""
MOST_EPISODES = 50
"""Largest number of episodes that are listed unless all are asked for."""


def find_data(path: Path) -> Path:
    """The data set that a path names: itself, or the store inside the artifact of a stage.

    Raises:
        HandoffError: there is nothing at the path.
    """
    if bucket_of(path) is not None:
        return path
    if not path.exists():
        raise HandoffError(f"{path}: no such file or folder, expected a data set. Is it misspelt?")
    return path / STORE if (path / STORE / "index.json").exists() else path


def find_store(path: Path) -> Path:
    """The episode store that a path names.

    Raises:
        HandoffError: it is a data set of another format, or none.
    """
    from robots.episodes.demonstrations import TITLES, identify

    data = find_data(path)
    form = identify(data)
    if form != "episode_store" or not (data.is_dir() or bucket_of(data)):
        raise HandoffError(
            f"{path}: is in the format {TITLES[form]}; episode stores are edited and exported. Import it first: "
            f"handoff episodes import {path} OUT"
        )
    return data


def info(path: Path, form: str | None) -> Iterator[str]:
    """Yields lines about a data set of any format: task, rate, recordings, edits, fields with the
    codecs of their pictures, notes."""
    from robots.episodes.curation.edit import steps_stream
    from robots.episodes.metadata.summary import edit_lines, recording_lines
    from robots.episodes.store import EpisodeStore

    with _opened(path, form) as source:
        schema = source.schema
        yield f"format    {schema.form}"
        yield f"task      {schema.task}"
        given = "resample_hz: 10" if schema.own_times else "rate_hz: 50"
        rate = (
            f"not stated; for {given.partition(': ')[2]} Hz give {given} in a file of import --map, or "
            f"demos.map.{given.replace(': ', '=')} to run"
            if schema.rate_hz is None
            else f"{schema.rate_hz:g} Hz"
        )
        yield f"rate      {rate}"
        yield f"episodes  {source.num_episodes}"
        if schema.robot:
            yield f"robot     {schema.robot}"
        store, remarks = find_data(path), {}
        if _is_store(store, form):
            with EpisodeStore.open(store) as opened:
                metadata = [opened.metadata(number) for number in range(opened.num_episodes)]
                remarks = video_remarks(opened.schema, steps_stream(opened.schema))
            yield from recording_lines(metadata)
            yield from edit_lines(metadata)
        yield "fields"
        yield from field_lines(schema.fields, remarks)
        for note in schema.notes:
            yield f"note      {note}"


def _is_store(data: Path, form: str | None) -> bool:
    """Whether a data set is an episode store that is no packed one."""
    from robots.episodes.demonstrations import identify

    known = form or identify(data)
    return known == "episode_store" and (bucket_of(data) is not None or data.is_dir())


def list_episodes(path: Path, form: str | None, every: bool) -> Iterator[tuple[str, ...]]:
    """Yields a heading, then a row per episode: number, steps, seconds, success, instruction, and
    what else is stated."""
    from robots.episodes.metadata.summary import CELLS, filled, other_entries, recording_cells

    heading = ("episode", "steps", "seconds", "success", "instruction", *CELLS, "other")
    rows: list[tuple[str, ...]] = []
    with _opened(path, form, images=False) as source:
        stop = source.num_episodes if every else min(source.num_episodes, MOST_EPISODES)
        for number, episode in enumerate(source.episodes(0, stop)):
            steps, rate = len(next(iter(episode.arrays.values()))), source.schema.rate_hz
            other = islice(other_entries(episode.metadata), MOST_ENTRIES)
            row = (
                str(number),
                str(steps),
                "-" if rate is None else f"{steps / rate:.1f}",
                _text(episode.metadata.get("success")),
                _text(episode.metadata.get("instruction")),
                *recording_cells(episode.metadata),
                ", ".join(f"{key} {_text(value)}" for key, value in other),
            )
            rows.append(row)
    yield from filled(heading, rows, always=5)


def examine(
    path: Path, page: Path | None, robot: str | None, progress: Progress, *, repair: bool = False
) -> Iterator[str]:
    """Looks for faults in the episodes of a data set of any format, and yields a line per finding.

    Args:
        path: the data set, or the artifact with it.
        page: HTML page to write; None writes none.
        robot: name of Handoff's robot whose joint limits hold; None takes that of the store.
        progress: counts episodes.
        repair: whether recordings that a kill cut off are committed first, as episodes with
            `discard_reason: interrupted`; otherwise they are counted. Only of a store.

    Raises:
        HandoffError: after all lines, if an error was found; at once, if the data set cannot be
            read.
    """
    from robots.config import validate
    from robots.episodes.curation.any_format import open_readable
    from robots.episodes.curation.examination import ExamineConfig, count_findings
    from robots.episodes.curation.examine import examine as examined
    from robots.episodes.curation.examine_page import write_examination
    from robots.episodes.segments.episode_files import unfinished

    config = validate(ExamineConfig, {} if robot is None else {"robot": robot})
    if repair:
        yield from _repaired(find_store(path))
    found = find_data(path)
    with open_readable(found) as episodes:
        examination = examined(episodes, config, progress)
    yield from examination_lines(examination)
    if _is_store(found, None) and (cut := len(list(unfinished(found)))):
        yield (
            f"note     recordings that were not committed: {cut}, running or cut off by a kill; --repair makes them "
            "episodes"
        )
    yield counts_line(examination)
    if page is not None:
        yield f"page     {write_examination(examination, page)}"
    if errors := count_findings(examination)["error"]:
        raise HandoffError(f"{path}: {counted(errors, 'error')} found in the episodes, see above.")


def _repaired(found: Path) -> Iterator[str]:
    """Commits the recordings that a kill cut off, and yields a line for each."""
    from robots.episodes.running_episode import recover_interrupted
    from robots.episodes.store import EpisodeStore

    repaired: list[str] = []
    with EpisodeStore.open(found, "a") as store:
        recover_interrupted(store, log=repaired.append)
    yield from (f"repaired {line}" for line in repaired or ["nothing, no recording was cut off"])


def describe(path: Path, progress: Progress) -> Iterator[str]:
    """Yields lines of statistics of a data set of any format: sizes, values per field, and
    trajectory quality and coverage."""
    from robots.episodes.curation.any_format import open_readable
    from robots.episodes.curation.dataset_quality import dataset_quality
    from robots.episodes.curation.dataset_statistics import statistics

    with open_readable(find_data(path)) as episodes:
        found = statistics(episodes, progress=progress)
        quality = dataset_quality(episodes, progress=progress)
    yield from statistics_lines(found, quality)


def view(
    path: Path, form: str | None, number: int, page: Path | None, rrd: Path | None
) -> Iterator[tuple[str, Path]]:
    """Writes one episode of a data set of any format for a viewer.

    Args:
        path: the data set, or the artifact with it.
        form: see `IngestConfig.format`.
        number: number of the episode.
        page: HTML page to write; None writes none.
        rrd: recording of Rerun to write; None writes none.

    Yields:
        `page` or `rrd`, and the written file.

    Raises:
        HandoffError: there is no such episode.
        ModuleNotFoundError: rerun-sdk is not installed.
    """
    with _opened(path, form) as source:
        if not 0 <= number < source.num_episodes:
            raise HandoffError(
                f"{path}: no episode {number}, expected 0 to {source.num_episodes - 1}."
            )
        (episode,) = source.episodes(number, number + 1)
        if page is not None:
            from flows.reports.episode_view import write_episode

            yield "page", write_episode(source.schema, number, episode, page)
        if rrd is not None:
            from robots.episodes.exports.rerun_recording import write_rerun_episode

            yield "rrd", write_rerun_episode(source.schema, number, episode, rrd)


def import_data(
    data: Path,
    out: Path,
    form: str | None,
    map_file: Path | None,
    progress: Progress,
    *,
    video: bool = False,
) -> dict[str, Any]:
    """Imports a data set into a new store, as the stage `ingest` does.

    Args:
        data: file or folder of any format.
        out: folder of the store.
        form: see `IngestConfig.format`.
        map_file: YAML file with the options of `FieldMapConfig`; None changes nothing.
        progress: counts episodes.
        video: keeps pictures as H.264 video instead of without loss.

    Returns:
        What was read, and the figures of `ingest`.

    Raises:
        HandoffError: `out` exists, or what `ingest` refuses.
    """
    import shutil

    from flows.config.files import read_yaml
    from flows.stages.data.ingest import SHIPPED
    from robots.config import validate
    from robots.episodes.config import FieldMapConfig
    from robots.episodes.ingest import IngestConfig, ingest
    from robots.episodes.segments.video_codec import H264Config
    from robots.storage.durable import temporary_beside

    _check_new(out)
    values = {} if map_file is None else read_yaml(map_file)
    mapping = validate(FieldMapConfig, values, "map")
    codec, found = H264Config() if video else None, str(find_data(data))
    config = IngestConfig(data=found, format=form, map=mapping, video=codec, download=False)
    aside = temporary_beside(out)
    try:
        aside.mkdir(parents=True)
        metrics = ingest(config, aside, progress, SHIPPED)
        (aside / STORE).rename(out)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    # The place is the argument of the command.
    return {"read from": str(bucket_of(data) or data)} | {
        name: value for name, value in metrics.items() if name not in ("source", "source_line")
    }


def edit(path: Path, out: Path, *edits: Edits, progress: Progress) -> dict[str, Any]:
    """Writes an edited copy of a store; see `robots.episodes.curation.edit`. An edit of which
    nobody is named is one of the login, one without a time is of now."""
    from robots.episodes.curation.edit import write_edited
    from robots.episodes.metadata.episode_metadata import utc_now
    from robots.processes import login

    source = _merge_source(path)
    stated = [replace(each, by=each.by or login(), when=each.when or utc_now()) for each in edits]
    return write_edited(source.path, out, *stated, digest=source.digest, progress=progress)


def merge(
    paths: Sequence[Path],
    out: Path,
    task: str | None,
    fields: Sequence[str],
    missing: str,
    progress: Progress,
) -> dict[str, Any]:
    """Writes the episodes of several stores to a new one; see `robots.episodes.merge`."""
    from robots.episodes.merge import merge_stores

    _check_new(out)
    sources = [_merge_source(path) for path in paths]
    return merge_stores(
        sources,
        out,
        task=task,
        fields=fields,
        missing=missing,  # type: ignore[arg-type]
        progress=progress,
    )


def split(path: Path, out: Path, config: SplitConfig, progress: Progress) -> dict[str, Any]:
    """Writes one part of a store to a new one; see `robots.episodes.curation.choose`."""
    from robots.episodes.curation.choose import part_groups
    from robots.episodes.curation.choose import split as chosen_part
    from robots.episodes.merge import copy_episodes
    from robots.episodes.store import EpisodeStore

    _check_new(out)
    source = _merge_source(path)
    with EpisodeStore.open(source.path) as store:
        metadata = [store.metadata(number) for number in range(store.num_episodes)]
    chosen = chosen_part(metadata, config)
    copied = copy_episodes(source, out, chosen, progress)
    return {**copied, "episodes_before": len(metadata), **part_groups(metadata, config, chosen)}


def export(path: Path, out: Path, target: str, progress: Progress) -> dict[str, Any]:
    """Writes a store in a published format.

    Args:
        path: the store, or the artifact with it.
        out: file or folder that is written.
        target: `lerobot`, `lerobot-v2.1`, `robomimic`, `isaaclab`, `zarr`, `mcap` or `rrd`.
        progress: counts episodes.

    Raises:
        HandoffError: `out` exists, or the format cannot hold the store.
        ModuleNotFoundError: the package of the format is not installed.
    """
    from robots.episodes.store import EpisodeStore

    with EpisodeStore.open(find_store(path)) as store:
        match target:
            case "lerobot" | "lerobot-v2.1":
                from robots.episodes.exports.lerobot import write_lerobot

                version = "v3.0" if target == "lerobot" else "v2.1"
                return write_lerobot(store, out, version=version, progress=progress)
            case "robomimic" | "isaaclab":
                from robots.episodes.exports.robomimic import write_robomimic

                return write_robomimic(store, out, flavour=target, progress=progress)
            case "zarr":
                from robots.episodes.exports.replay_buffer import write_replay_buffer

                return write_replay_buffer(store, out, progress=progress)
            case "mcap":
                from robots.episodes.exports.mcap import write_mcap

                return write_mcap(store, out, progress=progress)
            case "rrd":
                from robots.episodes.exports.rerun_recording import write_rerun

                return write_rerun(store, out, progress=progress)
            case _:
                raise HandoffError(f"--to {target}: no such format.")


def _merge_source(path: Path) -> MergeSource:
    """The store that a path names, with its digest for the lineage."""
    from robots.episodes.merge import MergeSource
    from robots.episodes.sources import Source, source_digest

    store = find_store(path)
    return MergeSource(
        str(path), store, source_digest(Source(kind="argument", path=store, line="store"))
    )


def _check_new(out: Path) -> None:
    if out.exists():
        raise HandoffError(f"{out}: already exists; choose another path for the store.")


@contextmanager
def _opened(path: Path, form: str | None, images: bool = True) -> Iterator[EpisodeSource]:
    from robots.episodes.demonstrations import open_any_source

    with open_any_source(find_data(path), images, form) as source:
        yield source


def _text(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)[:40]
