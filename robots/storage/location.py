"""Reads files below a place: a folder of this computer, or a prefix of a bucket of S3-compatible
storage (`robots.storage.s3_client`)."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from robots.errors import HandoffError
from robots.storage.s3_client import endpoint, failure, open_client

if TYPE_CHECKING:
    import zarr

ADDRESS = re.compile(r"s3:/{1,2}(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(/+(?P<prefix>.*))?")
"""Address of a bucket; a `Path` joins the two slashes to one."""
PARALLEL_REQUESTS = 32
"""Requests to a storage at the same time, so that their latency does not add up."""


class Location(Protocol):
    """Place of files that are read; its text is the path or the address."""

    parallel_reads: int
    """Number of reads that are best done at the same time."""

    def read(self, name: str) -> bytes:
        """Content of a small file.

        Raises:
            FileNotFoundError: there is none of this name.
            HandoffError: the storage cannot be reached, or refuses the request.
        """
        ...

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """The bytes `[start, stop)` of a file, fewer at its end.

        Raises:
            FileNotFoundError: there is none of this name.
            HandoffError: the storage cannot be reached, or refuses the request.
        """
        ...

    def size(self, name: str) -> int:
        """Size of a file [bytes]; it raises as `read_range`."""
        ...

    def below(self, name: str) -> Location:
        """The place of the files in the folder `name`."""
        ...

    def folder_bytes(self, names: Iterable[str]) -> dict[str, int]:
        """Sizes of the files directly in each of the folders `names`, summed [bytes]; 0 for a
        missing folder.

        Raises:
            HandoffError: the storage cannot be reached, or refuses the request.
        """
        ...

    def open_array(self, name: str) -> zarr.Array[Any]:
        """Opens the Zarr v3 array in the folder `name` for reading."""
        ...


class Folder:
    """Files below a folder of this computer; a `Location`."""

    parallel_reads = 1
    """The decoder needs longer than the disk."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __str__(self) -> str:
        return str(self.path)

    def read(self, name: str) -> bytes:
        """Content of a small file; see `Location`."""
        return (self.path / name).read_bytes()

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Part of a file; see `Location`."""
        with (self.path / name).open("rb", buffering=0) as file:
            return os.pread(file.fileno(), stop - start, start)

    def size(self, name: str) -> int:
        """Size of a file [bytes]."""
        return (self.path / name).stat().st_size

    def below(self, name: str) -> Folder:
        """The folder `name` in this one."""
        return Folder(self.path / name)

    def folder_bytes(self, names: Iterable[str]) -> dict[str, int]:
        """Sizes of the files directly in folders; see `Location`."""
        return {name: _folder_bytes(self.path / name) for name in names}

    def open_array(self, name: str) -> zarr.Array[Any]:
        """Opens an array for reading."""
        import zarr

        return zarr.open_array(self.path / name, mode="r", zarr_format=3)


class Bucket:
    """Objects whose keys begin with a prefix, in a bucket of S3-compatible storage; a `Location`.

    The client, obstore, is needed at the first read.

    Args:
        bucket: name of the bucket.
        prefix: beginning of all keys, without a slash at its ends; may be empty.
    """

    parallel_reads = PARALLEL_REQUESTS

    def __init__(self, bucket: str, prefix: str) -> None:
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint = endpoint()

    def __str__(self) -> str:
        return f"s3://{self._bucket}" + (f"/{self._prefix}" if self._prefix else "")

    def read(self, name: str) -> bytes:
        """Content of a small object; see `Location`."""
        import obstore

        with self.explained():
            return bytes(obstore.get(self._client, name).bytes())

    def read_range(self, name: str, start: int, stop: int) -> bytes:
        """Part of an object; see `Location`."""
        import obstore

        with self.explained():
            return bytes(obstore.get_range(self._client, name, start=start, end=stop))

    def size(self, name: str) -> int:
        """Size of an object [bytes]."""
        import obstore

        with self.explained():
            return int(obstore.head(self._client, name)["size"])

    def below(self, name: str) -> Bucket:
        """The objects below `name`."""
        return Bucket(self._bucket, f"{self._prefix}/{name}".strip("/"))

    def folder_bytes(self, names: Iterable[str]) -> dict[str, int]:
        """Sizes of the objects directly below prefixes, by one listing; see `Location`."""
        import obstore

        wanted = list(names)
        common = os.path.commonpath(wanted) if wanted else ""
        found: Counter[str] = Counter()
        with self.explained():
            for part in obstore.list(self._client, common or None):
                for entry in part:
                    found[str(entry["path"]).rpartition("/")[0]] += int(entry["size"])
        return {name: found[name] for name in wanted}

    def open_array(self, name: str) -> zarr.Array[Any]:
        """Opens an array, of which a read transfers the chunks that it needs."""
        import zarr

        return zarr.open_array(self._arrays, path=name, mode="r", zarr_format=3)

    @contextmanager
    def explained(self) -> Iterator[None]:
        """Converts the errors of the client, which are several lines, to one line.

        Raises:
            FileNotFoundError: the object does not exist.
            HandoffError: anything else.
        """
        from obstore.exceptions import BaseError

        try:
            yield
        except FileNotFoundError as error:
            if "NoSuchBucket" in str(error):
                raise HandoffError(failure(self, self._endpoint, str(error))) from None
            raise
        except BaseError as error:
            raise HandoffError(failure(self, self._endpoint, str(error))) from None

    @cached_property
    def _client(self) -> Any:
        with self.explained():
            return open_client(self._bucket, self._prefix)

    @cached_property
    def _arrays(self) -> Any:
        from robots.storage.bucket_arrays import BucketArrays

        return BucketArrays.of(str(self), self._client, self.explained)


def bucket_of(place: Path | str) -> Bucket | None:
    """The bucket that `s3://BUCKET/PREFIX` names; None for a folder.

    Raises:
        HandoffError: the address names no bucket.
    """
    text = str(place)
    if not text.lower().startswith("s3:/"):
        return None
    found = ADDRESS.fullmatch(text)
    prefix = "" if found is None else (found["prefix"] or "").strip("/")
    if found is None or ".." in prefix.split("/"):
        raise HandoffError(
            f"'{text}': no address of a bucket, expected s3://BUCKET/PREFIX. Credentials belong in the environment."
        )
    return Bucket(found["bucket"], prefix)


def location_of(place: Location | Path | str) -> Location:
    """The place that a path or the address of a bucket names.

    Raises:
        HandoffError: see `bucket_of`.
    """
    if isinstance(place, (Path, str)):
        return bucket_of(place) or Folder(Path(place))
    return place


def _folder_bytes(folder: Path) -> int:
    if not folder.is_dir():
        return 0
    with os.scandir(folder) as entries:
        return sum(entry.stat().st_size for entry in entries if entry.is_file())
