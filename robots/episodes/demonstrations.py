"""Opens demonstrations of all known formats behind one interface."""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, Protocol, cast

import numpy as np

from robots.episodes.config import FieldMapConfig
from robots.episodes.field_map import MappedEpisodes
from robots.episodes.formats import (
    aloha,
    d4rl,
    hil_serl,
    lerobot,
    maniskill,
    minari,
    npz,
    replay_buffer,
    rlds,
    robomimic,
    rosbag,
)
from robots.episodes.formats.containers.damaged_files import check_undamaged
from robots.episodes.formats.pusht import is_pusht, open_replay_buffer, zip_names
from robots.episodes.formats.source import EpisodeSource, SourceEpisode, SourceSchema
from robots.episodes.merge import merged_episode, with_copied_videos
from robots.episodes.pack import unpack_store
from robots.episodes.schema import EpisodeSchema, Streams, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError, suggest
from robots.language.text import UNIT as TEXT
from robots.outside import FORMATS, find_outside, import_outside, outside_target, split_target
from robots.spec import FieldSpec, Role
from robots.storage.location import bucket_of
from robots.storage.read_ahead import read_ahead

STREAM = "policy"
_PARALLEL_EPISODES = 4
"""Episodes that are read at the same time from a bucket; each may have gigabytes of pictures."""
MOST_ENTRIES = 20
"""Number of entries of a folder that are looked at for a data set."""
_ACTIONS = ("action", "action_policy", "action_proposed")
_OUTCOMES = frozenset(
    ("reward", "rewards", "done", "dones", "success", "terminated", "truncated", "terminals")
)


class FormatModule(Protocol):
    """A module of `robots.episodes.formats`."""

    def recognises(self, path: Path) -> bool:
        """Whether the file or folder has the format, by names and structure alone."""
        ...

    def open_source(self, path: Path, images: bool) -> AbstractContextManager[EpisodeSource]:
        """Opens the data set; pictures are read if `images` is set."""
        ...


class Format(NamedTuple):
    """A format that is recognised."""

    title: str
    """Words for the format in messages."""
    module: FormatModule


FORMATS_INSIDE = {
    "lerobot": Format("LeRobot v2.0 to v3.0", lerobot),
    "rlds": Format("RLDS (TFDS tfrecords)", rlds),
    "minari": Format("Minari", minari),
    "robomimic": Format("robomimic and Isaac Lab HDF5", robomimic),
    "maniskill": Format("ManiSkill HDF5", maniskill),
    "aloha": Format("ALOHA HDF5", aloha),
    "d4rl": Format("D4RL HDF5", d4rl),
    "rosbag": Format("MCAP, rosbag2 and ROS 1 bags", rosbag),
    "hil_serl": Format("pickles of hil-serl", hil_serl),
    "npz": Format("NumPy archives", npz),
    "replay_buffer": Format("replay buffers of diffusion_policy and UMI (Zarr)", replay_buffer),
}
"""Formats of Handoff by name, in the order in which they are tried."""
TITLES = {
    "episode_store": "episode stores of Handoff",
    "push_t": "push-T of diffusion_policy",
    **{name: form.title for name, form in FORMATS_INSIDE.items()},
}
"""Words for the formats in messages, with those whose episodes state streams themselves."""


