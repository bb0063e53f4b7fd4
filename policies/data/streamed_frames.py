"""Images and point clouds of every recorded step, read from the episode stores when a batch needs
them, without a copy.

Only the parts of a store's files that hold the wanted steps are read and decoded, so that neither
memory nor the disk limits the size of a data set. A store is opened by the first read of each
process, so the frames can be sent to worker processes.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError

_POPULATE_WRITE = 23
"""Number of Linux's advice to map all pages of a range at once, which is faster than a page fault
for each."""


class StoredEpisodes(NamedTuple):
    """Episodes of one store, at the time when the training read it."""

    path: str
    """Path or address of the store."""
    stream: str
    lengths: tuple[int, ...]
    """Number of steps of every episode."""


class _Span(NamedTuple):
    """Consecutive steps of one episode."""

    episode: int
    """Number of the episode in all stores."""
    first: int
    """First step, in the episode."""
    rows: slice
    """Rows of the result that they fill."""


class EpisodeReader:
    """Reads steps of the episodes of several stores, numbered through the stores; it is shared by
    all sensors of a training.

    Args:
        stores: the stores, in the order of their episodes.
    """

    def __init__(self, stores: Sequence[StoredEpisodes]) -> None:
        self._stores = tuple(stores)
        lengths = [length for store in self._stores for length in store.lengths]
        self.ends_E = np.cumsum(lengths, dtype=np.int64)
        """Exclusive end of every episode among all steps."""
        self._firsts = np.cumsum([0, *(len(store.lengths) for store in self._stores)])
        self._opened: dict[int, EpisodeStore] = {}
        self._pool: ThreadPoolExecutor | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Open files and threads stay in their process."""
        return self.__dict__ | {"_opened": {}, "_pool": None}

    def fill(self, field: str, rows: np.ndarray, into: tuple[np.ndarray, np.ndarray]) -> None:
        """Reads the steps `rows` of a field into an array.

        Args:
            field: name of the field.
            rows: (R,) ascending numbers of steps among all steps, each once.
            into: array (N, ..) of the steps, and (R,) the row of each step in it.

        Raises:
            HandoffError: a store is missing, was replaced, or is damaged.
        """

        def read(span: _Span) -> None:
            store, episode = self._place(span.episode)
            steps = slice(span.first, span.first + span.rows.stop - span.rows.start)
            place = target, target_rows[span.rows]
            self._open(store).read_into(episode, self._stores[store].stream, field, steps, place)

        target, target_rows = into

        spans = list(self._spans(rows))
        stores = {self._place(span.episode)[0] for span in spans}
        # Opened before threads read, which would open a store several times.
        parallel = max((self._open(store).parallel_reads for store in stores), default=1)
        if parallel == 1 or len(spans) < 2:
            for span in spans:
                read(span)
            return
        if self._pool is None:
            self._pool = ThreadPoolExecutor(parallel, thread_name_prefix="frames")
        for _ in self._pool.map(read, spans):
            pass

    def _spans(self, rows: np.ndarray) -> Iterator[_Span]:
        """The consecutive steps of one episode among ascending `rows`."""
        episode_R = np.searchsorted(self.ends_E, rows, side="right")
        breaks = (np.diff(rows) != 1) | (np.diff(episode_R) != 0)
        borders = [0, *(np.flatnonzero(breaks) + 1).tolist(), len(rows)]
        for first, last in pairwise(borders):
            if last > first:
                episode = int(episode_R[first])
                begin = int(self.ends_E[episode - 1]) if episode else 0
                yield _Span(episode, int(rows[first]) - begin, slice(first, last))

    def _place(self, episode: int) -> tuple[int, int]:
        """Number of the episode's store, and of the episode in it."""
        store = int(np.searchsorted(self._firsts, episode, side="right")) - 1
        return store, episode - int(self._firsts[store])

    def _open(self, number: int) -> EpisodeStore:
        if number not in self._opened:
            expected = self._stores[number]
            store = EpisodeStore.open(expected.path)
            # A store may have grown, but the episodes that were there stay.
            ends = store.ends(expected.stream)[: len(expected.lengths)]
            if not np.array_equal(ends, np.cumsum(expected.lengths)):
                raise HandoffError(
                    f"{expected.path}: its first {len(expected.lengths)} episodes have other lengths than at the "
                    "beginning of the training. Was the store replaced?"
                )
            self._opened[number] = store
        return self._opened[number]


class StreamedFrames:
    """All recorded steps of one camera or point cloud, read when they are asked for; a
    `policies.data.frames.FrameSource`.

    Args:
        episodes: reader of the episodes.
        field: name of the camera or point cloud.
        step_shape: shape of one step.
        dtype: dtype of the frames, to which recorded values are converted.
    """

    def __init__(
        self, episodes: EpisodeReader, field: str, step_shape: tuple[int, ...], dtype: np.dtype
    ) -> None:
        self.step_shape = step_shape
        """Shape of one step."""
        self._episodes = episodes
        self._field = field
        self._dtype = torch.from_numpy(np.empty(0, dtype)).dtype

    def __len__(self) -> int:
        """Number of recorded steps."""
        return int(self._episodes.ends_E[-1])

    def steps(self, rows: Tensor, pinned: bool = False) -> Tensor:
        """Reads the steps `rows` as `(*rows.shape, *step_shape)` on the CPU.

        Args:
            rows: indices of any shape, on the CPU.
            pinned: whether to use pinned memory, for asynchronous copies to a GPU.

        Raises:
            HandoffError: a store is missing, was replaced, or is damaged.
        """
        flat = rows.reshape(-1).numpy()
        wanted, first, place = np.unique(flat, return_index=True, return_inverse=True)
        frames = _allocate((len(flat), *self.step_shape), self._dtype, pinned)
        steps = frames.numpy()
        self._episodes.fill(self._field, wanted, (steps, first))
        # Steps of several windows were read once.
        repeated = np.flatnonzero(first[place] != np.arange(len(flat)))
        if len(repeated):
            steps[repeated] = steps[first[place[repeated]]]
        return frames.view(*rows.shape, *self.step_shape)


def _allocate(shape: tuple[int, ...], dtype: torch.dtype, pinned: bool) -> Tensor:
    """A tensor without content; in a worker in the shared memory in which it hands its batch over,
    so that the batch is decoded there."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype, pin_memory=pinned)
    size = math.prod(shape) * dtype.itemsize
    shared = torch.empty(0, dtype=torch.uint8)
    storage: Any = torch.UntypedStorage._new_shared(size)
    shared.set_(storage)
    if size and sys.platform == "linux":
        # A hint without effect on kernels before 5.14; the pages are then mapped one by one.
        ctypes.CDLL(None).madvise(ctypes.c_void_p(shared.data_ptr()), size, _POPULATE_WRITE)
    return shared.view(dtype).view(shape)
