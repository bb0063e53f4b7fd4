"""An S3 server in a thread of the tests, and computers that share nothing but its storage."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from flows.attended import run_in_order
from flows.recipes.graph import stages
from flows.recipes.recipe import read_recipe
from flows.storage.address import StorageAddress, runs_folder
from flows.storage.objects import Objects

RECIPE = """
stages:
  demos: {uses: "tests.flows.storage.storage_stages:numbers"}
  total: {uses: "tests.flows.storage.storage_stages:add", inputs: {demos: demos}}
"""
NUMBERS = count()


class Storage:
    """A bucket of an S3 server in a thread of the tests."""

    def __init__(self, bucket: str) -> None:
        self.address = StorageAddress(bucket, "lab/push_t")
        self._port = 0
        self.start()

    def start(self) -> None:
        """Starts the server, again at the same port; its buckets outlive a stop."""
        from moto.server import ThreadedMotoServer

        self._server = ThreadedMotoServer(ip_address="127.0.0.1", port=self._port, verbose=False)
        self._server.start()
        self._port = self._server.get_host_and_port()[1]

    def stop(self) -> None:
        """Makes the storage unreachable."""
        self._server.stop()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._port}"

    @property
    def objects(self) -> Objects:
        return Objects(self.address)

    def artifact_keys(self) -> list[str]:
        """Keys of the artifacts' objects, without the digests in them."""
        found = self.objects.sizes("artifacts")
        return sorted(re.sub(r"-[0-9a-f]{12}/([0-9a-f]{12}/)?", "/", key) for key in found)

    def key(self, ending: str) -> str:
        """The key of the only object with this ending."""
        [found] = [key for key in self.objects.sizes("artifacts") if key.endswith(ending)]
        return f"artifacts/{found}"


def new_bucket() -> Storage:
    """A server with an empty bucket."""
    started = Storage(f"runs-{next(NUMBERS)}")
    place = f"{started.endpoint}/{started.address.bucket}"
    urllib.request.urlopen(urllib.request.Request(place, method="PUT")).close()
    return started


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    """An empty bucket, with the environment that finds it."""
    started = new_bucket()
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    monkeypatch.delenv("AWS_ENDPOINT_URL_S3", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", started.endpoint)
    yield started
    started.stop()


@dataclass
class Computer:
    """A computer with a cache of its own."""

    cache: Path
    recipe: Path
    storage: Storage
    monkeypatch: pytest.MonkeyPatch

    def run(self, *overrides: str, number: str = "0") -> dict[str, Any]:
        """Runs the recipe in this process; returns the rows of its summary by stage."""
        self.use()
        self.monkeypatch.setenv("HANDOFF_TEST_NUMBER", number)
        recipe = read_recipe(str(self.recipe), [f"runs={self.storage.address}", *overrides])
        return json.loads(run_in_order(recipe, stages(recipe), isolate=False).read_bytes())[
            "stages"
        ]

    def use(self) -> None:
        """Makes it the computer of this process."""
        self.monkeypatch.setenv("XDG_CACHE_HOME", str(self.cache))

    @property
    def folder(self) -> Path:
        """The working copy."""
        self.use()
        return runs_folder(str(self.storage.address))

    def fetched(self) -> list[str]:
        """Stages whose artifacts have their files here."""
        return sorted(
            path.name.rpartition("-")[0]
            for path in (self.folder / "artifacts").glob("[!.]*-????????????")
            if not path.is_symlink()
        )


@pytest.fixture
def computers(
    storage: Storage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Computer, Computer]:
    """Two computers with one recipe, which share nothing but the storage."""
    recipe = tmp_path / "sums.yaml"
    recipe.write_text(RECIPE)
    one, two = (Computer(tmp_path / name, recipe, storage, monkeypatch) for name in ("one", "two"))
    return one, two
