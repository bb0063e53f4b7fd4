"""Files of folders and buckets."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from robots.errors import HandoffError, describe
from robots.storage.location import Folder, Location, bucket_of, location_of
from tests.robots.storage.bucket import ServedBucket, served_bucket


@pytest.fixture(scope="module")
def bucket() -> Iterator[ServedBucket]:
    with served_bucket() as served:
        yield served


@pytest.fixture(params=["folder", "bucket"])
def place(request: pytest.FixtureRequest, bucket: ServedBucket, tmp_path: Path) -> Location:
    """The same files in a folder and in a bucket."""
    for name, size in (("a/one", 3), ("a/two", 4), ("a/deep/three", 5), ("ab/four", 6)):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    if request.param == "folder":
        return location_of(tmp_path)
    return location_of(bucket.upload(tmp_path, "lab/files"))


def test_only_files_directly_in_a_folder_count(place: Location):
    assert place.folder_bytes(["a", "a/deep", "b"]) == {"a": 7, "a/deep": 5, "b": 0}
    assert place.folder_bytes([]) == {}


def test_a_file_is_read_whole(place: Location):
    assert place.read("a/two") == bytes(4)


def test_an_absent_file_is_no_fault_of_the_place(place: Location):
    with pytest.raises(FileNotFoundError):
        place.read("a/five")


@pytest.mark.parametrize(
    "address", ["s3://lab-1/a/b.zarr", "s3:/lab-1/a/b.zarr", "s3://lab-1/a/b.zarr/"]
)
def test_an_address_that_was_a_path_is_the_same(address: str):
    assert str(bucket_of(address)) == str(bucket_of(Path(address))) == "s3://lab-1/a/b.zarr"


def test_a_path_is_a_folder(tmp_path: Path):
    assert bucket_of(tmp_path) is None
    assert isinstance(location_of(tmp_path), Folder)
    assert isinstance(location_of("s3_data/a"), Folder)


@pytest.mark.parametrize("address", ["s3://", "s3://UPPER/a", "s3://lab/../x", "s3://key@lab/x"])
def test_an_address_without_a_bucket_is_refused(address: str):
    with pytest.raises(HandoffError, match="no address of a bucket, expected s3://BUCKET/PREFIX"):
        bucket_of(address)


def test_a_bucket_that_does_not_exist_is_named(bucket: ServedBucket):
    with pytest.raises(HandoffError) as caught:
        location_of("s3://absent/x").read("zarr.json")
    expected = f"s3://absent/x at {bucket.endpoint}: the bucket does not exist."
    assert str(caught.value) == expected


def test_a_storage_that_does_not_answer_is_named_without_its_password(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "a-secret")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://ada:a-password@127.0.0.1:9")
    with pytest.raises(HandoffError) as caught:
        location_of("s3://lab/x").read("zarr.json")
    assert str(caught.value) == "s3://lab/x at http://127.0.0.1:9: nothing answers there."


def test_the_client_that_is_missing_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    for module in ("obstore", "obstore.store", "obstore.exceptions"):
        monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError) as caught:
        location_of("s3://lab/x").read("zarr.json")
    line = describe(caught.value)
    assert line.startswith("obstore is not installed. Install it in the checkout: pip install")
