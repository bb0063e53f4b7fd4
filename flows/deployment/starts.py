"""Keeps the results of the finished starts of a deployment, so that an interrupted one goes on with
the first that is missing."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from robots.errors import HandoffError
from robots.storage.durable import explain_write_errors, write_atomically

if TYPE_CHECKING:
    from robots.episodes.schema import EpisodeSchema
    from robots.episodes.store import EpisodeStore


@dataclass(frozen=True)
class StartResult:
    """Outcome of one episode."""

    seed: int
    success: bool
    about: Mapping[str, Any]
    """Description of the episode by `DeployTable.describe`."""
    seconds: float
    """Duration in robot time [s]."""
    figures: Mapping[str, float]
    """Result of `real.deploy.episode_recorder.tracking_figures`; empty if the episode ended before
    its first step."""
    specifications: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Outcome of every specification, see `robots.specifications.shares.outcomes`."""
    fault: str | None = None
    """Fault that ended the episode early; None without one."""
    inference_ms: Sequence[float] = ()
    """Host time of every inference [ms]."""
    repeats: int = 0
    """Number of attempts before this one that lost their connection to the twin."""
    wall_seconds: float = 0.0
    """Host time of all attempts [s]."""
    twin: Mapping[str, float] = field(default_factory=dict)
    """What `sim.twin.twin.Twin.stats` counted in all attempts."""


class StartJournal:
    """The finished starts of one deployment, one line of JSON each.

    A line is written once the start's episode is in the store, and replaces the file atomically.
    """

    def __init__(self, path: Path, of: Mapping[str, Any]) -> None:
        """Reads the finished starts.

        Args:
            path: file of the journal.
            of: JSON-ready description of everything that decides the results. A journal of
                something else is not used.
        """
        self._path = path
        self._lines = [json.dumps(of, sort_keys=True)]
        self.starts: list[StartResult] = []
        """The finished starts, in their order."""
        self.episodes = 0
        """Number of episodes of these starts in the store; a start that ended before its first step
        has none."""
        # A file that cannot be read is that of another program.
        with suppress(FileNotFoundError, ValueError, TypeError, KeyError):
            header, *lines = path.read_text().splitlines()
            if header == self._lines[0]:
                for line in lines:
                    self._take(line)

    def add(self, start: StartResult, episodes: int) -> None:
        """Adds a finished start, whose episode is on the disk.

        Args:
            start: its result.
            episodes: number of episodes in the store.

        Raises:
            HandoffError: it cannot be written.
        """
        line = json.dumps({**asdict(start), "episodes": episodes})
        with explain_write_errors(self._path, "the result of this start is not stored"):
            write_atomically(
                self._path, "".join(f"{one}\n" for one in [*self._lines, line]).encode()
            )
        self._take(line)

    def remove(self) -> None:
        """Deletes the file; the artifact holds all results."""
        self._path.unlink(missing_ok=True)

    def discard(self) -> None:
        """Forgets all starts."""
        self.remove()
        del self._lines[1:]
        self.starts.clear()
        self.episodes = 0

    def _take(self, line: str) -> None:
        entry = json.loads(line)
        self.episodes = entry.pop("episodes")
        self.starts.append(StartResult(**entry))
        self._lines.append(line)


def open_store(path: Path, schema: EpisodeSchema, journal: StartJournal) -> EpisodeStore:
    """Opens the store of a deployment for appending, with the episodes of the finished starts only.

    The start that was interrupted may have stored its episode; it is run again. Without the
    episodes of the finished starts the journal is discarded and the store is empty.

    Raises:
        HandoffError: the store cannot be written.
    """
    from robots.episodes.store import EpisodeStore

    aside = path.with_name(f".{path.name}.kept")
    shutil.rmtree(aside, ignore_errors=True)
    if journal.starts:
        with suppress(HandoffError):
            stored = EpisodeStore.open(path, "r")
            if stored.schema == schema and stored.num_episodes >= journal.episodes:
                if stored.num_episodes > journal.episodes:
                    _copy_first(stored, journal.episodes, aside)
                    shutil.rmtree(path)
                    os.rename(aside, path)
                return EpisodeStore.open(path, "a")
    journal.discard()
    shutil.rmtree(path, ignore_errors=True)
    return EpisodeStore.create(path, schema)


def _copy_first(stored: EpisodeStore, episodes: int, path: Path) -> None:
    with type(stored).create(path, stored.schema) as kept:
        for episode in range(episodes):
            streams = {name: stored.read(episode, name) for name in stored.schema.streams}
            kept.append(streams, stored.metadata(episode))
