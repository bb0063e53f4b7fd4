"""Copies demonstrations into an episode store, the first stage of a pipeline."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np

from robots.config import Count, config, to_plain
from robots.episodes.config import FieldMapConfig
from robots.episodes.curation.mirror import check_mirrored, mirrored
from robots.episodes.demonstrations import (
    STREAM,
    TITLES,
    Demonstrations,
    RecordedDemonstrations,
    identify,
    open_demonstrations,
    without_images,
)
from robots.episodes.field_map import MappedEpisodes
from robots.episodes.reference import write_reference
from robots.episodes.schema import EpisodeSchema, is_picture, with_videos
from robots.episodes.segments.video_codec import VideoConfig
from robots.episodes.sources import Source, find_demonstrations, source_digest
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import Progress
from robots.spec import describe
from robots.storage.location import Folder, bucket_of

_ORIGIN = ("source_digest", "source_map")
_MOST_NUMBERS = 10
"""Largest number of episodes that a note names."""
MUCH_LARGER = 5
"""Ratio of the size of a store to that of its source from which a note names video."""


@config
class IngestConfig:
    """Source and selection of the demonstrations."""

    data: str | None = None
    """File or folder of demonstrations, or an episode store at `s3://BUCKET/PREFIX`; None searches
    the places of `robots.episodes.sources` for those of push-T, and `???` asks the user for one."""
    copy: bool = True
    """Whether the episodes are copied. Otherwise `data` must be an episode store; its index is
    copied, and later stages read the samples where they are."""
    format: str | None = None
    """Name of the format of `data`, or dotted path or entry point of a format of one's own; None
    recognises the formats of Handoff."""
    map: FieldMapConfig = field(default_factory=FieldMapConfig)
    """How the arrays of the data set become fields."""
    images: bool = True
    """Whether camera images are copied, if the demonstrations have any."""
    video: VideoConfig | None = None
    """Codec with which the images are kept as video, such as `{kind: h264}`; None keeps them
    without loss, unless they are a video without loss already."""
    max_episodes: Count | None = None
    """Number of episodes to copy, from the first; None copies all."""
    mirror: bool = False
    """Whether the mirror image of every episode is appended; for push-T only, see
    `robots.episodes.curation.mirror`."""
    download: bool = True
    """Whether the published archive may be downloaded if no copy is found."""


def ingest(config: IngestConfig, out: Path, progress: Progress, shipped: Path) -> dict[str, Any]:
    """Writes the demonstrations to `out/store.zarr`; resumes an interrupted attempt with the same
    source.

    Args:
        config: source and selection of the demonstrations.
        out: folder of the artifact.
        progress: called with the number of copied episodes.
        shipped: the small data set that is part of Handoff, the last resort.

    Returns:
        `episodes`, `frames` and `rate_hz` (of the stream `policy`, or of the first one), `task`,
        `robot` (empty where it is not stated), `images` (whether stored), `fields` (described, by
        name), `source` (kind), `source_line`, `source_digest`, and `notes`, what the map leaves
        out.

    Raises:
        HandoffError: no demonstrations were found, they are damaged, or the disk is full.
    """
    if config.max_episodes is not None and config.max_episodes < 1:
        raise HandoffError(f"max_episodes: is {config.max_episodes}, expected at least 1.")
    data = None if config.data is None else Path(config.data)
    source = find_demonstrations(
        data=data,
        download=config.download,
        shipped=shipped,
        progress=progress,
        form=config.format,
    )
    digest = source_digest(source)
    origin = {"source_digest": digest, **_map_digest(config.map)}
    if not config.copy:
        return _metrics(_refer(config, source, origin, out / "store.zarr"), source, digest)
    with open_demonstrations(
        source.path, config.images, config.format, config.map
    ) as demonstrations:
        originals = min(
            demonstrations.num_episodes, config.max_episodes or demonstrations.num_episodes
        )
        if config.mirror:
            check_mirrored(demonstrations.schema)
        total = 2 * originals if config.mirror else originals
        schema = with_videos(demonstrations.schema.exact, config.video)
        stored = None
        if isinstance(demonstrations, RecordedDemonstrations) and not (
            config.mirror or config.video
        ):
            stored = demonstrations
            schema = stored.copied_schema(originals)
        with _resume(out / "store.zarr", schema, origin, originals, total) as store:
            with store.writer() as writer:
                first = store.num_episodes
                for streams, metadata in (
                    stored.copies(schema, first, total)
                    if stored is not None
                    else _episodes(demonstrations, originals, first, total)
                ):
                    # Where the source was found is no property of the episodes.
                    about = {**metadata, **origin}
                    try:
                        number = writer.append(streams, about)
                    except HandoffError as error:
                        episode = metadata.get("source_episode", store.num_episodes)
                        raise HandoffError(f"{source.path}: episode {episode}: {error}") from error
                    progress(number + 1, total, "episodes")
            notes = [*_notes(demonstrations), *_grown(store, source.path, out / "store.zarr")]
            return _metrics(store, source, digest, notes)


def _metrics(
    store: EpisodeStore, source: Source, digest: str, notes: Sequence[str] = ()
) -> dict[str, Any]:
    stream = STREAM if STREAM in store.schema.streams else next(iter(store.schema.streams))
    fields = store.schema.streams[stream].fields
    return {
        "episodes": store.num_episodes,
        "frames": int(store.ends(stream)[-1]),
        "task": store.schema.name,
        "rate_hz": store.schema.streams[stream].rate_hz,
        "robot": store.schema.robot,
        "images": any(spec.unit == "u8" for spec in fields.values()),
        "fields": {name: describe(spec) for name, spec in fields.items()},
        "source": source.kind,
        "source_line": source.line,
        "source_digest": digest,
        "notes": [*notes, *_cut_short(store)],
    }


def _notes(demonstrations: Demonstrations) -> tuple[str, ...]:
    """What the map leaves out."""
    return demonstrations.notes if isinstance(demonstrations, MappedEpisodes) else ()


def _grown(store: EpisodeStore, source: Path, path: Path) -> list[str]:
    """A note on pictures that take many times the size of their source, which keeps them as video
    or coded with loss; empty where they do not, or where the source is in a bucket."""
    schema = store.schema
    lossless = any(
        is_picture(field) and field.unit == "u8" and f"{stream}/{name}" not in schema.videos
        for stream, spec in schema.streams.items()
        for name, field in spec.fields.items()
    )
    if not lossless or not source.exists():
        return []
    before, after = _bytes_of(source), _bytes_of(path)
    if after < MUCH_LARGER * max(before, 1):
        return []
    return [
        f"the store has {after / 1e6:.1f} MB, {after / max(before, 1):.0f} times its source, as pictures are kept "
        "without loss; `handoff episodes import --video`, or `handoff run own_data 'demos.video={kind: h264}'`, keeps "
        "them as video"
    ]


def _bytes_of(path: Path) -> int:
    files = [path] if path.is_file() else path.rglob("*")
    return sum(file.stat().st_size for file in files if file.is_file())


def _cut_short(store: EpisodeStore) -> list[str]:
    """A note on the episodes whose recording was cut short; empty without any."""
    numbers = [
        str(number)
        for number in range(store.num_episodes)
        if store.metadata(number).get("cut_short")
    ]
    if not numbers:
        return []
    shown = ", ".join(numbers[:_MOST_NUMBERS]) + (" .." if len(numbers) > _MOST_NUMBERS else "")
    return [
        f"{len(numbers)} recording{'s were' if len(numbers) > 1 else ' was'} cut short (episode {shown}): what was "
        "complete is in the store"
    ]


def check_referable(config: IngestConfig, path: Path) -> None:
    """Checks that samples can stay where they are, if `copy` is false.

    Args:
        config: options of the import.
        path: the data set.

    Raises:
        HandoffError: another format, or options that would change the samples.
    """
    if config.copy:
        return
    form = config.format or identify(path)
    place = bucket_of(path) or Folder(path.resolve())
    changed = [
        name
        for name, given in (
            ("map", not config.map.is_default),
            ("mirror", config.mirror),
            ("video", config.video is not None),
        )
        if given
    ]
    if changed:
        raise HandoffError(
            f"copy: is false, but {' and '.join(changed)} would change the samples; they stay as they are in {place}."
        )
    if form != "episode_store" or (isinstance(place, Folder) and not place.path.is_dir()):
        raise HandoffError(
            f"copy: is false, but {place} is a file or folder of the format {TITLES.get(form, form)}; samples are read "
            "where they are only in a folder or bucket with an episode store."
        )


def _refer(
    config: IngestConfig, source: Source, origin: dict[str, str], path: Path
) -> EpisodeStore:
    """Writes a store at `path` that refers to the samples of the source."""
    check_referable(config, source.path)
    place = bucket_of(source.path) or Folder(source.path.resolve())
    with EpisodeStore.open(source.path) as store:
        schema = store.schema if config.images else without_images(store.schema)
        episodes = min(store.num_episodes, config.max_episodes or store.num_episodes)

    def about(number: int, metadata: Mapping[str, Any]) -> dict[str, Any]:
        return {**metadata, "source_episode": number, **origin}

    write_reference(path, place, schema, episodes, about)
    return EpisodeStore.open(path)


def _episodes(
    demonstrations: Demonstrations, originals: int, first: int, stop: int
) -> Iterator[tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]]:
    """Episodes `[first, stop)` of the store: the `originals`, then their mirror images."""
    yield from demonstrations.episodes(min(first, originals), min(stop, originals))
    first_mirrored = max(first - originals, 0)
    for streams, metadata in demonstrations.episodes(first_mirrored, max(stop - originals, 0)):
        yield mirrored(streams), {**metadata, "mirrored": True}


def _resume(
    path: Path, schema: EpisodeSchema, origin: dict[str, str], originals: int, total: int
) -> EpisodeStore:
    """The store of an interrupted attempt if source and schema are the same, otherwise a new
    store."""
    if _readable(path):
        store = EpisodeStore.open(path, "a")
        metadata = [store.metadata(i) for i in range(store.num_episodes)]
        same = all(
            {key: entry.get(key) for key in _ORIGIN if key in entry} == origin for entry in metadata
        )
        same &= all(
            entry.get("mirrored", False) == (i >= originals) for i, entry in enumerate(metadata)
        )
        if same and store.schema == schema and store.num_episodes <= total:
            return store
        store.close()
    if path.exists():
        shutil.rmtree(path)
    return EpisodeStore.create(path, schema)


def _map_digest(mapping: FieldMapConfig) -> dict[str, str]:
    """`source_map`, the digest of a map that changes fields; empty without one."""
    if mapping.is_default:
        return {}
    text = json.dumps(to_plain(mapping), sort_keys=True)
    return {"source_map": hashlib.sha256(text.encode()).hexdigest()[:16]}


def _readable(path: Path) -> bool:
    try:
        EpisodeStore.open(path, "r")
    except HandoffError:
        # Missing, damaged or of another version. It is only a copy, which is written again.
        return False
    return True
