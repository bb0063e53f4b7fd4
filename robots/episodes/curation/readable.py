"""States what the doctor and the statistics read of a data set, by number and field."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from robots.episodes.schema import EpisodeSchema


class ReadableEpisodes(Protocol):
    """What is read of an `EpisodeStore`, which is one."""

    path: Path
    """The data set, for messages."""
    schema: EpisodeSchema

    @property
    def num_episodes(self) -> int:
        """Number of episodes."""
        ...

    def metadata(self, episode: int) -> dict[str, Any]:
        """Metadata of an episode."""
        ...

    def ends(self, stream: str) -> np.ndarray:
        """`(E,)` int64: exclusive end of each episode in the columns of `stream`."""
        ...

    def read(
        self,
        episode: int,
        stream: str,
        fields: Sequence[str] | None = None,
        steps: slice = slice(None),
    ) -> dict[str, np.ndarray]:
        """Fields of one episode, each `(T, *field shape)`; None reads all fields."""
        ...
