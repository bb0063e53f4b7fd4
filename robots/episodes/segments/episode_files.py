"""Files of an episode that is being recorded, in a hidden folder of its store.

| path below `segments/.recording-<name>/`     | content                                         |
|----------------------------------------------|-------------------------------------------------|
| `recording.json`                             | metadata, and once it is committed the lengths  |
| `journal/<stream>/rows`                      | a packed record per sample, of its small fields |
| `journal/<stream>/<field>/`                  | what is needed to go on with an array           |
| `segment/<stream>/<field>/`                  | arrays of large fields, written chunk by chunk  |

When the episode is committed, the small fields become arrays as well, and `segment` becomes the
store's next segment. After a kill the folder is left, and `EpisodeFiles.reopen` reads it.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np

from robots.episodes.schema import EpisodeSchema, StreamSpec
from robots.episodes.segments.chunks import ChunkWriter
from robots.episodes.segments.recovery import RECORD
from robots.episodes.segments.running_video import RunningVideo
from robots.episodes.segments.segment import write_array, written_in_chunks
from robots.episodes.segments.video_codec import VideoConfig
from robots.errors import HandoffError
from robots.storage.durable import write_atomically

RECORDING = ".recording-"
"""Beginning of the names of the folders of unfinished recordings, below `segments`."""
ABOUT = "recording.json"
JOURNAL = "journal"
SEGMENT = "segment"
_ROWS = "rows"
LAST_OF = {"final": "policy"}
"""Streams of the one observation after the last step, and the stream of the steps of each."""


class LargeField(Protocol):
    """Writes a field whose samples go to their files at once."""

    def append(self, sample: np.ndarray) -> None:
        """Appends one sample."""
        ...

    def __len__(self) -> int:
        """Number of samples."""
        ...

    def sample(self, number: int) -> np.ndarray:
        """A copy of sample `number`."""
        ...

    def finish(self, group: Any, name: str, length: int) -> None:
        """Completes the files of the first `length` samples."""
        ...

    def close(self) -> None:
        """Closes the files."""
        ...


class StreamFiles:
    """Files of one stream of a running episode. Fields may be written by several threads, one for
    each large field and one for the rows.

    Args:
        folder: folder of the recording.
        stream: name of the stream.
        spec: its fields.
        videos: codecs of the fields that are kept as video, by their name.
        reopened: whether files of a killed recording are continued.
    """

    def __init__(
        self,
        folder: Path,
        stream: str,
        spec: StreamSpec,
        videos: Mapping[str, VideoConfig],
        *,
        reopened: bool = False,
    ) -> None:
        self.spec = spec
        large = {
            name: field
            for name, field in spec.fields.items()
            if name in videos or written_in_chunks(field)
        }
        self.row_type = np.dtype(
            [
                (name, np.dtype(field.dtype), tuple(field.shape))
                for name, field in spec.fields.items()
                if name not in large
            ]
        )
        """Packed record of the small fields."""
        journal, segment = folder / JOURNAL / stream, folder / SEGMENT / stream
        opening = ChunkWriter.reopen if reopened else ChunkWriter
        self.large: dict[str, LargeField] = {
            name: RunningVideo(segment / name, field, spec.rate_hz, videos[name])
            if name in videos
            else opening(segment / name, journal / name, field)
            for name, field in large.items()
        }
        """Writers of the large fields."""
        journal.mkdir(parents=True, exist_ok=True)
        self._path = journal / _ROWS
        self._file: IO[bytes] = self._path.open("ab", buffering=0)
        size = max(self.row_type.itemsize, 1)
        self.rows = self._path.stat().st_size // size
        """Number of written rows of the small fields."""
        # A kill may have cut the last one.
        self._file.truncate(self.rows * size)

    def append_rows(self, rows: np.ndarray) -> None:
        """Appends records of `row_type`, in one write.

        Raises:
            OSError: the disk is full or not writable.
        """
        self._file.write(rows.tobytes())
        self.rows += rows.size

    def sync(self) -> None:
        """Flushes the records of the small fields to the disk.

        Raises:
            OSError: the disk is full or not writable.
        """
        os.fsync(self._file.fileno())

    def __len__(self) -> int:
        """Number of samples of which every field was written."""
        counts = [len(writer) for writer in self.large.values()]
        return min([*counts, self.rows] if self.row_type.names else counts)

    def sample(self, number: int) -> dict[str, np.ndarray]:
        """All fields of one sample."""
        small = self._mapped()[number] if self.row_type.names else {}
        return {
            name: self.large[name].sample(number) if name in self.large else np.array(small[name])
            for name in self.spec.fields
        }

    def finish(self, group: Any, length: int) -> None:
        """Completes the arrays of the first `length` samples.

        Raises:
            OSError: the disk is full or not writable.
        """
        mapped = self._mapped()[:length] if self.row_type.names else None
        for name, field in self.spec.fields.items():
            if name in self.large:
                self.large[name].finish(group, name, length)
            elif mapped is not None:
                write_array(group, name, field, [mapped[name]])

    def close(self) -> None:
        """Closes all files."""
        self._file.close()
        for writer in self.large.values():
            writer.close()

    def _mapped(self) -> np.ndarray:
        """The written rows."""
        if not self.rows:
            return np.zeros(0, self.row_type)
        return np.memmap(self._path, self.row_type, mode="r", shape=(self.rows,))


class EpisodeFiles:
    """Files of one running episode.

    Args:
        folder: folder of the recording, which is created.
        schema: schema of its store.
        metadata: JSON-ready metadata known when the recording begins.

    Raises:
        OSError: the disk is full or not writable.
    """

    def __init__(self, folder: Path, schema: EpisodeSchema, metadata: Mapping[str, Any]) -> None:
        (folder / SEGMENT).mkdir(parents=True)
        self._open(folder, schema, dict(metadata), reopened=False)
        self._write_about()

    @classmethod
    def reopen(cls, folder: Path, schema: EpisodeSchema) -> EpisodeFiles:
        """The files of a killed recording.

        Raises:
            OSError: they cannot be read.
        """
        try:
            about = json.loads((folder / ABOUT).read_bytes())
            metadata, lengths = dict(about["metadata"]), about["lengths"]
        except (OSError, ValueError, KeyError, TypeError):
            # Killed before it was written.
            metadata, lengths = {}, None
        _remove_finished(folder / SEGMENT, schema)
        files = cls.__new__(cls)
        files._open(folder, schema, metadata, reopened=True)
        files.lengths = lengths
        return files

    def _open(
        self, folder: Path, schema: EpisodeSchema, metadata: dict[str, Any], *, reopened: bool
    ) -> None:
        self.folder = folder
        self.metadata = metadata
        self.lengths: dict[str, int] | None = None
        """Number of samples per stream, once the commit has begun."""
        self.streams = {
            name: StreamFiles(folder, name, spec, _of_stream(schema, name), reopened=reopened)
            for name, spec in schema.streams.items()
        }

    @property
    def segment(self) -> Path:
        """Folder that becomes a segment of the store."""
        return self.folder / SEGMENT

    def finish(self, lengths: Mapping[str, int]) -> None:
        """Completes the arrays of all streams.

        Args:
            lengths: number of samples per stream.

        Raises:
            OSError: the disk is full or not writable.
        """
        import zarr

        self.lengths = dict(lengths)
        self._write_about()
        group = zarr.create_group(self.segment, zarr_format=3)
        for name, stream in self.streams.items():
            attributes = {"rate_hz": stream.spec.rate_hz}
            stream.finish(group.create_group(name, attributes=attributes), lengths[name])
        self.close()

    def _write_about(self) -> None:
        about = {"metadata": self.metadata, "lengths": self.lengths}
        write_atomically(self.folder / ABOUT, json.dumps(about).encode())

    def close(self) -> None:
        """Closes all files."""
        for stream in self.streams.values():
            stream.close()


def _of_stream(schema: EpisodeSchema, stream: str) -> dict[str, VideoConfig]:
    """Codecs of a stream's fields, by their name."""
    return {
        name.partition("/")[2]: codec
        for name, codec in schema.videos.items()
        if name.partition("/")[0] == stream
    }


