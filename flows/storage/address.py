"""Reads the addresses of runs: a local folder, or S3-compatible storage as `s3://BUCKET/PREFIX`."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from robots.errors import HandoffError
from robots.storage.parsed_sources import cache_folder
from robots.storage.s3_client import endpoint

SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/|s3:", re.IGNORECASE)
"""Beginning of an address that is no folder."""
STORAGE = re.compile(
    r"s3://(?P<bucket>[a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?P<prefix>(/[\w.=+-]+)*)/?"
)


@dataclass(frozen=True)
class StorageAddress:
    """Place of runs on S3-compatible storage."""

    bucket: str
    prefix: str
    """Keys of all objects begin with it; may be empty."""

    def __str__(self) -> str:
        return f"s3://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")


def storage_address(runs: str) -> StorageAddress | None:
    """Returns the address of a storage; None for a local folder.

    Args:
        runs: value of `runs` of a recipe.

    Raises:
        HandoffError: another scheme than `s3`, or no bucket.
    """
    found = STORAGE.fullmatch(runs)
    if found is not None and ".." not in runs.split("/"):
        return StorageAddress(found["bucket"], found["prefix"].strip("/"))
    if SCHEME.match(runs):
        # An address may contain a password, which belongs in no message.
        shown = f"an address that begins with '{runs.partition(':')[0]}:'"
        shown = shown if "@" in runs or "?" in runs else f"'{runs}'"
        raise HandoffError(
            f"runs is {shown}, expected a folder or s3://BUCKET/PREFIX with letters, digits and "
            "'.', '_', '-', '=', '+'. Is it mistyped? Credentials belong in the environment."
        )
    return None


def runs_folder(runs: str) -> Path:
    """Returns the local folder of artifacts and results; of a storage, that of its working copy in
    the user's cache.

    Raises:
        HandoffError: see `storage_address`.
    """
    address = storage_address(runs)
    if address is None:
        return Path(runs)
    # Two addresses may differ in a slash only, and two storages have buckets of one name.
    mark = hashlib.sha256(f"{endpoint()} {address}".encode()).hexdigest()[:8]
    name = "-".join([address.bucket, *address.prefix.split("/")]).strip("-")
    return cache_folder() / "storage" / f"{name}-{mark}"