class Demonstrations(Protocol):
    """Episodes that can be read one after another."""

    schema: EpisodeSchema

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the data set."""
        ...

    def episodes(
        self, first: int, stop: int
    ) -> Iterator[tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]]:
        """Streams and metadata of the episodes `[first, stop)`."""
        ...


OpenDemonstrations = Callable[[Path, bool], Demonstrations]
"""Opens demonstrations; pictures are read if the second argument is true."""


class RecordedDemonstrations:
    """Episodes that Handoff recorded, of any task, read from an episode store."""

    def __init__(self, store: EpisodeStore, images: bool) -> None:
        """Images are read only if `images` is set and the store has them."""
        self.schema = store.schema if images else without_images(store.schema)
        self._store = store

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the store."""
        return self._store.num_episodes

    def episodes(
        self, first: int, stop: int
    ) -> Iterator[tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]]:
        """Streams and metadata of the episodes `[first, stop)`."""
        parallel = min(self._store.parallel_reads, _PARALLEL_EPISODES)
        yield from read_ahead(self._episode, range(first, stop), parallel)

    def copied_schema(self, episodes: int) -> EpisodeSchema:
        """The schema of a copy of the first episodes, in which cameras stay video where their
        frames can be copied as they are coded."""
        return with_copied_videos(self.schema, [(self._store, range(episodes))])

    def copies(
        self, schema: EpisodeSchema, first: int, stop: int
    ) -> Iterator[tuple[Streams, dict[str, Any]]]:
        """Streams and metadata of the episodes `[first, stop)`, for a copy with a schema that
        `copied_schema` gave."""
        parallel = min(self._store.parallel_reads, _PARALLEL_EPISODES)

        def copy(number: int) -> tuple[Streams, dict[str, Any]]:
            about = {**self._store.metadata(number), "source_episode": number}
            return merged_episode(self._store, number, schema), about

        yield from read_ahead(copy, range(first, stop), parallel)

    def _episode(self, number: int) -> tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]:
        streams = {
            name: self._store.read(number, name, fields=list(spec.fields))
            for name, spec in self.schema.streams.items()
        }
        return streams, {**self._store.metadata(number), "source_episode": number}


class StreamSource:
    """One stream of demonstrations as a data set whose fields can be mapped.

    Args:
        demonstrations: episodes with the stream `policy`, or with another one that is the first.
        form: name of the format.
    """

    def __init__(self, demonstrations: Demonstrations, form: str) -> None:
        schema = demonstrations.schema
        self._stream = STREAM if STREAM in schema.streams else next(iter(schema.streams))
        self.demonstrations = demonstrations
        stream = schema.streams[self._stream]
        self.schema = SourceSchema(
            form=form,
            task=schema.name,
            rate_hz=stream.rate_hz,
            fields={
                name: replace(spec, role=field_role(name, spec))
                for name, spec in stream.fields.items()
            },
            robot=schema.robot,
        )

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        return self.demonstrations.num_episodes

    def episodes(self, first: int, stop: int) -> Iterator[SourceEpisode]:
        """The episodes `[first, stop)`."""
        for streams, metadata in self.demonstrations.episodes(first, stop):
            yield SourceEpisode(streams[self._stream], metadata)


def field_role(name: str, spec: FieldSpec) -> Role:
    """The part of a field, also in stores that do not state it: the field `action`, what a policy
    proposed and fields with a meaning to a controller are actions; floating numbers other than the
    time of a step, pictures and words are observed."""
    if spec.role:
        return spec.role
    if name in _ACTIONS or spec.interface:
        return "action"
    if name == "step_time":
        return "other"
    if name.rpartition("/")[2] in _OUTCOMES:
        return "outcome"
    observed = spec.dtype.startswith("float") or spec.unit in ("u8", TEXT)
    return "observation" if observed else "other"


def identify(path: Path) -> str:
    """Name of the format of the file or folder at `path`: `episode_store`, `push_t`, or one of
    `FORMATS_INSIDE`, recognised by names of files and by their structure. What is in a bucket is an
    episode store.

    Raises:
        HandoffError: it is missing or unreadable, or has none of the formats.
    """
    if bucket_of(path) is not None:
        return "episode_store"
    if not path.exists():
        raise HandoffError(f"{path}: no such file or folder, expected demonstrations.")
    form = _form_of(path)
    if form is not None:
        return form
    check_undamaged(path)
    raise HandoffError(
        f"{path}: no format of demonstrations that is known. Known are {', '.join(TITLES.values())}. "
        f"{_inside(path) or 'Is it a folder above or below the data set?'} A format of your own is read with "
        "`--format MODULE` of handoff episodes, or demos.format=MODULE of handoff run."
    )


def _inside(folder: Path) -> str:
    """Names an entry of a folder that is a data set, as a sentence; empty if there is none among
    the first."""
    entries = sorted(folder.iterdir())[:MOST_ENTRIES] if folder.is_dir() else []
    for entry in entries:
        # What is damaged is named when it is given itself.
        with suppress(HandoffError, OSError):
            form = _form_of(entry)
            if form is not None:
                return f"Do you mean {entry} ({TITLES[form]})?"
    return ""


