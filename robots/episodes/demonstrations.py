"""Opens demonstrations of all known formats behind one interface."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np

from robots.episodes.formats.pusht import (
    find_replay_buffer,
    open_replay_buffer,
    pusht_schema,
    zip_names,
)
from robots.episodes.pack import unpack_store
from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.outside import FORMATS, find_outside, outside_target


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


class RecordedDemonstrations:
    """Push-T episodes that Handoff recorded, read from an episode store."""

    def __init__(self, path: Path, store: EpisodeStore, images: bool) -> None:
        """Opens the demonstrations; images are read only if `images` is set and the store has them.

        Raises:
            HandoffError: the store holds another task.
        """
        task = pusht_schema(images=False)
        missing = {
            f"{name}/{field}"
            for name, spec in task.streams.items()
            for field in spec.fields
            if name not in store.schema.streams or field not in store.schema.streams[name].fields
        }
        if store.schema.name != task.name or missing:
            raise HandoffError(
                f"{path}: holds episodes of '{store.schema.name}' without {sorted(missing)}, expected '{task.name}'."
            )
        self.schema = store.schema if images else _without_images(store.schema)
        self._store = store

    @property
    def num_episodes(self) -> int:
        """Number of episodes in the store."""
        return self._store.num_episodes

    def episodes(
        self, first: int, stop: int
    ) -> Iterator[tuple[dict[str, dict[str, np.ndarray]], dict[str, Any]]]:
        """Streams and metadata of the episodes `[first, stop)`."""
        for episode in range(first, stop):
            streams = {
                name: self._store.read(episode, name, fields=list(spec.fields))
                for name, spec in self.schema.streams.items()
            }
            yield streams, {**self._store.metadata(episode), "source_episode": episode}


def identify(path: Path) -> Literal["replay_buffer", "episode_store"]:
    """The format of the zip or folder at `path`, identified by its file names.

    Raises:
        HandoffError: it is missing or unreadable, or has neither format.
    """
    if not path.exists():
        raise HandoffError(f"{path}: no such file or folder, expected push-T demonstrations.")
    top = {entry.name for entry in path.iterdir()} if path.is_dir() else set(zip_names(path))
    if {"index.json", "zarr.json"} <= top:
        return "episode_store"
    if find_replay_buffer(path) is not None:
        return "replay_buffer"
    raise HandoffError(
        f"{path}: neither a diffusion_policy replay buffer nor an episode store of Handoff's."
    )


@contextmanager
def open_demonstrations(
    path: Path, images: bool, form: str | None = None
) -> Iterator[Demonstrations]:
    """Opens the demonstrations at `path`, a zip or a folder of any known format.

    Args:
        path: the zip, the folder, or what a format outside Handoff reads.
        images: whether camera images are read.
        form: dotted path or entry point of a format outside Handoff; None takes the one that
            `identify` recognises.

    Raises:
        HandoffError: they are missing, damaged, or of another task; or there is no such format.
    """
    with ExitStack() as stack:
        if form is not None:
            yield find_format(form)(path, images)
            return
        if identify(path) == "replay_buffer":
            yield stack.enter_context(open_replay_buffer(path, images))
            return
        if not path.is_dir():
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="handoff-")))
            path = unpack_store(path, scratch / "store.zarr")
        yield RecordedDemonstrations(path, EpisodeStore.open(path, "r"), images)


def find_format(name: str) -> Callable[[Path, bool], Demonstrations]:
    """The function `open_demonstrations(path, images)` of a format outside Handoff.

    Args:
        name: dotted path of its module, or an entry point of the group `handoff.formats`.

    Raises:
        HandoffError: there is no such module, or it has no such function.
    """
    target = outside_target(name, FORMATS)
    if target is None:
        raise HandoffError(
            f"format '{name}': expected the dotted path of a module of your own; formats of Handoff "
            "are recognised without a name."
        )
    return find_outside(target, "open_demonstrations", f"format '{name}'", "function")


def _without_images(schema: EpisodeSchema) -> EpisodeSchema:
    streams = {
        name: StreamSpec(
            rate_hz=spec.rate_hz,
            fields={key: field for key, field in spec.fields.items() if field.unit != "u8"},
        )
        for name, spec in schema.streams.items()
    }
    return replace(schema, streams={name: spec for name, spec in streams.items() if spec.fields})
