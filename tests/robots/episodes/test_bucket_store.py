"""Episode stores in a bucket, and stores whose samples stay elsewhere."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robots.episodes.config import FieldMapConfig
from robots.episodes.ingest import IngestConfig, ingest
from robots.episodes.pack import pack_store
from robots.episodes.schema import EpisodeSchema, StreamSpec, with_videos
from robots.episodes.segments.video_codec import H264Config
from robots.episodes.sources import index_digest
from robots.episodes.store import EpisodeStore
from robots.errors import HandoffError
from robots.interfaces import no_progress
from robots.spec import FieldSpec
from robots.storage.location import Bucket, location_of
from tests.robots.storage.bucket import ServedBucket, served_bucket

SCHEMA = EpisodeSchema(
    name="fold",
    streams={
        "policy": StreamSpec(
            rate_hz=10.0,
            fields={
                "state/q": FieldSpec(shape=(3,)),
                "action": FieldSpec(shape=(3,), role="action"),
                "front": FieldSpec(shape=(64, 64, 3), dtype="uint8", unit="u8"),
            },
        ),
        "force": StreamSpec(rate_hz=50.0, fields={"wrench": FieldSpec(shape=(6,))}),
    },
)


def episode(number: int, steps: int) -> dict[str, dict[str, np.ndarray]]:
    rng = np.random.default_rng(number)
    lengths = {"policy": steps, "force": 5 * steps}
    return {
        name: {
            field: (255 * rng.random((lengths[name], *about.shape))).astype(about.dtype)
            for field, about in stream.fields.items()
        }
        for name, stream in SCHEMA.streams.items()
    }


def write(path: Path, schema: EpisodeSchema = SCHEMA) -> Path:
    with EpisodeStore.create(path, schema) as store:
        with store.writer() as writer:
            for number in range(3):
                writer.append(episode(number, 60 + number), {"success": number != 1})
        store.append(episode(3, 20), {"success": True})
    return path


@pytest.fixture(scope="module")
def bucket() -> Iterator[ServedBucket]:
    with served_bucket() as served:
        yield served


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("local") / "store.zarr")


@pytest.fixture(scope="module")
def address(bucket: ServedBucket, local: Path) -> str:
    return bucket.upload(local, "lab/fold.zarr")


def assert_same_episodes(one: EpisodeStore, other: EpisodeStore) -> None:
    assert one.schema == other.schema
    assert one.num_episodes == other.num_episodes
    for number in range(one.num_episodes):
        assert one.metadata(number) == other.metadata(number)
        for stream in one.schema.streams:
            values, others = one.read(number, stream), other.read(number, stream)
            assert all(np.array_equal(values[name], others[name]) for name in others)


def ingested(out: Path, **options: Any) -> tuple[EpisodeStore, dict[str, Any]]:
    out.mkdir()
    metrics = ingest(IngestConfig(download=False, **options), out, no_progress, out / "none")
    return EpisodeStore.open(out / "store.zarr"), metrics


def test_episodes_are_those_of_the_folder(address: str, local: Path):
    assert_same_episodes(EpisodeStore.open(address), EpisodeStore.open(local))
    assert_same_episodes(EpisodeStore.open(Path(address)), EpisodeStore.open(local))


def test_any_window_is_that_of_the_folder(address: str, local: Path):
    one, other = EpisodeStore.open(address), EpisodeStore.open(local)
    for number, first, stop in ((0, 0, 2), (1, 57, 61), (2, 5, 5), (3, 18, 20)):
        found, expected = (
            store.read(number, "policy", None, slice(first, stop)) for store in (one, other)
        )
        assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert np.array_equal(one.column("force", "wrench"), other.column("force", "wrench"))


def test_a_window_transfers_its_chunk_and_asks_for_the_index_once(
    address: str, local: Path, monkeypatch: pytest.MonkeyPatch
):
    from zarr.storage import ObjectStore

    sizes: list[int] = []
    plain = ObjectStore.get

    async def counted(store: Any, key: str, *arguments: Any) -> Any:
        found = await plain(store, key, *arguments)
        assert found is not None
        sizes.append(0 if key.endswith("zarr.json") else len(found))
        return found

    monkeypatch.setattr(ObjectStore, "get", counted)
    store = EpisodeStore.open(address)
    store.read(1, "policy", ["front"], slice(30, 32))
    first = list(sizes)
    store.read(0, "policy", ["front"], slice(1, 3))
    [shard] = (local / "segments" / "000000" / "policy" / "front").glob("c.*")
    # Metadata, index, chunk; then a chunk alone.
    assert len(first) == 3
    assert len(sizes) == 4
    assert sum(sizes) < shard.stat().st_size / 4


def test_a_store_in_a_bucket_is_read_only(address: str):
    with pytest.raises(HandoffError, match=r"fold\.zarr: its samples are in s3:.*read only"):
        EpisodeStore.open(address, "a")


def test_a_prefix_without_a_store_is_named(bucket: ServedBucket):
    place = f"s3://{bucket.name}/lab/absent.zarr"
    with pytest.raises(HandoffError, match=rf"^{place}: not an episode store, it has no zarr"):
        EpisodeStore.open(place)
    with pytest.raises(HandoffError, match=rf"^{place}: not an episode store, it has no zarr"):
        ingest(IngestConfig(data=place), Path("out"), no_progress, Path("none"))


def test_an_object_that_is_missing_is_named(bucket: ServedBucket, local: Path):
    place = bucket.upload(local, "lab/lost.zarr")
    opened = EpisodeStore.open(place)
    name = "segments/000001/policy/front/c.0.0.0.0"
    bucket.delete(f"lab/lost.zarr/{name}")
    with pytest.raises(HandoffError, match=rf"{place}/{name}: no such object. Was it deleted"):
        opened.read(3, "policy", ["front"], slice(0, 1))
    with pytest.raises(HandoffError, match=r"lost\.zarr/segments/000001/policy/front: files hold"):
        EpisodeStore.open(place)


def test_an_ingest_copies_what_is_in_the_bucket(address: str, local: Path, tmp_path: Path):
    copied, metrics = ingested(tmp_path / "remote", data=address)
    expected, _ = ingested(tmp_path / "local", data=str(local))
    assert metrics["source_digest"] == index_digest(location_of(local))
    for number in range(expected.num_episodes):
        about = {**expected.metadata(number), "source_digest": metrics["source_digest"]}
        assert copied.metadata(number) == about
    columns = [
        [
            store.column(name, field)
            for name, spec in SCHEMA.streams.items()
            for field in spec.fields
        ]
        for store in (copied, expected)
    ]
    assert all(np.array_equal(one, other) for one, other in zip(*columns, strict=True))


@pytest.mark.parametrize("options", [{}, {"images": False}, {"max_episodes": 2}], ids=str)
@pytest.mark.parametrize("place", ["folder", "bucket"])
def test_a_reference_has_the_episodes_of_a_copy(
    place: str, options: dict[str, Any], address: str, local: Path, tmp_path: Path
):
    data = address if place == "bucket" else str(local)
    copied, about = ingested(tmp_path / "copied", data=data, **options)
    referred, metrics = ingested(tmp_path / "referred", data=data, copy=False, **options)
    assert metrics == about
    assert_same_episodes(referred, copied)
    files = sorted(file.name for file in (tmp_path / "referred" / "store.zarr").iterdir())
    assert files == ["index.json", "reference.json", "zarr.json"]


def test_a_reference_states_the_place_and_the_digest_of_its_index(address: str, tmp_path: Path):
    store, metrics = ingested(tmp_path / "referred", data=address, copy=False)
    reference = json.loads((tmp_path / "referred" / "store.zarr" / "reference.json").read_text())
    assert reference == {"store": address}
    digest = index_digest(location_of(address))
    assert metrics["source_digest"] == store.metadata(2)["source_digest"] == digest


def test_a_reference_does_not_grow_with_the_store(tmp_path: Path):
    source = write(tmp_path / "source.zarr")
    before, _ = ingested(tmp_path / "referred", data=str(source), copy=False)
    with EpisodeStore.open(source, "a") as store:
        store.append(episode(9, 30), {})
    after = EpisodeStore.open(tmp_path / "referred" / "store.zarr")
    assert after.num_episodes == 4
    assert_same_episodes(after, before)


def test_a_reference_to_samples_that_are_gone_is_named(tmp_path: Path):
    source = write(tmp_path / "source.zarr")
    ingested(tmp_path / "referred", data=str(source), copy=False)
    shutil.rmtree(source / "segments" / "000001")
    with pytest.raises(HandoffError, match=r"source\.zarr/segments/000001/.* hold 0 bytes"):
        EpisodeStore.open(tmp_path / "referred" / "store.zarr")


def test_episodes_are_not_added_to_a_reference(address: str, tmp_path: Path):
    ingested(tmp_path / "referred", data=address, copy=False)
    with pytest.raises(HandoffError, match=f"its samples are in {address}, which is read only"):
        EpisodeStore.open(tmp_path / "referred" / "store.zarr", "a")


def test_a_reference_to_a_reference_is_refused(local: Path, tmp_path: Path):
    ingested(tmp_path / "first", data=str(local), copy=False)
    with pytest.raises(HandoffError, match=f"refers to another store; refer to {local}"):
        ingested(tmp_path / "second", data=str(tmp_path / "first"), copy=False)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mirror": True}, "copy: is false, but mirror would change the samples"),
        ({"map": FieldMapConfig(rate_hz=5.0)}, "copy: is false, but map would change the samples"),
    ],
)
def test_samples_that_stay_are_not_changed(
    options: dict[str, Any], words: str, local: Path, tmp_path: Path
):
    with pytest.raises(HandoffError, match=words):
        ingested(tmp_path / "out", data=str(local), copy=False, **options)


def test_samples_of_another_format_do_not_stay(local: Path, tmp_path: Path):
    np.savez(tmp_path / "one.npz", action=np.zeros((4, 2)), episode_ends=np.array([4]))
    pack_store(local, tmp_path / "packed.zip")
    for name, form in (("one.npz", "NumPy archives"), ("packed.zip", "episode stores of Handoff")):
        with pytest.raises(HandoffError, match=rf"copy: is false, but .*{name} is .* {form}; samp"):
            ingested(tmp_path / f"out-{name}", data=str(tmp_path / name), copy=False)


def test_another_format_is_not_read_from_a_bucket(address: str, tmp_path: Path):
    with pytest.raises(HandoffError, match="in a bucket, only episode stores are read"):
        ingested(tmp_path / "out", data=address, format="lerobot")


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(
        tmp_path_factory.mktemp("videos") / "store.zarr", with_videos(SCHEMA, H264Config())
    )


def test_a_video_in_a_bucket_is_read_by_the_bytes_of_its_frames(
    bucket: ServedBucket, videos: Path, monkeypatch: pytest.MonkeyPatch
):
    address = bucket.upload(videos, "lab/videos.zarr")
    assert_same_episodes(EpisodeStore.open(address), EpisodeStore.open(videos))
    store = EpisodeStore.open(address)
    store.read(1, "policy", ["front"], slice(0, 1))
    read: list[int] = []
    plain = Bucket.read_range

    def counted(place: Bucket, name: str, start: int, stop: int) -> bytes:
        read.append(stop - start)
        return plain(place, name, start, stop)

    monkeypatch.setattr(Bucket, "read_range", counted)
    found = store.read(1, "policy", ["front"], slice(30, 32))["front"]
    assert np.array_equal(found, EpisodeStore.open(videos).read(1, "policy")["front"][30:32])
    coded = store.coded(1, "policy", "front").nbytes
    # Two frames, and one before them at most, of 61; in one request.
    assert len(read) == 1
    assert sum(read) < coded / 10


def test_a_copy_of_a_video_in_a_bucket_has_the_same_coded_frames(
    bucket: ServedBucket, videos: Path, tmp_path: Path
):
    address = bucket.upload(videos, "lab/copied.zarr")
    copy, _ = ingested(tmp_path / "demos", data=address)
    original = EpisodeStore.open(videos)
    for number in range(4):
        mine, theirs = (store.coded(number, "policy", "front") for store in (copy, original))
        assert mine.nbytes == theirs.nbytes
        assert np.array_equal(
            copy.read(number, "policy")["front"], original.read(number, "policy")["front"]
        )


def test_a_video_that_was_not_uploaded_is_named(bucket: ServedBucket, videos: Path):
    address = bucket.upload(videos, "lab/cut.zarr")
    (lost, *_) = sorted(file.relative_to(videos) for file in videos.rglob("packets.npy"))
    bucket.delete(f"lab/cut.zarr/{lost.as_posix()}")
    with pytest.raises(HandoffError, match="front"):
        EpisodeStore.open(address).read(0, "policy")