def _form_of(path: Path) -> str | None:
    """See `identify`; None if it has none of the formats."""
    if path.is_dir() or path.suffix == ".zip" or zipfile.is_zipfile(path):
        top = {entry.name for entry in path.iterdir()} if path.is_dir() else set(zip_names(path))
        if {"index.json", "zarr.json"} <= top:
            return "episode_store"
        if is_pusht(path):
            return "push_t"
    for name in FORMATS_INSIDE:
        if FORMATS_INSIDE[name].module.recognises(path):
            return name
    return None


@contextmanager
def open_demonstrations(
    path: Path, images: bool, form: str | None = None, mapping: FieldMapConfig | None = None
) -> Iterator[Demonstrations]:
    """Opens the demonstrations at `path`, a file or a folder of any known format.

    Args:
        path: the file or folder, or what a format outside Handoff reads.
        images: whether camera images are read.
        form: name of a format of Handoff, or dotted path or entry point of one outside; None takes
            the one that `identify` recognises.
        mapping: how the arrays become fields; None changes nothing.

    Raises:
        HandoffError: they are missing or damaged, the map does not fit them, or there is no such
            format.
    """
    mapping = mapping or FieldMapConfig()
    with ExitStack() as stack:
        opened = _opened(form or identify(path), path, images, stack)
        if isinstance(opened, StreamSource) and mapping.is_default:
            yield opened.demonstrations
        else:
            yield MappedEpisodes(opened, mapping)


@contextmanager
def open_any_source(path: Path, images: bool, form: str | None = None) -> Iterator[EpisodeSource]:
    """Opens a data set of any known format as its arrays, before they are mapped.

    Raises:
        HandoffError: see `open_demonstrations`.
    """
    with ExitStack() as stack:
        yield _opened(form or identify(path), path, images, stack)


def _opened(name: str, path: Path, images: bool, stack: ExitStack) -> EpisodeSource:
    """The data set of the format `name`, open until `stack` ends."""
    if name in FORMATS_INSIDE:
        return stack.enter_context(FORMATS_INSIDE[name].module.open_source(path, images))
    if name == "push_t":
        demonstrations = stack.enter_context(open_replay_buffer(path, images))
    elif name == "episode_store":
        if bucket_of(path) is None and not path.is_dir():
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handoff-")))
            path = unpack_store(path, scratch / "store.zarr")
        demonstrations = RecordedDemonstrations(EpisodeStore.open(path, "r"), images)
    else:
        outside = find_format(name)
        if not callable(outside):
            return stack.enter_context(outside.open_source(path, images))
        demonstrations = outside(path, images)
    return StreamSource(demonstrations, TITLES.get(name, name))


def find_format(name: str) -> FormatModule | OpenDemonstrations:
    """A format outside Handoff: a module with `open_source`, as those of `robots.episodes.formats`,
    or the function `open_demonstrations(path, images)` of one whose episodes have streams of
    several rates.

    Args:
        name: dotted path of its module, or an entry point of the group `handoff.formats`.

    Raises:
        HandoffError: there is no such module, or it has neither function.
    """
    target = outside_target(name, FORMATS)
    if target is None:
        raise HandoffError(
            f"format '{name}': {suggest(name, sorted(TITLES), 'expected one of')} (or the dotted path of a module of "
            "your own)"
        )
    about = f"format '{name}'"
    module, member = split_target(target)
    if not member:
        imported = import_outside(module, about)
        if hasattr(imported, "open_source"):
            return cast(FormatModule, imported)
    return find_outside(target, "open_demonstrations", about, "function")


def without_images(schema: EpisodeSchema) -> EpisodeSchema:
    """The schema without pictures, and without streams that have nothing else."""
    streams = {
        name: StreamSpec(
            rate_hz=spec.rate_hz,
            fields={key: field for key, field in spec.fields.items() if field.unit != "u8"},
        )
        for name, spec in schema.streams.items()
    }
    kept = {name: spec for name, spec in streams.items() if spec.fields}
    return replace(schema, streams=kept, videos={})