def _remove_finished(segment: Path, schema: EpisodeSchema) -> None:
    """Removes what a commit that a kill cut off had added to the arrays of the large fields."""
    for name, stream in schema.streams.items():
        for field, spec in stream.fields.items():
            if not (written_in_chunks(spec) or f"{name}/{field}" in schema.videos):
                shutil.rmtree(segment / name / field, ignore_errors=True)
    for file in (*segment.rglob("zarr.json"), segment / RECORD):
        file.unlink(missing_ok=True)


def unfinished(store: Path) -> Iterator[Path]:
    """Folders of recordings of the store at `store` that were not committed: running ones of the
    store's writer, or those that a kill cut off."""
    for folder in _recordings(store):
        if (folder / SEGMENT).is_dir():
            yield folder


def remove_committed(store: Path) -> None:
    """Deletes the folders of recordings that were committed, but killed before the end of it."""
    for folder in _recordings(store):
        if not (folder / SEGMENT).is_dir():
            shutil.rmtree(folder)


def _recordings(store: Path) -> list[Path]:
    segments = store / "segments"
    if not segments.is_dir():
        return []
    return sorted(path for path in segments.iterdir() if path.name.startswith(RECORDING))


def complete_lengths(files: EpisodeFiles) -> dict[str, int]:
    """Lengths of the streams of a killed recording, of which every stream has a sample.

    A stream `final`, of the observation after the last step, gets the last sample of `policy`,
    which ends one step earlier.

    Raises:
        HandoffError: too little was recorded.
    """
    lengths = {name: len(stream) for name, stream in files.streams.items()}
    if files.lengths is not None:
        # The end of the last chunk of pictures is no picture.
        lengths = {name: min(length, files.lengths[name]) for name, length in lengths.items()}
    for name, stream in files.streams.items():
        if lengths[name]:
            continue
        donor = LAST_OF.get(name, "")
        source = files.streams.get(donor)
        known = source is not None and stream.spec.fields.items() <= source.spec.fields.items()
        if source is None or not known or lengths[donor] < 2:
            raise HandoffError(
                f"{files.folder}: no complete sample of the stream '{name}' was recorded, nothing can be recovered."
            )
        lengths[donor] -= 1
        sample = source.sample(lengths[donor])
        if stream.row_type.names:
            row = np.zeros(1, stream.row_type)
            for field in stream.row_type.names:
                row[field] = sample[field]
            stream.append_rows(row)
        for field, writer in stream.large.items():
            writer.append(sample[field])
        lengths[name] = 1
    return lengths
