"""Reads and writes the objects of S3-compatible storage (`robots.storage.s3_client`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from flows.storage.address import StorageAddress
from robots.errors import HandoffError
from robots.storage.s3_client import endpoint, failure, open_client

PARALLEL = 16
"""Transfers at the same time: a store of episodes has thousands of small files."""
PART_BYTES = 32_000_000
"""Size of the parts in which a large object is read, each in a request of its own [bytes]."""

T = TypeVar("T")


class StorageError(HandoffError):
    """A storage that cannot be reached, or refuses a request."""


class Objects:
    """The objects below one address, by their keys relative to it."""

    def __init__(self, address: StorageAddress) -> None:
        """Opens the storage, without a request.

        Raises:
            StorageError: the environment is not valid.
            ModuleNotFoundError: obstore, the client, is not installed.
        """
        self.address = address
        self._endpoint = endpoint()
        with self._explained():
            self._store: Any = open_client(address.bucket, address.prefix)

    def folders(self, prefix: str) -> list[str]:
        """Returns the names directly below a prefix that have objects below them."""
        import obstore

        with self._explained():
            found = obstore.list_with_delimiter(self._store, prefix)
        return [str(path).rpartition("/")[2] for path in found["common_prefixes"]]

    def sizes(self, prefix: str) -> dict[str, int]:
        """Returns the sizes of all objects below a prefix [bytes], by their names relative to
        it."""
        import obstore

        with self._explained():
            return {
                str(entry["path"])[len(prefix) + 1 :]: int(entry["size"])
                for chunk in obstore.list(self._store, prefix)
                for entry in chunk
            }

    def read(self, key: str) -> bytes | None:
        """Returns a small object; None if there is none."""
        import obstore

        with self._explained():
            try:
                return bytes(obstore.get(self._store, key).bytes())
            except FileNotFoundError:
                return None

    def write(self, key: str, data: bytes) -> None:
        """Writes a small object, or replaces it."""
        import obstore

        with self._explained():
            obstore.put(self._store, key, data)

    def create(self, key: str, data: bytes) -> bool:
        """Writes a small object; returns False if there is one already, which is kept."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        with self._explained():
            try:
                obstore.put(self._store, key, data, mode="create")
            except AlreadyExistsError:
                return False
        return True

    def upload(self, files: Mapping[str, Path], done: Callable[[int], None]) -> None:
        """Writes files as objects; each one is complete or absent.

        Args:
            files: files by key.
            done: called with the size of every file that has been written [bytes].
        """
        import obstore

        def one(entry: tuple[str, Path]) -> int:
            key, file = entry
            with self._explained():
                obstore.put(self._store, key, file)
            return file.stat().st_size

        for size in _in_parallel(one, files.items()):
            done(size)

    def download(self, files: Mapping[str, Path], done: Callable[[int], None]) -> None:
        """Reads objects into files, whose folders are made.

        Args:
            files: files by key.
            done: called with the size of every file that has been read [bytes].

        Raises:
            StorageError: an object is missing, or the storage cannot be reached.
        """
        import obstore

        def one(entry: tuple[str, Path]) -> int:
            key, file = entry
            file.parent.mkdir(parents=True, exist_ok=True)
            with self._explained(key), file.open("wb") as stream:
                found = obstore.get(self._store, key)
                size = int(found.meta["size"])
                if size <= PART_BYTES:
                    stream.write(found.bytes())
                    return size
                for start in range(0, size, PART_BYTES):
                    end = min(start + PART_BYTES, size)
                    stream.write(obstore.get_range(self._store, key, start=start, end=end))
            return size

        for size in _in_parallel(one, files.items()):
            done(size)

    def delete(self, keys: Sequence[str]) -> None:
        """Deletes objects."""
        import obstore

        with self._explained():
            if keys:
                obstore.delete(self._store, list(keys))

    @contextmanager
    def _explained(self, key: str = "") -> Iterator[None]:
        """Converts the errors of the client, which are several lines, to one line."""
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            if error.errno is not None:
                raise
            raise StorageError(
                f"storage {self.address}: {key} is missing. Was it deleted?"
            ) from None
        except BaseError as error:
            raise StorageError(
                f"storage {failure(self.address, self._endpoint, str(error))}"
            ) from None


def _in_parallel(function: Callable[[Any], T], entries: Iterable[Any]) -> Iterator[T]:
    """Yields the results in order; after an error, calls that have not begun are dropped."""
    pool = ThreadPoolExecutor(PARALLEL)
    try:
        yield from pool.map(function, entries)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
