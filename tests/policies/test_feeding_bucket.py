"""Training on an episode store in a bucket, without a copy."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from policies.data.demonstrations import open_store, read_stores
from policies.imitation.config import MixedStore
from policies.imitation.pretrain import pretrain
from robots.episodes.ingest import IngestConfig, ingest
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from tests.policies.test_feeding import CONFIG, SEEING, STREAMED
from tests.policies.test_pretrain_data import CLOUD, FIELDS, same_weights, write_store
from tests.robots.storage.bucket import ServedBucket, served_bucket


@pytest.fixture(scope="module")
def bucket() -> Iterator[ServedBucket]:
    with served_bucket() as served:
        yield served


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    camera = FieldSpec(shape=(40, 40, 3), dtype="uint8", unit="u8")
    fields = {**FIELDS, "camera": camera, "cloud": CLOUD}
    return write_store(tmp_path_factory.mktemp("seen") / "demos", (9, 40, 10, 11), fields)


@pytest.fixture(scope="module")
def address(bucket: ServedBucket, demos: Path) -> str:
    return bucket.upload(demos / "store.zarr", "lab/towel.zarr")


def test_a_training_from_a_bucket_gives_the_weights_of_one_from_the_disk(
    address: str, demos: Path, tmp_path: Path
):
    for name in ("artifact", "disk", "bucket"):
        (tmp_path / name).mkdir()
    config = IngestConfig(data=address, copy=False, download=False)
    ingest(config, tmp_path / "artifact", no_progress, tmp_path / "none")
    pretrain(CONFIG, demos, tmp_path / "disk", no_progress)
    pretrain(STREAMED, tmp_path / "artifact", tmp_path / "bucket", no_progress)
    assert same_weights(tmp_path / "disk", tmp_path / "bucket")
    copied = [file.name for file in (tmp_path / "artifact").rglob("*") if file.is_file()]
    assert sorted(copied) == ["index.json", "reference.json", "zarr.json"]


def test_a_mixture_has_a_store_in_a_bucket(address: str, demos: Path, tmp_path: Path):
    further = write_store(tmp_path / "further", (8, 9), {**FIELDS, "cloud": CLOUD})
    weights = []
    for number, path in enumerate((address, str(demos))):
        out = tmp_path / f"out-{number}"
        out.mkdir()
        config = replace(STREAMED, workers=0, mixture=(MixedStore(path=path),))
        pretrain(config, further, out, no_progress)
        weights.append(out)
    assert same_weights(*weights)


@pytest.mark.parametrize("streamed", [True, False])
def test_windows_from_a_bucket_are_bit_equal(streamed: bool, address: str, demos: Path):
    remote = read_stores([open_store("remote", Path(address), SEEING)], streamed=streamed)
    local = read_stores([open_store("local", demos / "store.zarr", SEEING)])
    assert (remote.observation_MO == local.observation_MO).all()
    assert (remote.action_MA == local.action_MA).all()
    rows = torch.randint(70, (32, 2), generator=torch.Generator().manual_seed(0))
    cameras = [data.sensors["camera"].steps(rows) for data in (remote, local)]
    assert torch.equal(*cameras)


def test_latency_of_the_storage_does_not_add_up(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from zarr.storage import ObjectStore

    plain, running, most = ObjectStore.get, 0, 0

    async def slow(store: Any, *arguments: Any) -> Any:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.02)
        running -= 1
        return await plain(store, *arguments)

    data = read_stores([open_store("remote", Path(address), SEEING)], streamed=True)
    monkeypatch.setattr(ObjectStore, "get", slow)
    data.sensors["camera"].steps(torch.arange(0, 70, 3))
    assert most >= 4
