"""A bucket of an S3 server in a thread of the tests."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

NUMBERS = count()


class ServedBucket:
    """A bucket, and the environment that finds it."""

    def __init__(self) -> None:
        from moto.server import ThreadedMotoServer

        self.name = f"data-{next(NUMBERS)}"
        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        self._server.start()
        self.endpoint = f"http://127.0.0.1:{self._server.get_host_and_port()[1]}"
        place = f"{self.endpoint}/{self.name}"
        urllib.request.urlopen(urllib.request.Request(place, method="PUT")).close()

    @property
    def environment(self) -> dict[str, str]:
        """Variables for the clients."""
        return {
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "a-secret",
            "AWS_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.endpoint,
        }

    @property
    def client(self) -> Any:
        """A client that writes."""
        from obstore.store import S3Store

        return S3Store(self.name, client_options={"allow_http": True})

    def upload(self, folder: Path, prefix: str) -> str:
        """Copies a folder; returns its address."""
        import obstore

        for file in folder.rglob("*"):
            if file.is_file():
                obstore.put(self.client, f"{prefix}/{file.relative_to(folder).as_posix()}", file)
        return f"s3://{self.name}/{prefix}"

    def delete(self, key: str) -> None:
        """Deletes an object."""
        import obstore

        obstore.delete(self.client, key)

    def stop(self) -> None:
        """Makes the storage unreachable."""
        self._server.stop()


@contextmanager
def served_bucket() -> Iterator[ServedBucket]:
    """An empty bucket; the environment of this process finds it."""
    bucket = ServedBucket()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
        for name, value in bucket.environment.items():
            patch.setenv(name, value)
        yield bucket
    bucket.stop()
