"""`handoff episodes` and `ingest` with a store in a bucket."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flows.__main__ import main
from flows.stages.data.ingest import external
from robots.episodes.ingest import IngestConfig
from robots.episodes.sources import index_digest
from robots.episodes.write_episodes import write_episodes
from robots.storage.location import location_of
from tests.robots.storage.bucket import ServedBucket, served_bucket


@pytest.fixture(scope="module")
def bucket() -> Iterator[ServedBucket]:
    with served_bucket() as served:
        yield served


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "towel.zarr"
    q = np.sin(np.linspace(0, 5, 30)[:, None] + np.arange(3)).astype(np.float32)
    episodes = [{"q": q + number, "action": np.roll(q, -1, axis=0)} for number in range(3)]
    write_episodes(path, episodes, task="fold", rate_hz=10.0, metadata=[{"success": True}] * 3)
    return path


@pytest.fixture(scope="module")
def address(bucket: ServedBucket, store: Path) -> str:
    return bucket.upload(store, "lab/towel.zarr")


@pytest.mark.parametrize("command", ["info", "ls", "stats"])
def test_what_is_printed_is_that_of_the_folder(
    command: str, address: str, store: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for place in (address, str(store)):
        assert main(["episodes", command, place]) == 0, capsys.readouterr().err
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != ""


def test_a_bucket_that_does_not_exist_is_one_line(
    bucket: ServedBucket, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["episodes", "info", "s3://absent/towel.zarr"]) == 1
    error = capsys.readouterr().err.strip()
    assert error.endswith(
        f"s3://absent/towel.zarr at {bucket.endpoint}: the bucket does not exist."
    )
    assert "\n" not in error


def test_a_store_is_copied_from_a_bucket(
    address: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "copy.zarr"
    assert main(["episodes", "import", address, str(out)]) == 0, capsys.readouterr().err
    assert main(["episodes", "info", str(out)]) == 0
    assert "episodes  3" in capsys.readouterr().out


def test_the_cache_key_has_the_digest_of_the_index(address: str) -> None:
    found = external(IngestConfig(data=address, copy=False), False)
    assert found == {"source": index_digest(location_of(address))}
