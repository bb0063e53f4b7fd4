"""Reads rows of parquet files in batches of a bounded size, and makes arrays of their columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from robots.episodes.formats.source import LARGEST_EPISODE, check_size, explain_damage
from robots.errors import HandoffError

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

LARGEST_TABLE = 2**30
"""Largest size of a table that is read whole [bytes]; 100,000 episodes of three cameras have 30
MB."""


class ParquetRows:
    """Rows of parquet files; reading rows in rising order decodes each batch once."""

    def __init__(self, columns: Sequence[str], batch_rows: int) -> None:
        """Opens nothing yet.

        Args:
            columns: names of the columns that are read; others are never decoded.
            batch_rows: rows that are decoded together.
        """
        self._columns = list(columns)
        self._batch_rows = batch_rows
        self._path: Path | None = None
        self._file: pq.ParquetFile | None = None
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._rest: pa.RecordBatch | None = None
        self._position = 0

    def read(self, path: Path, first: int, count: int) -> pa.Table:
        """The rows `[first, first + count)` of a file, counted over all its row groups.

        Raises:
            HandoffError: the file is damaged, too large, lacks a column or has fewer rows.
        """
        import pyarrow as pa

        with explain_damage(path, "its rows"):
            if path != self._path or first < self._position:
                self._open(path, first)
            self._take(path, first - self._position)
            batches = self._take(path, count)
            return pa.Table.from_batches(batches)

    def num_rows(self, path: Path) -> int:
        """Number of rows of the file, without reading them.

        Raises:
            HandoffError: the file cannot be read.
        """
        with explain_damage(path, "its footer"):
            if path != self._path or self._file is None:
                self._open(path, 0)
            assert self._file is not None
            return self._file.metadata.num_rows

    def close(self) -> None:
        """Closes the file that was read last."""
        self._batches = iter(())
        self._rest = None
        self._path = None
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self, path: Path, first: int) -> None:
        """Opens a file at the row group that holds the row `first`."""
        self.close()
        file = _open_file(path)
        self._file = file
        missing = [name for name in self._columns if name not in file.schema_arrow.names]
        if missing:
            raise HandoffError(
                f"{path}: lacks the column(s) {missing}; it has {file.schema_arrow.names}. "
                "Was it written for another data set?"
            )
        group = start = 0
        while group < file.metadata.num_row_groups:
            rows = file.metadata.row_group(group).num_rows
            if start + rows > first:
                break
            start += rows
            group += 1
        groups = list(range(group, file.metadata.num_row_groups))
        for number in groups:
            _check_group(path, file, number, self._columns, LARGEST_EPISODE)
        self._batches = file.iter_batches(
            self._batch_rows, row_groups=groups, columns=self._columns, use_threads=False
        )
        self._position = start
        self._path = path

    def _take(self, path: Path, count: int) -> list[pa.RecordBatch]:
        """The next `count` rows."""
        taken = []
        while count > 0:
            batch = self._rest if self._rest is not None else next(self._batches, None)
            if batch is None:
                raise HandoffError(
                    f"{path}: ends after {self._position} rows, {count} more were expected. Was it cut short?"
                )
            taken.append(batch.slice(0, count))
            self._rest = batch.slice(count) if batch.num_rows > count else None
            self._position += taken[-1].num_rows
            count -= taken[-1].num_rows
        return taken


def read_table(path: Path, wanted: Callable[[str], bool]) -> pa.Table:
    """Reads a small table whole.

    Args:
        path: the parquet file.
        wanted: whether the column of a name is read.

    Raises:
        HandoffError: the file is damaged or too large.
    """
    with explain_damage(path, "its rows"), closing(_open_file(path)) as file:
        columns = [name for name in file.schema_arrow.names if wanted(name)]
        for number in range(file.metadata.num_row_groups):
            _check_group(path, file, number, columns, LARGEST_TABLE)
        return file.read(columns=columns, use_threads=False)


def column_numbers(
    path: Path, name: str, column: pa.ChunkedArray, shape: tuple[int, ...], dtype: str
) -> np.ndarray:
    """A column as an array, `(T, *shape)`: plain numbers, or lists nested as deep as the shape.

    Args:
        path: the file, for messages.
        name: name of the column.
        column: T rows.
        shape: shape of one row; a row of the shape (1,) may be a plain number.
        dtype: NumPy name of the type of the array, to which the column is converted.

    Raises:
        HandoffError: rows of another shape, missing values, or numbers that do not fit the type.
    """
    import pyarrow as pa

    check_size(path, name, (len(column), *shape), np.dtype(dtype).itemsize)
    values = _storage(column.combine_chunks())
    _check_complete(path, name, values)
    depth = 0
    while _is_list(values):
        size = shape[depth] if depth < len(shape) else 0
        lengths = _lengths(values)
        if np.any(lengths != size):
            wrong = int(lengths[np.argmax(lengths != size)])
            raise HandoffError(
                f"{path}: {name} has rows of {wrong} entries along axis {depth}, expected the shape {shape}."
            )
        values = _storage(values.flatten())
        _check_complete(path, name, values)
        depth += 1
    kind = values.type
    if not (pa.types.is_floating(kind) or pa.types.is_integer(kind) or pa.types.is_boolean(kind)):
        raise HandoffError(f"{path}: {name} holds {kind}, expected numbers ({dtype}).")
    if len(values) != len(column) * prod(shape):
        raise HandoffError(
            f"{path}: {name} has {len(values)} numbers in {len(column)} rows, expected the shape {shape}."
        )
    array = values.to_numpy(zero_copy_only=False).reshape(len(column), *shape)
    return _as_type(path, name, array, np.dtype(dtype))


def column_strings(path: Path, name: str, column: pa.ChunkedArray) -> list[str]:
    """A column of words; missing ones are empty.

    Raises:
        HandoffError: the column holds something else.
    """
    words = column.to_pylist()
    if not all(word is None or isinstance(word, str) for word in words):
        raise HandoffError(f"{path}: {name} holds {column.type}, expected strings.")
    return [word or "" for word in words]


def _open_file(path: Path) -> pq.ParquetFile:
    import pyarrow.parquet as pq

    return pq.ParquetFile(path, page_checksum_verification=True)


def _check_group(
    path: Path, file: pq.ParquetFile, number: int, columns: Sequence[str], limit: int
) -> None:
    """Checks the sizes that a row group states, before it is decoded."""
    group = file.metadata.row_group(number)
    size = 0
    for index in range(group.num_columns):
        chunk = group.column(index)
        if any(f"{chunk.path_in_schema}.".startswith(f"{name}.") for name in columns):
            # A number takes up to 8 bytes in memory, however well it is compressed.
            size += max(chunk.total_uncompressed_size, 8 * chunk.num_values)
    if size > limit:
        raise HandoffError(
            f"{path}: row group {number} states {size / 1e9:.1f} GB, the limit is {limit / 1e9:.1f} GB. "
            "Was it made for this purpose?"
        )


def _storage(values: pa.Array) -> pa.Array:
    """The plain array of an extension type."""
    import pyarrow as pa

    return values.storage if isinstance(values, pa.ExtensionArray) else values


def _is_list(values: pa.Array) -> bool:
    import pyarrow as pa

    kind = values.type
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def _lengths(values: pa.Array) -> np.ndarray:
    """Length of every list."""
    import pyarrow as pa

    if pa.types.is_fixed_size_list(values.type):
        return np.full(len(values), values.type.list_size)
    return np.diff(values.offsets.to_numpy(zero_copy_only=False))


def _check_complete(path: Path, name: str, values: pa.Array) -> None:
    if values.null_count:
        raise HandoffError(
            f"{path}: {name} lacks {values.null_count} of {len(values)} values. Was a sensor lost?"
        )


def _as_type(path: Path, name: str, array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    fits = np.can_cast(array.dtype, dtype, "same_kind") or dtype == np.bool_
    with np.errstate(over="ignore", invalid="ignore"):
        cast = array.astype(dtype)
    exact = np.issubdtype(dtype, np.floating) or np.array_equal(cast, array)
    if not (fits and exact):
        raise HandoffError(f"{path}: {name} holds {array.dtype} that cannot become {dtype}.")
    return cast
